"""Say in words how an array differs from the right one, where no known mistake explains it."""

import contextlib
import functools
import itertools
from typing import NamedTuple

import numpy as np


class Terms(NamedTuple):
    """What a wrong output may be a sum of: front * (multiples of the terms).

    Attributes
    ----------
    fronts, terms : str
        Python expressions, separated by semicolons, of the exercise's arguments; mean and sum
        are those of each row, with the axis kept.
    names : dict of str to str
        Other names in them -> expressions.
    """

    fronts: str
    terms: str
    names: dict = {}

    def values(self, known):
        """Return {front: {term: array}}; known: the values of all names but `names`."""
        along_rows = {"axis": -1, "keepdims": True}
        known = {f.__name__: functools.partial(f, **along_rows) for f in (np.mean, np.sum)} | known
        for name, text in self.names.items():
            known[name] = eval(text, known)
        fronts, terms = (
            {text.strip(): eval(text.strip(), known) for text in texts.split(";")}
            for texts in (self.fronts, self.terms)
        )
        return {front: {k: f * a for k, a in terms.items()} for front, f in fronts.items()}


def close(a, b, rtol):
    """Whether two arrays agree in shape, and to rtol of the largest entry in each row."""
    if a.shape != b.shape:
        return False
    if b.dtype == bool:
        return bool(np.all(a == b))
    size = np.where(np.isfinite(b), np.abs(b), 0)
    size = size.max(axis=-1, keepdims=True, initial=0) if b.ndim else size
    agree = (np.abs(a - b) <= rtol * size) | (a == b) | (np.isnan(a) & np.isnan(b))
    return bool(np.all(agree))


def where_wrong(some, others, rtol):
    """Return the numbers of the cases in which two outputs are not close."""
    return [i for i, (a, b) in enumerate(zip(some, others)) if not close(a, b, rtol)]


def describe(output, mine, right, labels, terms, rtol):
    """Describe an output that is wrong.

    Parameters
    ----------
    output : str
        Its name.
    mine, right : list of ndarray
        What came and what should have come, in every case.
    labels : list of str
        What is special about each case.
    terms : list of dict, or None
        For each case, front -> {term: array}; see `Terms`.
    rtol : float

    Returns
    -------
    str
    """
    if trouble := _shape_trouble(mine, right, labels):
        return trouble
    wrong, text = where_wrong(mine, right, rtol), None
    if right[0].dtype != bool:
        text = None if any(map(np.any, mine)) else "zero everywhere."
        if len(wrong) == len(mine) and (right[0].ndim or not terms):  # numbers: as a sum is better
            text = text or _as_multiple(mine, right, labels, rtol)
        text = text or (_as_sum(terms, mine, right) if terms else None)
    return text or _largest_error(output, mine, right, labels, wrong, rtol)


def _shape_trouble(mine, right, labels):
    """Say what is wrong with the shape, or return None."""
    wrong = [i for i, (a, b) in enumerate(zip(mine, right)) if a.shape != b.shape]
    if not wrong:
        return None
    a, b = mine[wrong[0]], right[wrong[0]]
    case = "" if len(wrong) == len(mine) else f"for {labels[wrong[0]]} "
    trouble = keepdims_trouble(a, b)
    return f"{case}shape {a.shape} where {b.shape} is asked{f': {trouble}' if trouble else '.'}"


def keepdims_trouble(a, b):
    """Say if a has fewer or more axes of length 1 than b, or return None."""
    if a.ndim == b.ndim or a.squeeze().shape != b.squeeze().shape:
        return None
    if a.ndim < b.ndim:
        return "an axis of length 1 is missing, which keepdims=True keeps."
    return "an axis of length 1 is too many; keepdims=True keeps such axes."


def _factor(a, b, rtol):
    """Return c if a is c times b, else nan."""
    factor = np.vdot(b, a) / np.vdot(b, b)
    return factor if np.isfinite(factor) and close(a, factor * b, rtol) else np.nan


def _as_multiple(mine, right, labels, rtol):
    """Say which multiple of the right output this is in every case, or return None."""
    factors = [_factor(a, b, rtol) for a, b in zip(mine, right)]
    if np.allclose(factors, -1):
        return "right, but for its sign."
    if np.allclose(factors, factors[0]):
        return f"right, but for a factor: {factors[0]:.4g} times what is asked."
    # a single number always is some multiple of the right one
    if np.all(np.isfinite(factors)) and any(b.ndim for b in right):
        listed = ", ".join(f"{c:.4g} for {label}" for label, c in zip(labels, factors))
        return f"right, but for a factor: {listed}."
    return None


def _largest_error(output, mine, right, labels, wrong, rtol):
    """Say which cases are right and where the largest error of the first wrong one is."""
    passed = [label for i, label in enumerate(labels) if i not in wrong]
    a, b, label = mine[wrong[0]], right[wrong[0]], labels[wrong[0]]
    listed = ", for ".join(passed) if len(passed) < 4 else f"{len(passed)} of {len(mine)} inputs"
    text = f"right for {listed}, but for {label}" if passed else f"for {label}"
    if not b.ndim:
        return f"{text}: {differing_digits(a[()], b[()])}"
    factor = np.nan if b.dtype == bool else _factor(a, b, rtol)
    if np.isfinite(factor) and abs(factor - 1) > 1e-3:
        return f"{text} it is {f'{factor:.4g} times what is asked' if factor else 'zero'}."
    size = np.abs(b).max(axis=-1, keepdims=True, initial=0)
    error = np.abs(a - b * 1.0) / np.where(size > 0, size, 1)
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = f"{output}[{', '.join(map(str, at))}]"
    shape = f" (shape {b.shape})" if str(b.shape) not in label else ""
    text += f"{shape} the largest error is at {place}: {differing_digits(a[at], b[at])}"
    if error[at] < 1e-5:
        below = 10 ** np.ceil(np.log10(error[at]))
        text += f" All errors are below {below:.0e} of the row's largest."
        if error[at] > 1e-9 == rtol:  # of formulas in float64
            text += " Was something rounded to float32, an eps added, or another step taken?"
    return text


def differing_digits(a, b):
    """Write two numbers with as many digits as it takes to see that they differ."""
    if isinstance(b, np.bool_):
        shown = bool(a) if a in (0, 1) else f"{a:.4g}"
        return f"{shown} where {b} is right."
    a = 0.0 if abs(a) <= 1e-12 * abs(b) else a
    texts = ((f"{a:.{digits}g}", f"{b:.{digits}g}") for digits in (4, 8, 12, 17))
    mine, right = next((pair for pair in texts if pair[0] != pair[1]), (a, b))
    return f"{mine} where {right} is right."


def _as_sum(terms, mine, right):
    """Say which sum of the exercise's terms an output is and what is wrong with it, or None."""
    front, factors = _fit(terms, mine)
    right_front, right_factors = _fit(terms, right)
    if not factors or factors == right_factors and front == right_front:
        return None
    written = " ".join(
        f"{'-' if f < 0 else '+'} {'' if abs(f) == 1 else f'{abs(f):g} * '}{name}"
        for name, f in factors.items()
    ).removeprefix("+ ")
    text = f"it is {written}." if front == "1" else f"it is {front} * ({written})."
    differ = [
        f"the factor of {name}" if name in right_factors else name
        for name, factor in factors.items()
        if right_factors.get(name) != factor
    ]
    differ += ["what stands in front"] * (front != right_front)
    missing = [name for name in right_factors if name not in factors]
    text += f" Not right in this: {', '.join(differ)}." if differ else ""
    return text + (f" Missing: {', '.join(missing)}." if missing else "")


def _fit(terms, values):
    """Return front and {term: factor} of the shortest sum that equals values; or None, {}."""
    target = np.concatenate([a.ravel() for a in values])
    for front in terms[0] if np.all(np.isfinite(target)) else ():
        columns = {}
        for name in terms[0][front]:
            with contextlib.suppress(ValueError):  # of another shape: no term of this output
                spread = [np.broadcast_to(t[front][name], a.shape) for t, a in zip(terms, values)]
                columns[name] = np.concatenate([a.ravel() for a in spread])
        names, matrix = list(columns), np.reshape(list(columns.values()), (-1, target.size)).T
        size = np.abs(matrix).max(axis=1, initial=1e-300)  # small entries count as much as large
        goal, matrix = target / size, matrix / size[:, None]
        if np.any(np.abs(matrix @ np.linalg.lstsq(matrix, goal)[0] - goal) > 1e-6):
            continue  # no sum at all
        sums = (itertools.combinations(range(len(names)), n) for n in range(1, 5))
        for some in itertools.chain.from_iterable(sums):
            simple = np.round(2 * np.linalg.lstsq(matrix[:, some], goal)[0]) / 2  # others fit all
            if np.all(simple) and np.all(np.abs(matrix[:, some] @ simple - goal) <= 1e-9):
                return front, {names[k]: factor for k, factor in zip(some, simple.tolist())}
    return None, {}
