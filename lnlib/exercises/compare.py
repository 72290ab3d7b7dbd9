"""Compare a learner's results with the right ones and with those of the known mistakes."""

import copy

import numpy as np

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
    values = (result,) if len(names) == 1 and not isinstance(result, tuple) else result
    if not isinstance(values, (tuple, list)) or len(values) != len(names):
        came = len(values) if isinstance(values, (tuple, list)) else 1
        raise BadResult(
            f"returns {came} {'value' if came == 1 else 'values'} where {len(names)} "
            f"{'is' if len(names) == 1 else 'are'} asked: {', '.join(names)}"
        )
    return [_array(value, name) for value, name in zip(values, names)]


def _array(value, name):
    if value is None or value is ...:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise BadResult(f"returns a {type(value).__name__} for {name}, not numbers")
    return array.astype(np.float64 if array.dtype.kind in "biu" else array.dtype)  # a copy


def close(a, b, rtol):
    """Whether two arrays agree in shape, and to rtol of the largest entry in each row."""
    if a.shape != b.shape:
        return False
    size = np.abs(b).max(axis=-1, keepdims=True, initial=0) if b.ndim else np.abs(b)
    agree = (np.abs(a - b) <= rtol * size) | (a == b) | (np.isnan(a) & np.isnan(b))
    return bool(np.all(agree))


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
    dict of str to (str or None)
        For each output: None if it is right, NOT_DONE, or what is wrong.
    """

    def run(function):
        """Return, for each output, its value in every case."""
        return list(
            zip(
                *(values_of(function(*copy.deepcopy(a)), task.outputs) for a in cases.values()),
                strict=True,
            )
        )

    def same(some, others):
        return all(close(a, b, task.rtol) for a, b in zip(some, others))

    right, mine = run(task.right), list(zip(*results))
    done = [not any(value is None for value in values) for values in mine]
    known = {}
    for text, mistake in task.mistakes.items():
        try:
            known[text] = run(mistake)
        except Exception:  # some inputs stop some mistakes
            continue
    whole = [  # mistakes that explain everything there is
        text for text, theirs in known.items() if all(map(same, *_where(done, mine, theirs)))
    ]
    remarks = {}
    for k, output in enumerate(task.outputs):
        if not done[k]:
            remarks[output] = NOT_DONE
        elif same(mine[k], right[k]):
            remarks[output] = _type_trouble(mine[k], right[k])
        else:
            one = [text for text, theirs in known.items() if same(mine[k], theirs[k])]
            found = whole or one
            remarks[output] = (
                found[0] if found else _describe(output, mine[k], right[k], list(cases), task.rtol)
            )
    return remarks


def _where(done, *columns):
    return ([values for values, there in zip(column, done) if there] for column in columns)


def _type_trouble(mine, right):
    for a, b in zip(mine, right):
        if a.dtype.kind == "c" != b.dtype.kind:
            return "it is complex, and should be real."
        if b.dtype == np.float32 != a.dtype:
            return f"right, but {a.dtype}; the input is float32."
    return None


def _describe(output, mine, right, labels, rtol):
    """Say how an output differs from the right one."""
    for a, b in zip(mine, right):
        if a.shape != b.shape:
            kept = b.squeeze().shape == a.squeeze().shape and a.ndim < b.ndim
            hint = " An axis of length 1 is missing: keepdims=True keeps it." if kept else ""
            return f"its shape is {a.shape}, and should be {b.shape}.{hint}"
    if not any(map(np.any, mine)):
        return "it is zero everywhere."
    factors = [np.vdot(b, a) / np.vdot(b, b) for a, b in zip(mine, right)]
    if all(close(a, c * b, rtol) for a, b, c in zip(mine, right, factors)):
        if np.allclose(factors, -1):
            return "right, but for its sign."
        if np.allclose(factors, factors[0]):
            return f"right, but for a factor: it is {factors[0]:.4g} times what it should be."
        listed = ", ".join(f"{c:.4g} for shape {a.shape}" for a, c in zip(mine, factors))
        return f"right, but for a factor: {listed}."
    fits = [close(a, b, rtol) for a, b in zip(mine, right)]
    passed = [label for label, fit in zip(labels, fits) if fit]
    bad = fits.index(False)
    a, b = mine[bad], right[bad]
    where = ", for ".join(passed) if len(passed) < 4 else f"{len(passed)} of {len(fits)} inputs"
    text = f"right for {where}, but for {labels[bad]}"
    text = text if passed else f"for {labels[bad]}"
    if not b.ndim:
        return f"{text} it is {_two(a[()], b[()])}."
    size = np.abs(b).max(axis=-1, keepdims=True, initial=0)
    error = np.abs(a - b) / np.where(size > 0, size, 1)
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = f"{output}[{', '.join(map(str, at))}]"
    return f"{text} (shape {b.shape}) the largest error is at {place}: it is {_two(a[at], b[at])}."


def _two(is_, should_be):
    """Write two numbers with as many digits as it takes to tell them apart."""
    for digits in (4, 8, 12):
        a, b = f"{is_:.{digits}g}", f"{should_be:.{digits}g}"
        if a != b:
            break
    return f"{a}, and should be {b}"
