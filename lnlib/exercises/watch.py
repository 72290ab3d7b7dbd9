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
        The values per element that go through memory, or what is wrong.
    """
    result, steps = trace(lambda *given: function(*given, *numbers), *arrays.values())
    # check itself fills what np.empty gives; and who fills an array with one number reads no row
    steps = [step for step in steps if step.name != "fill"]
    rows, shown = numbers[-1], [arrays[name] for name in matrices]
    problems = [_problem_of_length(steps, rows, shown[0])]
    problems += [
        _problem_of_reading(name, array, _only(steps, [array]), rows, cache_bytes)
        for name, array in zip(matrices, shown)
    ]
    if any(problems):
        return f"The numbers are right, but {next(filter(None, problems))}"
    # small temporaries are left out: where they lie, and so what they cost, is malloc's choice
    through = traffic(_only(steps, [*shown, result[0]]), cache_bytes) / shown[0].nbytes
    message = f"{through:.0f} values per element go through memory; {len(matrices) + 1} must."
    if through > len(matrices) + 2.5:  # one more: who begins with zeros writes the result twice
        return f"The numbers are right, but {message} Is the result made in several steps?"
    return Score(message)


def _problem_of_length(steps, rows, matrix):
    """Say if an operation goes over more rows than it should, or return None."""
    longest, row_bytes = max(steps, key=_longest), matrix[0].nbytes
    if (size := _longest(longest)) > rows * row_bytes:
        message = (
            f"where rows is {rows}, an operation ({longest.name}) goes over "
            f"{min(size // row_bytes, len(matrix))} rows at once"
        )
        if size == 2 * rows * row_bytes:  # the wider dtype, or twice as many
            return f"{message}, or over {rows} of twice the width. Is it {matrix.dtype}?"
        return f"{message}. Is it outside the loop, or is the strip too long?"


def _problem_of_reading(name, array, steps, rows, cache_bytes):
    """Say if steps read an array too often, or too little of it at a time, or return None."""
    times, row_bytes = traffic(steps, cache_bytes) / array.nbytes, array[0].nbytes
    if times > 1.5:
        return (
            f"{name} comes from memory {times:.0f} times. Do all that some rows need while they "
            "are in the cache."
        )
    longest = max((size for step in steps for _, size in step.reads), default=rows * row_bytes)
    if longest < rows * row_bytes:
        most = round(longest / row_bytes)
        return (
            f"where rows is {rows}, no operation takes more than {most} row{'s' * (most != 1)} of "
            f"{name}: NumPy starts too often."
        )


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
