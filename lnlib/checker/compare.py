"""Compare a learner's results with the right ones and with those of the known mistakes."""

import contextlib
import functools
import inspect

import numpy as np

from .describe import close, describe, joined, keepdims_problem, where_wrong

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
        The first case in which something is not right.
    """
    names = exercise.outputs

    def run(function):
        """Return {output: its value in every case}."""
        returned = [values_of(function(*arguments), names) for arguments in cases.values()]
        return dict(zip(names, zip(*returned)))

    mine, right = dict(zip(names, zip(*results))), run(exercise.expected or exercise.right)
    missing = {name: [i for i, a in enumerate(mine[name]) if a is None] for name in names}
    wrong = {
        name: [] if missing[name] else where_wrong(mine[name], right[name], exercise.rtol)
        for name in names
    }
    known = _known_mistakes(exercise, run, mine, wrong) if any(wrong.values()) else []
    remarks, first = {}, [bad[0] for bad in wrong.values() if bad]
    for name in names:
        if len(missing[name]) == len(cases):
            remarks[name] = NOT_DONE
        elif missing[name]:
            first.append(missing[name][0])
            remarks[name] = f"nothing for {list(cases)[first[-1]]}: is a return missing?"
        elif wrong[name]:
            remarks[name] = _what_is_wrong(name, exercise, cases, mine, right, known, wrong)
        else:
            remarks[name] = _type_problem(exercise, mine[name], right[name]) or RIGHT
    return remarks, min(first, default=0)


def _known_mistakes(exercise, run, mine, wrong):
    """Return [(what is wrong, {output: what who does that gets in every case})]."""
    known = []
    for text, mistake in exercise.mistakes:
        with contextlib.suppress(Exception):  # some inputs stop some mistakes
            if "{}" not in text:
                known.append((text, run(mistake)))
                continue
            for name in filter(wrong.get, wrong):
                if number := _fitted_number(mistake, run, name, mine[name]):
                    theirs = run(functools.partial(mistake, number=number))
                    known.append((text.format(f"{number:.3g}".replace("e-0", "e-")), theirs))
                    break
    return known


def _fitted_number(mistake, run, name, mine):
    """Return the number with which a mistake gives the learner's output of that name, or None.

    The number is found by bisection, from the entry that changes most with it.
    """

    def output(number):
        return joined(run(functools.partial(mistake, number=number))[name])

    target, low, high = joined(mine), 1e-16, 1e2
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


def _what_is_wrong(name, exercise, cases, mine, right, known, wrong):
    """Say what is wrong with an output: another output, a known mistake, or how it differs."""
    text, theirs = _known_mistake(name, mine, right, known, exercise.rtol)
    for other in filter(wrong.get, wrong):
        if not where_wrong(mine[name], right[other], exercise.rtol):
            return f"this is what {other} should be; the order is {', '.join(exercise.outputs)}."
    if text:
        problem = keepdims_problem(mine[name][0], theirs[0])
        return f"{text} Also: {problem}" if problem else text
    parameters, others = inspect.signature(exercise.right).parameters, exercise.right.__globals__
    arguments = [others | dict(zip(parameters, values)) for values in cases.values()]
    return describe(
        name, mine[name], right[name], list(cases), exercise.rtol, exercise.terms, arguments
    )


def _known_mistake(name, mine, right, known, rtol):
    """Return the mistake that explains an output, in words, and its values; or None, None.

    Of several mistakes it is the one that explains most outputs.
    """

    def alike(some, others):
        """Say if they agree but for axes of length 1: a mistake is the same with keepdims."""
        pairs = zip(some, others)
        return all(a is not None and close(a.squeeze(), b.squeeze(), rtol) for a, b in pairs)

    best, most = (None, None), 0
    for text, theirs in known:
        if alike(mine[name], theirs[name]) and not alike(theirs[name], right[name]):
            explained = sum(alike(mine[output], theirs[output]) for output in mine)
            if explained > most:
                best, most = (text, theirs[name]), explained
    return best


def _type_problem(exercise, mine, right):
    """Say if right numbers have another floating-point type than they should, or return None."""
    for a, b in zip(mine, right):
        kinds = a.dtype.kind + b.dtype.kind
        if not exercise.prepare and set(kinds) <= set("fc") and a.dtype != b.dtype:
            return f"right, but {a.dtype}; the input is {b.dtype}."
    return None
