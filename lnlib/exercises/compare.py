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
        kind = "array of objects" if isinstance(value, np.ndarray) else type(value).__name__
        raise BadResult(f"returns for {name} a value of type {kind}, not numbers")
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

    def alike(some, others):
        """Compare without axes of length 1: a mistake is the same with keepdims."""
        return same([a.squeeze() for a in some], [b.squeeze() for b in others])

    right, mine = run(task.right), list(zip(*results))
    done = [not any(value is None for value in values) for values in mine]
    known = {}
    for text, mistake in task.mistakes.items():
        try:
            known[text] = run(mistake)
        except Exception:  # some inputs stop some mistakes
            continue
    remarks = {}
    for k, output in enumerate(task.outputs):
        if not done[k]:
            remarks[output] = NOT_DONE
        elif same(mine[k], right[k]):
            remarks[output] = _type_trouble(mine[k], right[k])
        elif alike(mine[k], right[k]):
            remarks[output] = _shape_trouble(mine[k], right[k])
        else:
            fits = [  # mistakes that explain this output, those first that explain all others too
                (not all(alike(a, b) for a, b, there in zip(mine, theirs, done) if there), text)
                for text, theirs in known.items()
                if alike(mine[k], theirs[k]) and not alike(theirs[k], right[k])
            ]
            if fits:
                text = min(fits, key=lambda fit: fit[0])[1]
                found = same(mine[k], known[text][k]) or _shape_trouble(mine[k], right[k])
                remarks[output] = text if found in (True, None) else f"{text} Also: {found}"
            else:
                remarks[output] = _describe(task, output, cases, mine[k], right[k])
            swapped = [
                task.outputs[j]
                for j in range(len(right))
                if done[j] and same(mine[k], right[j]) and not same(mine[j], right[j])
            ]
            if swapped:
                asked = ", ".join(task.outputs)
                remarks[output] = f"this is what {swapped[0]} should be; the order is {asked}."
    return remarks


def _shape_trouble(mine, right):
    """Say what is wrong with the shape, or return None."""
    for a, b in zip(mine, right):
        if a.shape != b.shape:
            kept = b.squeeze().shape == a.squeeze().shape and a.ndim < b.ndim
            hint = " An axis of length 1 is missing: keepdims=True keeps it." if kept else ""
            return f"shape {a.shape} where {b.shape} is asked.{hint}"
    return None


def _type_trouble(mine, right):
    for a, b in zip(mine, right):
        if a.dtype.kind == "c" != b.dtype.kind:
            return "complex numbers where real ones are asked."
        if b.dtype == np.float32 != a.dtype:
            return f"right, but {a.dtype}; the input is float32."
    return None


def _describe(task, output, cases, mine, right):
    """Say how an output differs from the right one."""
    labels, rtol = list(cases), task.rtol
    if trouble := _shape_trouble(mine, right):
        return trouble
    if not any(map(np.any, mine)):
        return "zero everywhere."
    factors = [np.vdot(b, a) / np.vdot(b, b) for a, b in zip(mine, right)]
    if np.all(np.isfinite(factors)) and all(
        close(a, c * b, rtol) for a, b, c in zip(mine, right, factors)
    ):
        if np.allclose(factors, -1):
            return "right, but for its sign."
        if np.allclose(factors, factors[0]):
            return f"right, but for a factor: {factors[0]:.4g} times what is asked."
        # a single number always is some multiple of the right one
        if any(b.ndim for b in right) and not np.any(np.isclose(factors, 1)):
            listed = ", ".join(f"{c:.4g} for {label}" for label, c in zip(labels, factors))
            return f"right, but for a factor: {listed}."
    if output in task.terms and (told := _as_sum(task.terms[output], cases, mine, right)):
        return told
    fits = [close(a, b, rtol) for a, b in zip(mine, right)]
    passed = [label for label, fit in zip(labels, fits) if fit]
    bad = fits.index(False)
    a, b = mine[bad], right[bad]
    text = f"right for {', for '.join(passed)}, but for {labels[bad]}"
    text = text if passed else f"for {labels[bad]}"
    if not b.ndim:
        return f"{text}: {_told_apart(a[()], b[()])}"
    size = np.abs(b).max(axis=-1, keepdims=True, initial=0)
    error = np.abs(a - b) / np.where(size > 0, size, 1)
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = f"{output}[{', '.join(map(str, at))}]"
    told = f"{text} (shape {b.shape}) the largest error is at {place}: {_told_apart(a[at], b[at])}"
    if error[at] < 1e-5:
        told += (
            f" All errors are below {10 ** np.ceil(np.log10(error[at])):.0e} of the row's largest."
        )
        told += " Was something rounded to float32, or an eps added?" if error[at] > 1e-9 else ""
    return told


def _told_apart(a, b):
    """Write two numbers with as many digits as it takes to see that they differ."""
    a = 0.0 if abs(a) <= 1e-12 * abs(b) else a
    texts = ((f"{a:.{digits}g}", f"{b:.{digits}g}") for digits in (4, 8, 12, 17))
    mine, right = next((pair for pair in texts if pair[0] != pair[1]), (a, b))
    return f"{mine} where {right} is right."


def _as_sum(terms, cases, mine, right):
    """Say which sum of the exercise's terms an output is and what is wrong with it, or None."""
    groups = [terms(*arguments) for arguments in cases.values()]
    one, other = (_fit(groups, values) for values in (mine, right))
    if one is None or one == other:
        return None
    (front, factors), (right_front, right_factors) = one, other
    written = " ".join(
        f"{'-' if f < 0 else '+'} {'' if abs(f) == 1 else f'{abs(f):g} '}{name}"
        for name, f in factors.items()
    )
    differ = [name for name, f in factors.items() if right_factors.get(name) != f]
    differ += ["what stands in front"] * (front != right_front)
    missing = len(right_factors.keys() - factors.keys())
    text = f"it is {front}({written.removeprefix('+ ')})."
    text += f" Not right in this: {', '.join(differ)}." if differ else ""
    return text + (f" Missing: {missing} term{'s' * (missing > 1)}." if missing else "")


def _fit(groups, values):
    """Return front and {term: factor} of a sum that equals values in every case, or None."""
    target = np.concatenate([a.ravel() for a in values])
    for front, names in groups[0].items() if np.all(np.isfinite(target)) else ():
        columns = [
            np.concatenate([group[front][name].ravel() for group in groups]) for name in names
        ]
        matrix = np.transpose(columns)
        size = np.abs(matrix).max(axis=1)  # of each entry: small ones count as much as large ones
        factors = np.linalg.lstsq(matrix / size[:, None], target / size)[0]
        simple = np.round(2 * factors) / 2  # with other multiples one could fit anything
        if np.all(np.abs(matrix @ simple - target) <= 1e-9 * size):
            return front, {name: f for name, f in zip(names, simple.tolist()) if f}
    return None
