"""Watch an answer at work: digits, rows at a time, and what goes through memory."""

import numpy as np

from ..checker import Score
from ..trace import trace, traffic


def units_off(mine, exact):
    """Return the largest error of an array in units in the last place; exact has more digits."""
    return np.max(np.abs(mine - exact) / np.spacing(np.abs(exact).astype(mine.dtype)))


def blocks_are_used(function, arrays, numbers, matrices, cache_bytes):
    """Judge a function that should work on some rows at a time.

    Parameters
    ----------
    function : callable
        Takes the arrays, then the numbers, of which the last is the number of rows.
    arrays : dict of str to ndarray
    numbers : tuple
    matrices : tuple of str
        Which of the arrays have rows, and should come from memory once.
    cache_bytes : int
        Of the cache through which the operations are played.

    Returns
    -------
    Score or str
        The values per element that moved, or what is wrong.
    """
    result, steps = trace(lambda *given: function(*given, *numbers), *arrays.values())
    # check itself fills what np.empty gives; and who fills an array with one number reads no row
    steps = [step for step in steps if step.name != "fill"]
    rows, matrix = numbers[-1], arrays[matrices[0]]
    longest = max(steps, key=_longest)
    if _longest(longest) > rows * matrix[0].nbytes:
        return (
            f"The numbers are right, but where rows is {rows}, an operation ({longest.name}) goes "
            f"over {_longest(longest) / matrix[0].nbytes:.0f} rows at once. Is it outside the loop?"
        )
    for name in matrices:
        mine = _only(steps, [arrays[name]])
        sizes = [size for step in mine for _, size in step.reads]
        times = traffic(mine, cache_bytes) / matrix.nbytes
        if times > 1.5:
            return (
                f"The numbers are right, but {name} comes from memory {times:.0f} times. Do all "
                "that some rows need while they are in the cache."
            )
        if sizes and max(sizes) < rows * matrix[0].nbytes:
            return (
                f"The numbers are right, but where rows is {rows}, no operation takes more than "
                f"{max(sizes) / matrix[0].nbytes:.0f} row of {name}: NumPy starts too often."
            )
    # small temporaries are left out: where they lie, and so what they cost, is malloc's choice
    of_matrices = _only(steps, [*(arrays[name] for name in matrices), result[0]])
    moved, least = traffic(of_matrices, cache_bytes) / matrix.nbytes, len(matrices) + 1
    message = f"{moved:.0f} values per element moved; {least} must."
    if moved > least + 1.5:  # one more: who begins with zeros writes the result twice
        return f"The numbers are right, but {message} Is the result made in several steps?"
    return Score(message)


def _only(steps, arrays):
    """Return the steps with only those operands that lie in the arrays."""
    bounds = [np.lib.array_utils.byte_bounds(np.asarray(a)) for a in arrays]

    def inside(operands):
        return [o for o in operands if any(low <= o[0] < high for low, high in bounds)]

    return [s._replace(reads=inside(s.reads), writes=inside(s.writes)) for s in steps]


def _longest(step):
    """Return the bytes of the longest array of an operation that reads more than one number."""
    reads = [size for _, size in step.reads]
    return max(reads + [size for _, size in step.writes]) if max(reads, default=0) > 16 else 0
