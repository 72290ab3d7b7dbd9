"""Say in words how an array differs from the right one, where no known mistake explains it."""

import contextlib
import functools
import itertools
import math
from dataclasses import dataclass
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
    factors : dict of str to str
        By what each row may be multiplied by mistake, in words -> expressions.
    row_factor : str
        What a factor that differs from row to row points to.
    """

    fronts: str = ""
    terms: str = ""
    names: dict = {}
    factors: dict = {}
    row_factor: str = "what a row is multiplied or divided by is not right."

    def evaluate(self, arguments):
        """Return {front: {term: front * term}} and {words: factor}, all of them arrays.

        Parameters
        ----------
        arguments : dict
            The values of all names but `names`.
        """
        rows = {"axis": -1, "keepdims": True}
        known = {"mean": lambda a: np.mean(a, **rows), "sum": lambda a: np.sum(a, **rows)}
        known |= arguments
        for name, text in self.names.items():
            known[name] = eval(text, known)

        def values(texts):
            return {text.strip(): eval(text.strip(), known) for text in texts.split(";") if text}

        fronts, terms = values(self.fronts), values(self.terms)
        sums = {front: {k: f * a for k, a in terms.items()} for front, f in fronts.items()}
        return sums, {words: eval(text, known) for words, text in self.factors.items()}


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


def joined(arrays):
    """Return all entries of some arrays, one after the other."""
    return np.concatenate([array.ravel() for array in arrays])


def all_close(some, others, rtol):
    """Whether the arrays of two lists are close, each to its partner."""
    return all(close(a, b, rtol) for a, b in zip(some, others))


@dataclass
class Output:
    """What a function returned under one name, in every case.

    Attributes
    ----------
    name : str
    mine, right : sequence of ndarray
        What came, None where nothing did, and what should have come.
    labels : list of str
        What is special about each case.
    rtol : float
    """

    name: str
    mine: tuple
    right: tuple
    labels: list
    rtol: float

    @functools.cached_property
    def missing(self):
        """The numbers of the cases in which nothing came."""
        return [i for i, a in enumerate(self.mine) if a is None]

    @functools.cached_property
    def wrong(self):
        """The numbers of the cases in which it is wrong; none if anything is missing."""
        cases = () if self.missing else enumerate(zip(self.mine, self.right))
        return [i for i, (a, b) in cases if not close(a, b, self.rtol)]

    @functools.cached_property
    def misshapen(self):
        """The numbers of the cases in which its shape is wrong."""
        return [i for i in self.wrong if self.mine[i].shape != self.right[i].shape]

    @property
    def first(self):
        """The number of the case that a remark on this output is about; None if all is right."""
        return next(iter(self.misshapen or self.wrong or self.missing), None)


def describe(output, terms, arguments):
    """Describe an output that is wrong.

    Parameters
    ----------
    output : Output
    terms : Terms
    arguments : list of dict
        For each case, the values of the names in terms.

    Returns
    -------
    str
    """
    if problem := _shape_problem(output):
        return problem
    is_bool = output.right[0].dtype == bool
    causes = () if is_bool else _causes(output, terms, arguments)
    return next(filter(None, causes), None) or _largest_error(output)


def _causes(output, terms, arguments):
    """Yield what the cause may be in words, the simplest first; None for what it is not."""
    sums, factors = zip(*map(terms.evaluate, arguments))
    yield None if any(map(np.any, output.mine)) else "zero everywhere."
    if output.right[0].ndim or not terms.terms:  # of single numbers, a sum says more
        yield _as_named_factor(output, factors)
        if len(output.wrong) == len(output.mine):
            yield _as_multiple(output)
        yield _as_multiples_of_rows(output, terms.row_factor)
    yield _as_sum(output, sums)


def _shape_problem(output):
    """Say what is wrong with the shape, or return None."""
    wrong, first = output.misshapen, output.first
    if not wrong:
        return None
    a, b = output.mine[first], output.right[first]
    case = "" if len(wrong) == len(output.mine) else f"for {output.labels[first]}, "
    problem = keepdims_problem(a, b)
    return f"{case}shape {a.shape} where {b.shape} is asked{f': {problem}' if problem else '.'}"


def keepdims_problem(a, b):
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


def _as_named_factor(output, factors):
    """Say which of the exercise's factors the right output is multiplied by, or return None."""
    for words in factors[0]:
        with contextlib.suppress(ValueError):  # shapes that do not fit
            products = [b * values[words] for b, values in zip(output.right, factors)]
            is_factor = not all_close(products, output.right, output.rtol)
            if is_factor and all_close(output.mine, products, output.rtol):
                return f"right, but for a factor: {words} times what is asked."
    return None


def _as_multiple(output):
    """Say which multiple of the right output this is in every case, or return None."""
    factors = [_factor(a, b, output.rtol) for a, b in zip(output.mine, output.right)]
    if np.allclose(factors, -1):
        return "right, but for its sign."
    if np.allclose(factors, factors[0]):
        return f"right, but for a factor: {_digits(factors[0], 1)} times what is asked."
    # a single number always is some multiple of the right one
    if np.all(np.isfinite(factors)) and any(b.ndim for b in output.right):
        listed = ", ".join(f"{_digits(c, 1)} for {k}" for k, c in zip(output.labels, factors))
        return f"right, but for a factor (yours over what is asked): {listed}."
    return None


def _as_multiples_of_rows(output, hint):
    """Say between what the factors of the rows lie, if each row is a multiple, or return None."""
    factors = []
    for a, b in zip(output.mine, output.right):
        if b.ndim < 2 or b.shape[-1] < 2:  # one number always is some multiple of another
            return None
        factor = np.sum(a * b, axis=-1, keepdims=True) / np.sum(b * b, axis=-1, keepdims=True)
        if not np.all(np.isfinite(1 / factor)) or not close(a, factor * b, output.rtol):
            return None
        factors += [factor.min(), factor.max()]
    least, most = (_digits(c, 1) for c in (min(factors), max(factors)))
    return f"right, but for a factor in each row, from {least} to {most}: {hint}"


def _largest_error(output):
    """Say which cases are right and where the largest error of the first wrong one is."""
    text, first = _where_it_fails(output), output.wrong[0]
    a, b, label = output.mine[first], output.right[first], output.labels[first]
    if not b.ndim:
        return f"{text}: {differing_digits(a[()], b[()])}"
    factor = np.nan if b.dtype == bool else _factor(a, b, output.rtol)
    if np.isfinite(factor) and abs(factor - 1) > 1e-3:
        return f"{text} it is {f'{factor:.4g} times what is asked' if factor else 'zero'}."
    size = np.abs(b).max(axis=-1, keepdims=True, initial=0)
    error = np.abs(a - b * 1.0) / np.where(size > 0, size, 1)
    at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    place = f"{output.name}[{', '.join(map(str, at))}]"
    shape = f" (shape {b.shape})" if str(b.shape) not in label else ""
    text += f"{shape} the largest error is at {place}: {differing_digits(a[at], b[at])}"
    return text + _how_small(error[at], output.rtol)


def _where_it_fails(output):
    """Name the cases that are right, unless they are many, and the first wrong one."""
    labels, wrong = output.labels, output.wrong
    passed = [label for i, label in enumerate(labels) if i not in wrong]
    listed = ", for ".join(passed) if len(passed) < 4 else f"{len(passed)} of {len(labels)} inputs"
    first = labels[wrong[0]]
    return f"right for {listed}, but for {first}" if passed else f"for {first}"


def _how_small(error, rtol):
    """Say how small the largest error is, and what may have made it; nothing if it is large."""
    if not error < 1e-5:
        return ""
    text = f" All errors are below {10 ** np.ceil(np.log10(error)):.0e} of the row's largest."
    if rtol == 1e-9 and error > rtol:  # a formula in float64
        text += " Was something rounded to float32, a small number added, or another step taken?"
    return text


def differing_digits(a, b):
    """Write two numbers with as many digits as it takes to see that they differ."""
    if isinstance(b, np.bool_):
        shown = bool(a) if a in (0, 1) else f"{a:.4g}"
        return f"{shown} where {b} is right."
    a = 0.0 if abs(a) <= 1e-12 * abs(b) else a
    return f"{_digits(a, b)} where {_digits(b, a)} is right."


def _digits(a, b):
    """Write a with as many digits as it takes to see that it is not b; with 4 if it is b."""
    for digits in (4, 8, 12, 17):
        if f"{a:.{digits}g}" != f"{b:.{digits}g}":
            return f"{a:.{digits}g}"
    return f"{a:.4g}"


class _Sum(NamedTuple):
    """A sum of an exercise's terms, front * (factor * term + ...); None and {} if there is none."""

    front: str | None
    factors: dict

    def __str__(self):
        parts = []
        for term, factor in self.factors.items():
            times = "" if abs(factor) == 1 else f"{abs(factor):g} * "
            parts.append(f"{'-' if factor < 0 else '+'} {times}{term}")
        written = " ".join(parts).removeprefix("+ ")
        return written if self.front == "1" else f"{self.front} * ({written})"


def _as_sum(output, sums):
    """Say which sum of the exercise's terms an output is and what is wrong with it, or None."""
    mine, right = _shortest_sum(sums, output.mine), _shortest_sum(sums, output.right)
    if not mine.factors or mine == right:
        return None
    differ = [
        f"the factor of {term}" if term in right.factors else term
        for term, factor in mine.factors.items()
        if right.factors.get(term) != factor
    ]
    if mine.front != right.front:
        differ.append("what stands in front")
    missing = [term for term in right.factors if term not in mine.factors]
    text = f"yours is {mine}." + (f" Not right in this: {', '.join(differ)}." if differ else "")
    return text + (f" Missing: {', '.join(missing)}." if missing else "")


def _shortest_sum(sums, values):
    """Return the shortest sum that equals an output; its factors are multiples of 1/2.

    Parameters
    ----------
    sums : list of dict
        For each case, {front: {term: front * term}}.
    values : list of ndarray
        The output in every case.
    """
    goal = joined(values)
    for front in sums[0] if np.all(np.isfinite(goal)) else ():
        names, matrix = _columns([fronts[front] for fronts in sums], values)
        size = np.abs(matrix).max(axis=1, initial=1e-300)  # small entries count as much as large
        scaled, scaled_goal = matrix / size[:, None], goal / size
        for some in _possible_sums(scaled, scaled_goal):
            factors, *_ = np.linalg.lstsq(scaled[:, some], scaled_goal)
            factors = np.round(2 * factors) / 2
            if np.all(np.abs(scaled[:, some] @ factors - scaled_goal) <= 1e-9):
                return _Sum(front, {names[k]: f for k, f in zip(some, factors.tolist())})
    return _Sum(None, {})


def _possible_sums(matrix, goal):
    """Yield the columns, as lists of numbers, that may add up to goal: the shortest sums first."""
    factors, *_ = np.linalg.lstsq(matrix, goal)
    if np.any(np.abs(matrix @ factors - goal) > 1e-6):
        return  # not even all columns together can
    columns = range(matrix.shape[1])
    for length in range(1, 5):
        if math.comb(len(columns), length) < 10_000:  # more would take seconds
            yield from map(list, itertools.combinations(columns, length))


def _columns(terms, values):
    """Return the names of the terms that fit an output, and a matrix with a column for each.

    Parameters
    ----------
    terms : list of dict
        For each case, {term: array}.
    values : list of ndarray
        The output in every case.
    """
    columns = {}
    for name in terms[0]:
        with contextlib.suppress(ValueError):  # of another shape: no term of this output
            spread = [np.broadcast_to(case[name], a.shape) for case, a in zip(terms, values)]
            columns[name] = joined(spread)
    return list(columns), np.reshape(list(columns.values()), (-1, joined(values).size)).T
