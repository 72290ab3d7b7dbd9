"""Compare a learner's results with the right ones and with those of the known mistakes."""

import contextlib
import functools
import inspect

import numpy as np

from .describe import Output, all_close, close, describe, joined, keepdims_problem

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
    values = _listed(result, len(names))
    if len(values) != len(names):
        raise BadResult(
            f"returns {len(values)} {'value' if len(values) == 1 else 'values'} where {len(names)} "
            f"{'is' if len(names) == 1 else 'are'} asked: {', '.join(names)}"
        )
    return [_array(value, name) for value, name in zip(values, names)]


def _listed(result, asked):
    """Return a list of the values that a function returned, where so many are asked."""
    if asked == 1 and not isinstance(result, tuple):
        return [result]
    if asked == 1:
        is_one = all(map(np.isscalar, result))  # a tuple of numbers is one value, like a list
        return [list(result)] if is_one else list(result)
    is_stacked = isinstance(result, np.ndarray) and result.ndim and len(result) == asked
    return list(result) if is_stacked or isinstance(result, tuple | list) else [result]


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
        The first of the cases that the remarks are about.
    """
    names = exercise.outputs

    def run(function, which=slice(None)):
        """Return {output: its value in every case, or in those that a slice chooses}."""
        given = list(cases.values())[which]
        return dict(zip(names, zip(*(values_of(function(*one), names) for one in given))))

    right = run(exercise.expected or exercise.right)
    outputs = [
        Output(name, mine, right[name], list(cases), exercise.rtol)
        for name, mine in zip(names, zip(*results))
    ]
    wrong = [output for output in outputs if output.wrong]
    known = _known_mistakes(exercise, run, wrong) if wrong else []
    remarks = {o.name: _remark(o, outputs, known, exercise, cases) for o in outputs}
    begun = [output for output in outputs if len(output.missing) < len(cases)]
    return remarks, min((o.first for o in begun if o.first is not None), default=0)


def _remark(output, outputs, known, exercise, cases):
    """Return RIGHT, NOT_DONE, or what is wrong with one of the outputs."""
    if output.wrong:
        return _what_is_wrong(output, outputs, known, exercise, cases)
    if len(output.missing) == len(cases):
        return NOT_DONE
    if output.missing:
        return f"nothing for {output.labels[output.missing[0]]}: is a return missing?"
    return _type_problem(exercise, output) or RIGHT


def _known_mistakes(exercise, run, wrong):
    """Return [(what is wrong, {output: what who does that gets in every case})]."""
    known = []
    for text, mistake in exercise.mistakes:
        with contextlib.suppress(Exception):  # some inputs stop some mistakes
            if "{}" not in text:
                known.append((text, run(mistake)))
                continue
            for output in wrong:
                if number := _fitted_number(mistake, run, output):
                    theirs = run(functools.partial(mistake, number=number))
                    known.append((text.format(f"{number:.3g}".replace("e-0", "e-")), theirs))
                    break
    return known


def _fitted_number(mistake, run, output):
    """Return the number with which a mistake gives the learner's output, or None.

    The number is found by bisection, from the entry that changes most with it.
    """

    def theirs(number, which=slice(None)):
        return joined(run(functools.partial(mistake, number=number), which)[output.name])

    target, low, high = joined(output.mine), 1e-16, 1e2
    least, most = theirs(low), theirs(high)
    if target.size != least.size or not np.all(np.isfinite(target)):
        return None
    at = np.argmax(np.abs(most - least) / (np.abs(most) + np.abs(least) + 1e-300))
    if not min(least[at], most[at]) < target[at] < max(least[at], most[at]):
        return None
    ends = np.cumsum([array.size for array in output.mine])
    case = np.searchsorted(ends, at, side="right")  # that of the entry: no other is run again
    for _ in range(42):  # then it is known to ten digits
        middle = np.sqrt(low * high)
        there = theirs(middle, slice(case, case + 1))[at - ends[case]]
        below = (there < target[at]) == (least[at] < most[at])
        low, high = (middle, high) if below else (low, middle)
    return low if close(theirs(low), target, 1e-6) else None


def _what_is_wrong(output, outputs, known, exercise, cases):
    """Say what is wrong with an output: another output, a known mistake, or how it differs."""
    for other in outputs:
        if other.wrong and all_close(output.mine, other.right, output.rtol):
            order = ", ".join(exercise.outputs)
            return f"this is what {other.name} should be; the order is {order}."
    text, theirs = _best_known_mistake(output, outputs, known)
    if text:
        problem = keepdims_problem(output.mine[0], theirs[0])
        return f"{text} Also: {problem}" if problem else text
    parameters, others = inspect.signature(exercise.right).parameters, exercise.right.__globals__
    arguments = [others | dict(zip(parameters, values)) for values in cases.values()]
    return describe(output, exercise.terms, arguments)


def _best_known_mistake(output, outputs, known):
    """Return the mistake that explains an output, in words, and its values; or None, None.

    Of several mistakes it is the one that explains most outputs.
    """
    best, most = (None, None), 0
    for text, theirs in known:
        values = theirs[output.name]
        is_mistake = not _alike(values, output.right, output.rtol)
        if is_mistake and _alike(output.mine, values, output.rtol):
            explained = sum(_alike(o.mine, theirs[o.name], o.rtol) for o in outputs)
            if explained > most:
                best, most = (text, values), explained
    return best


def _alike(some, others, rtol):
    """Say if they agree but for axes of length 1: a mistake is the same with keepdims."""
    if any(a is None for a in some):
        return False
    return all_close([a.squeeze() for a in some], [b.squeeze() for b in others], rtol)


def _type_problem(exercise, output):
    """Say if right numbers have another floating-point type than they should, or return None."""
    for a, b in zip(output.mine, output.right):
        kinds = a.dtype.kind + b.dtype.kind
        if not exercise.prepare and set(kinds) <= set("fc") and a.dtype != b.dtype:
            return f"right, but {a.dtype}; the input is {b.dtype}, and so must the result be."
    return None
