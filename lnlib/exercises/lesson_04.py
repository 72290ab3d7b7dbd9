"""Lesson 04: float32 rows on which every careless formula loses digits, on every machine."""

import math

import numpy as np

from ..checks import row_mean
from ..layernorm import layer_norm_forward
from ..variance import naive
from .checker import exercise
from .data import layer


def _mean(a):
    return a.mean(axis=-1)  # (...,)


def _far(seed, offset, grid, dtype=np.float32, spread=4):
    """Return rows (2, 3, 7) whose means lie 3/7 of a grid step from the next float of dtype.

    So the mean cannot be stored exactly, in whatever order it is added up.
    """
    rng = np.random.default_rng(seed)
    steps = np.rint(spread / grid * rng.standard_normal((2, 3, 7)))  # (2, 3, 7)
    steps[..., -1] += 3 - steps.sum(axis=-1) % 7
    sign = rng.choice([-1, 1], (2, 3, 1))
    middle = np.rint(offset * rng.uniform(1, 1.2, (2, 3, 1)) / grid)
    return ((sign * middle + steps) * grid).astype(dtype)  # exact


def _x(seed, *shape):
    return layer(seed, *shape).x.astype(np.float32)


def _keeps_dtype(cases):
    """Return a judge of a function whose results should have the dtype of what comes in."""

    def judge(function):
        for label, arguments in cases().items():
            asked = {np.asarray(a).dtype for a in arguments if isinstance(a, np.ndarray)}
            results = function(*arguments)
            for result in results if isinstance(results, tuple) else (results,):
                got = np.asarray(result).dtype
                if got.kind == "f" and got not in asked:
                    return f"The numbers are right, but for {label} the result is {got}."

    return judge


def _shifted(of):
    """Return a formula of x and of x less the first entry of its row."""
    return lambda x: of(x, x - x[..., :1])


def _offsets():
    return {
        "ordinary rows": (_x(41, 2, 3, 5),),
        "another shape": (_x(42, 4, 2, 9),),
        "rows with an offset of 1e7 and a spread of 4": (_far(43, 1e7, 1),),
        "float64 rows with an offset of 1e15": (_far(44, 9e14, 1 / 8, np.float64, spread=0.5),),
    }


@exercise(
    "variance",
    _offsets,
    {
        "nothing is shifted: the naive formula, and at an offset all digits cancel.": naive,
        "two-pass, without a shift: at an offset the mean's own rounding enters squared.": (
            lambda x: x.var(axis=-1)
        ),
        "the mean of the squared distances to the first entry. Subtract the square of their "
        "mean.": _shifted(lambda x, d: _mean(d * d)),
        "the second mean is that of x; take it of the shifted x.": (
            _shifted(lambda x, d: _mean(d * d) - _mean(x) ** 2)
        ),
        "the squares are those of x; take those of the shifted x.": (
            _shifted(lambda x, d: _mean(x * x) - _mean(d) ** 2)
        ),
        "the second mean is not squared.": _shifted(lambda x, d: _mean(d * d) - _mean(d)),
        "divided by D - 1; the layer divides by D.": (
            _shifted(lambda x, d: d.var(axis=-1, ddof=1))
        ),
        "the standard deviation, not the variance.": _shifted(lambda x, d: d.std(axis=-1)),
        "shifted by the first row of each sequence; each row has its own first entry.": (
            lambda x: naive(x - x[:, :1])
        ),
        "one shift for all rows; each row has its own first entry.": lambda x: naive(
            x - x[0, 0, 0]
        ),
        "shifted by the first sequence; each row has its own first entry.": lambda x: naive(
            x - x[:1]
        ),
        "the second mean is one of the whole array; each row has its own.": (
            _shifted(lambda x, d: _mean(d * d) - d.mean() ** 2)
        ),
        "the second mean is a sum: divide by D before you square.": (
            _shifted(lambda x, d: _mean(d * d) - d.sum(axis=-1) ** 2)
        ),
    },
    rtol=1e-4,
    judge=_keeps_dtype(_offsets),
)
def shifted_variance(x):
    """Return the variance of each row, (B, T), from one pass over x - x[..., :1]."""
    d = x.astype(np.float64) - x[..., :1]  # (B, T, D), exact
    return (_mean(d * d) - _mean(d) ** 2).astype(x.dtype)


def _parts():
    """Return {what is special: (n_a, mean_a, m2_a, n_b, mean_b, m2_b)}, for four rows."""

    def split(seed, n_a, n_b, offset=0.7):
        rows = offset + np.random.default_rng(seed).standard_normal((4, n_a + n_b))
        rows[:, n_a:] += np.array([[0.5], [-0.8], [1.1], [2.0]])  # the means differ
        parts = rows[:, :n_a], rows[:, n_a:]
        return tuple(v for p in parts for v in (p.shape[1], _mean(p), p.var(axis=-1) * p.shape[1]))

    return {
        "parts of 5 and 11 entries": split(44, 5, 11),
        "parts of 12 and 3 entries": split(45, 12, 3),
        "a part of 9 and a single new entry": split(46, 9, 1),
        "means near 1e7, where squares of means cancel (square their difference)": split(
            47, 6, 10, offset=1e7
        ),
    }


def _merged(mean_of=None, m2_of=None):
    """Return a mistake in one place: mean_of(n_a, mean_a, n_b, mean_b) or m2_of(..., delta)."""

    def merge(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
        n, delta = n_a + n_b, mean_b - mean_a
        mean = mean_of(n_a, mean_a, n_b, mean_b) if mean_of else mean_a + delta * n_b / n
        m2 = m2_a + m2_b + delta**2 * n_a * n_b / n
        return n, mean, m2_of(n_a, m2_a, n_b, m2_b, delta) if m2_of else m2

    return merge


def _merged_naively(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
    n, mean, _ = _merged()(n_a, mean_a, m2_a, n_b, mean_b, m2_b)
    return n, mean, m2_a + m2_b + n_a * mean_a**2 + n_b * mean_b**2 - n * mean**2


@exercise(
    "n mean m2",
    _parts,
    {
        "the two means count the same, though the parts have different lengths.": (
            _merged(lambda n, a, k, b: (a + b) / 2)
        ),
        "the weights have changed places: the longer part pulls harder.": (
            _merged(lambda n, a, k, b: (k * a + n * b) / (n + k))
        ),
        "the sign of the correction: from mean_a it goes towards mean_b.": (
            _merged(lambda n, a, k, b: a - (b - a) * k / (n + k))
        ),
        "the means differ, which adds to the squares: a term with (mean_b - mean_a)**2 is "
        "missing, or its square is.": _merged(m2_of=lambda n, a, k, b, d: a + b),
        "(mean_b - mean_a)**2 has no weight: every entry moves to the common mean.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2)
        ),
        "the weight of (mean_b - mean_a)**2 is n_a n_b, not yet divided by n.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2 * n * k)
        ),
        "the term with (mean_b - mean_a)**2 is that of an average; m2 is a sum.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2 * n * k / (n + k) ** 2)
        ),
        "Welford's step for one new entry: n_b new ones count n_b times.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2 * n / (n + k))
        ),
        "only part b moves to the common mean; part a does, too.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + k * (d * n / (n + k)) ** 2)
        ),
        "mean_b - mean_a is not squared.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d * n * k / (n + k))
        ),
        "(mean_a - mean)**2 and (mean_b - mean)**2 have no weights: n_a and n_b entries move.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2 * (n * n + k * k) / (n + k) ** 2)
        ),
        "the weights n_a and n_b have changed places: part a moves n_a times.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2 * (n**3 + k**3) / (n + k) ** 2)
        ),
        "both parts are weighted with n; n_a and n_b entries move.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b + d**2 * (n * n + k * k) / (n + k))
        ),
        "the term with the means has the wrong sign: moving the mean adds squares.": (
            _merged(m2_of=lambda n, a, k, b, d: a + b - d**2 * n * k / (n + k))
        ),
        "m2_a and m2_b are taken for variances; they are sums already.": (
            _merged(m2_of=lambda n, a, k, b, d: n * a + k * b + d**2 * n * k / (n + k))
        ),
        "m2_a and m2_b are divided; they are the sums that are asked.": (
            _merged(m2_of=lambda n, a, k, b, d: a / n + b / k + d**2 * n * k / (n + k))
        ),
        "divided by n, which makes it the variance.": (
            _merged(m2_of=lambda n, a, k, b, d: (a + b + d**2 * n * k / (n + k)) / (n + k))
        ),
        "squares of the means are subtracted from one another: near 1e7 the digits cancel. Square "
        "the difference.": _merged_naively,
    },
    rtol=1e-8,
    judge=_keeps_dtype(_parts),
)
def merge_parts(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
    """Return n, mean and m2, the sum of squares about the mean, of two parts together."""
    return _merged()(n_a, mean_a, m2_a, n_b, mean_b, m2_b)


def _between_large_rows(large, last, dtype):
    """Return (2002, 3): all but the first row and last times it are too small to be added to it."""
    values = np.random.default_rng(48).uniform(0.25, 0.45, (2002, 3))  # (2002, 3)
    first = (large * np.array([1.1, -1.4, 1.3])).astype(dtype)  # (3,)
    values *= np.spacing(first)  # less than half an ulp
    values[0], values[-1] = first, last * first
    return values.astype(dtype)


def _loop(step, start=lambda values: 0 * values[0]):
    """Return a sum row by row: (total, excess) = step(total, excess, row)."""

    def add_up(values):
        total = start(values)  # (D,)
        excess = 0 * total  # (D,)
        for row in values:
            total, excess = step(total, excess, row)
        return total

    return add_up


def _kahan(total, excess, row):
    y = row - excess
    t = total + y
    return t, (t - total) - y


def _told_apart(function):
    """Say if float64 rows are added up plainly: then float32 rows were, in float64."""
    values = _between_large_rows(2.0**50, -1, np.float64)  # (2002, 3), plainly added up to 0
    exact = np.array([math.fsum(column) for column in values.T])  # (3,)
    plain = _loop(lambda total, excess, row: (total + row, excess))(values)  # (3,)
    if np.all(np.abs(function(values) - plain) < 0.1 * np.abs(plain - exact)):
        return (
            "The numbers are right, by a wider type: float64 rows, for which there is none, would "
            "lose their digits. Keep the dtype, and carry along what each addition loses."
        )
    return None


@exercise(
    "total",
    lambda: {
        "a few rows": (_x(49, 6, 4),),
        "2000 small rows between two large ones": (_between_large_rows(2.0**20, 0.8, np.float32),),
    },
    {
        "the plain running sum: what an addition loses must be given to the next one. (If you do, "
        "is it always 0? Then look at the parentheses.)": (
            _loop(lambda total, excess, row: (total + row, excess))
        ),
        "the loss has the wrong sign: what was lost is lost twice.": (
            _loop(lambda total, excess, row: _kahan(total, -excess, row))
        ),
        "the loss is measured against the row; what was to be added is the row with the last loss "
        "made good.": _loop(
            lambda total, excess, row: (
                total + (row - excess),
                (total + (row - excess) - total) - row,
            )
        ),
        "the old total is needed after the addition, to find out what was lost.": (
            _loop(lambda total, excess, row: (total + (row - excess), -(row - excess)))
        ),
        "the losses are added up, and made good at each step too: count each of them once.": (
            _loop(
                lambda total, excess, row: (
                    total + (row - excess),
                    excess + _kahan(total, excess, row)[1],
                )
            )
        ),
        "only the first row: is the return inside the loop?": lambda values: values[0],
        "the last row is missing.": lambda values: _loop(_kahan)(values[:-1]),
        "the first row is missing.": lambda values: _loop(_kahan)(values[1:]),
        "only the last row: the new total is never kept (total = t).": lambda values: values[-1],
        "the first row is counted twice.": _loop(_kahan, start=lambda values: values[0]),
        "each row is added up; dgamma adds up the rows.": lambda values: values.sum(axis=-1),
        "one number; dgamma has one for each column.": lambda values: _loop(_kahan)(values).sum(),
    },
    rtol=5e-7,
    judge=_told_apart,
)
def compensated_sum(values):
    """Return the sum of the rows, (D,), in the dtype of values and to about one ulp."""
    return _loop(_kahan)(values.astype(np.float64)).astype(values.dtype)


def _power_of_two(top):
    return np.ldexp(top.dtype.type(1), np.frexp(top)[1])  # shape of top


def _largest(x, axis=-1):
    return np.abs(x).max(axis=axis, keepdims=True)  # (B, T, 1)


def _normalised(
    scale=lambda x: _power_of_two(_largest(x)), again=True, var=lambda xc: row_mean(xc * xc)
):
    """Return x_hat as a function of x, with what can be forgotten."""

    def x_hat(x):
        x = x / scale(x)  # (B, T, D)
        xc = x - row_mean(x)  # (B, T, D)
        xc = xc - row_mean(xc) if again else xc
        return xc / np.sqrt(var(xc))

    return x_hat


def _balanced(size):
    """Return rows (2, 3, 5) that begin with 0, and in which every entry has its opposite."""
    half = np.float32(size) * _x(56, 2, 3, 2)  # (2, 3, 2)
    return np.concatenate([0 * half[..., :1], half, -half[..., ::-1]], axis=-1)


def _ranges():
    sizes = 10.0 ** np.array([-30, 30, 0, -12, 25, 3])
    x, large = _x(50, 2, 3, 5), -np.float32(1e30) * np.abs(_x(51, 2, 3, 5))
    large[..., 2] = 1  # the largest entry, and not the largest in size
    return {
        "ordinary rows": (x,),
        "rows near -1e30, whose squares overflow": (large,),
        "rows near 1e-30, whose squares are 0": (np.float32(1e-30) * _x(52, 2, 4, 3),),
        "rows from 1e-30 to 1e30 in one array": (x * sizes.reshape(2, 3, 1).astype(np.float32),),
        "an offset of a million spreads": (_far(53, 8e5, 1 / 16, spread=0.8),),
        "rows near 1e30 that begin with 0 and have mean 0": (_balanced(1e30),),
        "rows near 1e-30 that begin with 0 and have mean 0": (_balanced(1e-30),),
        "float64 rows near 1e200": (1e200 * layer(54, 2, 3, 5).x,),
        "float64 rows with an offset of 1e14 spreads": (_far(55, 1.1e14, 1 / 64, np.float64, 1),),
    }


@exercise(
    "x_hat",
    _ranges,
    {
        "the textbook's: neither scaled nor centred again.": _normalised(np.ones_like, again=False),
        "not scaled: squares leave the range. Divide each row by a power of two.": (
            _normalised(np.ones_like)
        ),
        "centred once: what the rounding of the mean left over is still in every entry.": (
            _normalised(again=False)
        ),
        "centred once; the variance is corrected for it, but x_hat is not.": _normalised(
            again=False, var=lambda xc: row_mean(xc * xc) - row_mean(xc) ** 2
        ),
        "divided by the largest entry itself: that rounds, and at an offset the digits are gone. "
        "A power of two does not round.": (_normalised(_largest)),
        "one scale for the whole array; each row needs its own.": (
            _normalised(lambda x: _power_of_two(_largest(x, axis=None)))
        ),
        "scaled by the largest entry; the largest in size may be negative (np.abs).": (
            _normalised(lambda x: _power_of_two(x.max(axis=-1, keepdims=True)))
        ),
        "scaled by the smallest of the |x|; take the largest.": (
            _normalised(lambda x: _power_of_two(np.abs(x).min(axis=-1, keepdims=True)))
        ),
        "scaled by the first entry, which may be 0 or small; take the largest |x| of the row.": (
            _normalised(lambda x: _power_of_two(np.abs(x[..., :1])))
        ),
        "scaled by the mean, which may be 0 or small; take the largest |x| of the row.": (
            _normalised(lambda x: _power_of_two(np.abs(row_mean(x))))
        ),
        "multiplied by the power of two, where the row must be divided by it.": (
            _normalised(lambda x: 1 / _power_of_two(_largest(x)))
        ),
        "mean and variance of the whole array; each row has its own.": lambda x: (
            (x - x.mean()) / x.std()
        ),
        "the root is missing: divided by the variance.": (
            _normalised(var=lambda xc: row_mean(xc * xc) ** 2)
        ),
        "every entry has a scale of its own; all entries of a row must share one.": (
            _normalised(_power_of_two)
        ),
        "the scale is put back at the end: x_hat does not have it.": (
            lambda x: _normalised()(x) * _power_of_two(_largest(x))
        ),
        "1e-5 is added to the variance; here eps is 0.": (
            _normalised(var=lambda xc: row_mean(xc * xc) + xc.dtype.type(1e-5))
        ),
        "divided by D - 1; the layer divides by D.": (
            _normalised(var=lambda xc: xc.var(axis=-1, ddof=1, keepdims=True))
        ),
    },
    rtol=5e-6,
    judge=_keeps_dtype(_ranges),
)
def robust_x_hat(x):
    """Return the normalised rows, (B, T, D), in the dtype of x, with eps = 0."""
    one = np.ones(x.shape[-1])  # (D,)
    _, cache = layer_norm_forward(x.astype(np.float64), one, 0 * one, eps=0.0)
    return cache.x_hat.astype(x.dtype)
