"""Compare a learner's results with the right ones and with those of the known mistakes."""

import inspect

import numpy as np

from .describe import close, describe, shape_trouble

NOT_DONE = "not done yet"


class BadResult(Exception):
    """Raised for what a function returned if it cannot be compared; the message says why."""


def values_of(result, names):
    """Return the list of arrays that a function returned, None in place of what is not done.

    Parameters
    ----------
    result : object
        What the function returned: one value, or a tuple of them.
    names : tuple of str
        What it should return.

    Raises
    ------
    BadResult
        If there are too many or too few values, or they are not numbers.
    """
    if result is None or result is ...:
        return [None] * len(names)
    if len(names) == 1 and isinstance(result, tuple) and all(map(np.isscalar, result)):
        result = list(result)
    values = (result,) if len(names) == 1 and not isinstance(result, tuple) else result
    if isinstance(values, np.ndarray) and values.ndim and len(values) == len(names):
        values = list(values)  # stacked
    if not isinstance(values, tuple | list) or len(values) != len(names):
        came = len(values) if isinstance(values, tuple | list) else 1
        raise BadResult(
            f"returns {came} {'value' if came == 1 else 'values'} where {len(names)} "
            f"{'is' if len(names) == 1 else 'are'} asked: {', '.join(names)}"
        )
    return [_array(value, name) for value, name in zip(values, names)]


def _array(value, name):
    if value is None or value is ...:
        return None
    if np.ma.is_masked(value):
        raise BadResult(f"returns for {name} a masked array, which hides some of its entries")
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        kind = "array of objects" if isinstance(value, np.ndarray) else type(value).__name__
        raise BadResult(f"returns for {name} a value of type {kind}, not numbers")
    return array.astype(np.float64 if array.dtype.kind in "iu" else array.dtype)  # a copy


def compare(task, cases, results):
    """Say what is wrong with each output.

    Parameters
    ----------
    task : Exercise
    cases : dict of str to tuple
        What is special about each input -> the arguments.
    results : list of list
        For each case, what `values_of` made of the learner's result.

    Returns
    -------
    remarks : dict of str to (str or None)
        For each output: None if it is right, NOT_DONE, or what is wrong.
    first : int
        The first case in which something is not right.
    """

    def run(function):
        """Return, for each output, its value in every case."""
        returned = (function(*arguments) for arguments in cases.values())
        return list(zip(*(values_of(one, task.outputs) for one in returned), strict=True))

    def same(some, others):
        return all(close(a, b, task.rtol) for a, b in zip(some, others))

    right, mine = run(task.expected or task.right), list(zip(*results))
    done = [not any(value is None for value in values) for values in mine]
    wrong = any(there and not same(*both) for there, *both in zip(done, mine, right))
    known = []  # (what is wrong, the outputs of who does that)
    for text, mistake in task.mistakes if wrong else ():
        try:
            known.append((text, run(mistake)))
        except Exception:  # some inputs stop some mistakes
            continue
    remarks, wrong_cases = {}, [len(cases)]
    for k, output in enumerate(task.outputs):
        if not done[k]:
            some = [i for i, value in enumerate(mine[k]) if value is None]
            remarks[output] = NOT_DONE
            if len(some) < len(cases):
                wrong_cases.append(some[0])
                remarks[output] = f"nothing for {list(cases)[some[0]]}: is a return missing?"
        elif same(mine[k], right[k]):
            remarks[output] = None if task.prepare else _type_trouble(mine[k], right[k])
        else:
            remarks[output] = _what_is_wrong(k, task, cases, mine, right, known, done)
            wrong_cases.append(_first_wrong(mine[k], right[k], task.rtol))
    return remarks, min(wrong_cases) % len(cases)


def _first_wrong(some, others, rtol):
    return next(i for i, (a, b) in enumerate(zip(some, others)) if not close(a, b, rtol))


def _what_is_wrong(k, task, cases, mine, right, known, done):
    """Return what is wrong with output k: another output, a known mistake, or how it differs."""
    text, theirs, whole = _known_mistake(k, mine, right, known, done, task.rtol)
    for name, values, own, there in zip(task.outputs, right, mine, done):
        if there and not whole and all(close(a, b, task.rtol) for a, b in zip(mine[k], values)):
            if not all(close(a, b, task.rtol) for a, b in zip(own, values)):
                asked = ", ".join(task.outputs)
                return f"this is what {name} should be; the order is {asked}."
    if text:
        trouble = shape_trouble(mine[k], theirs, cases)
        trouble = trouble and shape_trouble(mine[k], right[k], cases)
        return f"{text} Also: {trouble}" if trouble else text
    names, others = inspect.signature(task.right).parameters, task.right.__globals__
    terms = task.terms and [
        task.terms.values(others | dict(zip(names, arguments))) for arguments in cases.values()
    ]
    return describe(task.outputs[k], mine[k], right[k], list(cases), terms, task.rtol)


def _squeezed(arrays):
    """Return the arrays without axes of length 1: a mistake is the same with keepdims."""
    return [a.squeeze() for a in arrays]


def _known_mistake(k, mine, right, known, done, rtol):
    """Return the mistake that explains output k, its output, and whether it explains all outputs.

    If none does so in every case: the only one that explains the first case that is wrong, for two
    mistakes at once of which one does not show there. If there is none, None comes first.
    """

    def alike(some, others):
        return all(close(a, b, rtol) for a, b in zip(_squeezed(some), _squeezed(others)))

    fits = []
    for text, theirs in known:
        if alike(mine[k], theirs[k]) and not alike(theirs[k], right[k]):
            whole = all(alike(a, b) for a, b, there in zip(mine, theirs, done) if there)
            fits.append((text, theirs[k], whole))
    if fits:
        return max(fits, key=lambda fit: fit[2])
    bad = _first_wrong(mine[k], right[k], rtol)
    if right[k][bad].size > 1 and np.all(np.isfinite(mine[k][bad])):  # one number proves little
        found = {
            text: theirs[k] for text, theirs in known if close(mine[k][bad], theirs[k][bad], rtol)
        }
        if len(found) == 1:
            return *found.popitem(), False
    return None, None, False


def _type_trouble(mine, right):
    for a, b in zip(mine, right):
        if a.dtype.kind == "c" != b.dtype.kind:
            return "complex numbers where real ones are asked."
        if a.dtype.kind == b.dtype.kind == "f" and a.dtype != b.dtype:
            return f"right, but {a.dtype}; the input is {b.dtype}."
    return None
