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
    return array.astype(np.float64 if array.dtype.kind in "iu" else array.dtype)  # a copy


def close(a, b, rtol):
    """Whether two arrays agree in shape, and to rtol of the largest entry in each row."""
    if a.shape != b.shape:
        return False
    if b.dtype == bool:
        return bool(np.all(a == b))
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
            found = whole or one or _only_one(mine[k], right[k], known, k, task.rtol)
            remarks[output] = (
                found[0] if found else _describe(output, mine[k], right[k], list(cases), task.rtol)
            )
    return remarks


def _only_one(mine, right, known, k, rtol):
    """Return the mistake that alone explains the first array that is wrong, or nothing.

    For two mistakes at once, of which one does not show there; a single number proves too little.
    """
    bad = next(i for i, (a, b) in enumerate(zip(mine, right)) if not close(a, b, rtol))
    if right[bad].size < 2 or not np.all(np.isfinite(mine[bad])):
        return []
    found = [text for text, theirs in known.items() if close(mine[bad], theirs[k][bad], rtol)]
    return found if len(found) == 1 else []


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
    truth = right[0].dtype == bool
    if not truth and not any(map(np.any, mine)):
        return "it is zero everywhere."
    factors = [np.nan if truth else np.vdot(b, a) / np.vdot(b, b) for a, b in zip(mine, right)]
    fits = [close(a, b, rtol) for a, b in zip(mine, right)]
    proportional = all(close(a, c * b, rtol) for a, b, c in zip(mine, right, factors))
    if proportional and np.all(np.isfinite(factors)) and not any(fits):
        if np.allclose(factors, -1):
            return "right, but for its sign."
        if np.allclose(factors, factors[0]):
            return f"right, but for a factor: it is {factors[0]:.4g} times what it should be."
        listed = ", ".join(f"{c:.4g} for shape {a.shape}" for a, c in zip(mine, factors))
        return f"right, but for a factor: {listed}."
    passed = [label for label, fit in zip(labels, fits) if fit]
    bad = fits.index(False)
    a, b = mine[bad], right[bad]
    listed = ", for ".join(passed) if len(passed) < 4 else f"{len(passed)} of {len(fits)} inputs"
    text = f"right for {listed}, but for {labels[bad]}"
    text = text if passed else f"for {labels[bad]}"
    if not b.ndim:
        return f"{text} it is {_shown(a[()], b[()])}."
    size = np.abs(b).max(axis=-1, keepdims=True, initial=0)
    error = np.abs(a - b * 1.0) / np.where(size > 0, size, 1)
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = f"{output}[{', '.join(map(str, at))}]"
    text = f"{text} (shape {b.shape}) the largest error is at {place}: it is "
    return f"{text}{_shown(a[at], b[at], error[at])}."


def _shown(a, b, error=None):
    """Say what a is and what it should be, with four digits or with the error if these agree."""
    if isinstance(b, np.bool_):
        return f"{bool(a) if a in (0, 1) else a}, and should be {b}"
    text, other = f"{a * 1.0:.4g}", f"{b * 1.0:.4g}"
    if text != other:
        return f"{text}, and should be {other}"
    if error is None:
        return f"{text}, which is off by {abs(a - b) / abs(b):.0e} of itself"
    return f"{text}, which is off by {error:.0e} of the largest in its row"
