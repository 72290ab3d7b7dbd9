"""Compare a learner's results with the right ones and with those of the known mistakes."""

import contextlib
import inspect

import numpy as np

from .describe import close, describe, keepdims_problem, where_wrong

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


def compare(exercise, cases, results):
    """Say what is wrong with each output.

    Parameters
    ----------
    exercise : Exercise
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
        return list(zip(*(values_of(one, exercise.outputs) for one in returned), strict=True))

    right, mine = run(exercise.expected or exercise.right), list(zip(*results))
    done = [not any(value is None for value in values) for values in mine]
    wrong = [
        where_wrong(a, b, exercise.rtol) if there else [] for there, a, b in zip(done, mine, right)
    ]
    known = _known_mistakes(exercise, run, mine, wrong) if any(wrong) else []
    remarks, first = {}, [bad[0] for bad in wrong if bad]
    for k, output in enumerate(exercise.outputs):
        if wrong[k]:
            remarks[output] = _what_is_wrong(k, exercise, cases, mine, right, known, wrong)
        elif done[k]:
            same_type = exercise.prepare or not _type_problem(mine[k], right[k])
            remarks[output] = RIGHT if same_type else _type_problem(mine[k], right[k])
        elif all(value is None for value in mine[k]):
            remarks[output] = NOT_DONE
        else:
            first.append(next(i for i, value in enumerate(mine[k]) if value is None))
            remarks[output] = f"nothing for {list(cases)[first[-1]]}: is a return missing?"
    return remarks, min(first, default=0)


def _known_mistakes(exercise, run, mine, wrong):
    """Return [(what is wrong, the outputs of who does that)]."""
    known = []
    for text, mistake in exercise.mistakes:
        with contextlib.suppress(Exception):  # some inputs stop some mistakes
            if "{}" not in text:
                known.append((text, run(mistake)))
                continue
            for k, bad in enumerate(wrong):
                number = _fitted_number(mistake, run, k, mine[k]) if bad else None
                if number:
                    theirs = run(lambda *a, f=mistake, c=number: f(*a, number=c))
                    known.append((text.format(f"{number:.3g}".replace("e-0", "e-")), theirs))
                    break
    return known


def _fitted_number(mistake, run, k, mine):
    """Return the number with which a mistake gives the learner's output k, or None.

    The number is found by bisection, from the entry that changes most with it.
    """

    def output(number):
        values = run(lambda *arguments: mistake(*arguments, number=number))[k]
        return np.concatenate([value.ravel() for value in values])

    target, low, high = np.concatenate([value.ravel() for value in mine]), 1e-16, 1e2
    least, most = output(low), output(high)
    if target.size != least.size or not np.all(np.isfinite(target)):
        return None
    at = np.argmax(np.abs(most - least) / (np.abs(most) + np.abs(least) + 1e-300))
    if not min(least[at], most[at]) < target[at] < max(least[at], most[at]):
        return None
    for _ in range(42):  # then it is known to ten digits
        middle = np.sqrt(low * high)
        below = (output(middle)[at] < target[at]) == (least[at] < most[at])
        low, high = (middle, high) if below else (low, middle)
    return low if close(output(low), target, 1e-6) else None


def _what_is_wrong(k, exercise, cases, mine, right, known, wrong):
    """Return what is wrong with output k: another output, a known mistake, or how it differs."""
    text, theirs, whole = _known_mistake(k, mine, right, known, exercise.rtol)
    for name, values, bad in zip(exercise.outputs, right, wrong):
        if bad and not whole and not where_wrong(mine[k], values, exercise.rtol):
            return f"this is what {name} should be; the order is {', '.join(exercise.outputs)}."
    if text:
        problem = keepdims_problem(mine[k][0], theirs[0])
        return f"{text} Also: {problem}" if problem else text
    names, others = inspect.signature(exercise.right).parameters, exercise.right.__globals__
    arguments = [others | dict(zip(names, values)) for values in cases.values()]
    return describe(
        exercise.outputs[k], mine[k], right[k], list(cases), exercise.rtol,
        exercise.terms, arguments,
    )  # fmt: skip


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


def _type_problem(mine, right):
    for a, b in zip(mine, right):
        if a.dtype.kind in "fc" and b.dtype.kind in "fc" and a.dtype != b.dtype:
            return f"right, but {a.dtype}; the input is {b.dtype}."
    return None
