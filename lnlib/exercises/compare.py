"""Compare a learner's results with the right ones and with those of the known mistakes."""

import inspect

import numpy as np

from .describe import close, describe, keepdims_trouble, where_wrong

RIGHT, NOT_DONE = "right.", "not done yet."


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
        raise BadResult(f"returns for {name} a value of type {type(value).__name__}, not numbers")
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
    remarks : dict of str to str
        For each output: RIGHT, NOT_DONE, or what is wrong.
    first : int
        The first case in which something is not right.
    """

    def run(function):
        """Return, for each output, its value in every case."""
        returned = (function(*arguments) for arguments in cases.values())
        return list(zip(*(values_of(one, task.outputs) for one in returned), strict=True))

    right, mine = run(task.expected or task.right), list(zip(*results))
    done = [not any(value is None for value in values) for values in mine]
    wrong = [there and where_wrong(*both, task.rtol) for there, *both in zip(done, mine, right)]
    known = []  # (what is wrong, the outputs of who does that)
    for text, mistake in task.mistakes if any(wrong) else ():
        try:
            known.append((text, run(mistake)))
        except Exception:  # some inputs stop some mistakes
            continue
    remarks, first = {}, [bad[0] for bad in wrong if bad]
    for k, output in enumerate(task.outputs):
        if wrong[k]:
            remarks[output] = _what_is_wrong(k, task, cases, mine, right, known, wrong)
        elif done[k]:
            remarks[output] = RIGHT if task.prepare else _type_trouble(mine[k], right[k]) or RIGHT
        elif all(value is None for value in mine[k]):
            remarks[output] = NOT_DONE
        else:
            first.append(next(i for i, value in enumerate(mine[k]) if value is None))
            remarks[output] = f"nothing for {list(cases)[first[-1]]}: is a return missing?"
    return remarks, min(first, default=0)


def _what_is_wrong(k, task, cases, mine, right, known, wrong):
    """Return what is wrong with output k: another output, a known mistake, or how it differs."""
    text, theirs, whole = _known_mistake(k, mine, right, known, task.rtol)
    for name, values, bad in zip(task.outputs, right, wrong):
        if bad and not whole and not where_wrong(mine[k], values, task.rtol):
            return f"this is what {name} should be; the order is {', '.join(task.outputs)}."
    if text:
        trouble = keepdims_trouble(mine[k][0], theirs[0])
        return f"{text} Also: {trouble}" if trouble else text
    names, others = inspect.signature(task.right).parameters, task.right.__globals__
    terms = task.terms and [
        task.terms.values(others | dict(zip(names, arguments))) for arguments in cases.values()
    ]
    return describe(task.outputs[k], mine[k], right[k], list(cases), terms, task.rtol)


def _known_mistake(k, mine, right, known, rtol):
    """Return the mistake that explains output k, its output, and whether it explains all outputs.

    Of several, the one that explains most outputs; None comes first if there is none.
    """

    def alike(some, others):
        """Say if they agree but for axes of length 1: a mistake is the same with keepdims."""
        pairs = zip(some, others)
        return all(a is not None and close(a.squeeze(), b.squeeze(), rtol) for a, b in pairs)

    best, most = (None, None), 0
    for text, theirs in known:
        if alike(mine[k], theirs[k]) and not alike(theirs[k], right[k]):
            explained = sum(map(alike, mine, theirs))
            if explained > most:
                best, most = (text, theirs[k]), explained
    return *best, most == len(mine)


def _type_trouble(mine, right):
    for a, b in zip(mine, right):
        if a.dtype.kind in "fc" and b.dtype.kind in "fc" and a.dtype != b.dtype:
            return f"right, but {a.dtype}; the input is {b.dtype}."
    return None
