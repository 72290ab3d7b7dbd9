"""Lesson 04: float32 rows on which every careless formula loses digits, on every machine."""

import numpy as np

from ..checker import Score, Terms, mistakes
from ..variance import naive, two_pass, welford
from .data import far_rows, float32_rows, seven_digits
from .registry import exercise

FAR_FLOAT64 = "float64 rows with an offset of 1e15"
OFFSET_CASES = {
    "ordinary rows": (float32_rows(41, 2, 3, 5),),
    "rows with an offset of 1e7 and a spread of 4": (far_rows(43, 1e7, 1),),
    FAR_FLOAT64: (far_rows(44, 9e14, 1 / 8, np.float64, spread=0.5),),
}


def _judge_passes(function):
    """Say if more digits are left than one pass over x - x[..., :1] in the dtype of x can leave."""
    (far,) = OFFSET_CASES[FAR_FLOAT64]
    if problem := seven_digits([function(far)], [shifted_variance(far)]):
        return problem
    rows = float32_rows(57, 5, 4, 40_000)  # (5, 4, 40000)
    above_and_below = 3e3, -3e3  # the far entry is the row's largest, then its smallest
    if any(_keeps_digits(function, rows, 0, far) for far in above_and_below):
        for k in (1, 2, 19_999, 20_000, -2, -1):
            if not all(_keeps_digits(function, rows, k, far) for far in above_and_below):
                return "Right numbers, but shifted by another entry of each row; take the first."
        if not _keeps_digits(function, rows.astype(np.float64), 0, 3e3):
            return (
                "Right numbers, but by a wider type inside; for float64 rows there may be none. "
                "Stay in the dtype of x."
            )
        return (
            "Right numbers, and with more digits than asked: where the first entry lies far from "
            "the others, the naive formula must lose some. Shift by the first entry, then use the "
            "naive formula in the dtype of x."
        )
    near = np.random.default_rng(58).integers(-2, 3, (5, 4, 4096)).astype(np.float32)
    near[..., 0] = 3000
    near[..., -1] = 0
    near[..., -1] = -near.sum(axis=-1) + 4096  # the mean is 1 exactly, and far from the first
    if np.median(np.abs(function(near) / near.var(axis=-1, dtype=np.float64) - 1)) < 1e-6:
        return (
            "Right numbers, but by two passes over the shifted x, or with sums in a wider type. "
            "Use the naive formula on it, in the dtype of x."
        )


def _keeps_digits(function, rows, k, far):
    x = rows.copy()
    x[..., k] += far  # far from the other entries: a shift by it must lose half of the digits
    few = 1e-5 if x.dtype == np.float32 else 1e-13
    return np.median(np.abs(function(x) / np.var(x, axis=-1, dtype=np.float64) - 1)) < few


WIDE = "computed in float64: float64 rows gain nothing by it. Shift each row first."


def _in_wide(formula):
    return lambda x: formula(x.astype(np.float64)).astype(x.dtype)


@exercise("variance", OFFSET_CASES, widen=True, rtol=4e-6, judge=_judge_passes)
@mistakes("""
    x - x[..., :1] => x  # nothing is shifted: the naive formula; at an offset all digits cancel.
    return np => return np.var(x, axis=-1); np  # two-pass: at an offset the mean's rounding shows.
    - np.mean(d, axis=-1) ** 2 =>  # subtract the square of the mean: these are squared distances.
    np.mean(d, => np.mean(x,  # that is the mean of x; take the shifted x.
    d * d => x * x  # the squares are those of x; take those of the shifted x.
    ) ** 2 => )  # the second mean is not squared.
    d * d, axis=-1) - np.mean(d, axis=-1) ** 2 => d * d, axis=-1) * d.shape[-1] / (d.shape[-1] - 1)
    return => d = d - np.mean(d, axis=-1, keepdims=True); return
        divided by D - 1 (ddof = 1); the layer has D.
    return np => return np.std(d, axis=-1); np  # the standard deviation, not the variance.
    x[..., :1] => x[:, :1]  # shifted by the first row of each sequence, not by its own entry.
    x[..., :1] => x[:1]  # shifted by the rows of the first sequence, not by their own entries.
    return np => return np.abs(np.mean(x * x, axis=-1) - np.mean(x, axis=-1) ** 2); np
        nothing is shifted: at an offset all digits cancel, and no sign brings them back.
    return np => return np.maximum(np.mean(x * x, axis=-1) - np.mean(x, axis=-1) ** 2, 0); np
        nothing is shifted: at an offset all digits cancel, and a 0 for less than 0 hides that.
    x[..., :1] => x[0, 0, 0]  # one shift for all rows; each row has its own first entry.
""")
@mistakes([("Welford's updates: at an offset the running mean is rounded.", welford)])
@mistakes([(WIDE, _in_wide(formula)) for formula in (two_pass, naive)])
def shifted_variance(x):
    """Return each row's variance, (B, T), for x (B, T, D), in the dtype of x."""
    d = x - x[..., :1]  # (B, T, D)
    return np.mean(d * d, axis=-1) - np.mean(d, axis=-1) ** 2


def _merge_cases():
    """Return {what is special: (n_a, mean_a, m2_a, n_b, mean_b, m2_b)}, for four rows."""

    def split(seed, n_a, n_b):
        rows = 0.7 + np.random.default_rng(seed).standard_normal((4, n_a + n_b))
        rows[:, n_a:] += np.array([[0.5], [-0.8], [1.1], [2.0]])  # the means differ
        parts = rows[:, :n_a], rows[:, n_a:]
        return tuple(v for p in parts for v in (len(p.T), p.mean(1), p.var(1) * len(p.T)))

    return {
        "parts of 5 and 11 entries": split(44, 5, 11),
        "a part of 9 and a single new entry": split(46, 9, 1),
    }


def _judge_cancellation(function):
    """Say whether the digits are kept where the means are near 1e7."""
    rows = 1e7 + np.random.default_rng(47).standard_normal((4, 16))  # (4, 16)
    rows[:, 6:] += np.array([[0.5], [-0.8], [1.1], [2.0]])  # the means differ
    parts = [(p.shape[1], p.mean(1), p.var(1) * p.shape[1]) for p in (rows[:, :6], rows[:, 6:])]
    _, mean, m2 = function(*parts[0], *parts[1])
    if not np.allclose(mean, rows.mean(1), rtol=1e-12, atol=0):
        return "Right for small means, but near 1e7 the mean of both parts loses digits."
    if not np.allclose(m2, rows.var(1) * 16, rtol=1e-6, atol=0):
        return (
            "Right for small means, but near 1e7 m2 loses its digits. Numbers as large as the "
            "squares of the means are subtracted there, and their digits cancel. Subtract the "
            "means first, then square the difference."
        )
    return Score("Its digits are kept near 1e7, where squares of means would cancel.")


MERGE_TERMS = Terms(
    "1",
    "mean_a; mean_b; m2_a; m2_b; delta**2; delta**2 * n_a; delta**2 * n_b; delta**2 * n_a * n_b;"
    "delta**2 * n_a * n_b / n; delta**2 * n_a * n_b / n**2; delta**2 * n_a / n; delta * n_b / n;"
    "delta * n_a / n; delta * n_a * n_b / n; n_a * m2_a; n_b * m2_b; n_b * (mean_b - mean_ab) ** 2",
    {"n": "n_a + n_b", "delta": "mean_b - mean_a", "mean_ab": "mean_a + delta * n_b / n"},
)


@exercise("n mean m2", _merge_cases, rtol=1e-8, terms=MERGE_TERMS, judge=_judge_cancellation)
@mistakes("""
    delta * n_b / n => delta * n_a / n  # the weights have changed places: the longer pulls harder.
    delta**2 * n_a * n_b / n => n_a * mean_a**2 + n_b * mean_b**2
        this is the sum of squares about 0; it is asked about the mean of both parts.
    m2_a + m2_b => n_a * m2_a + n_b * m2_b  # m2_a and m2_b are no variances; they are sums.
""")
def merge_parts(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
    """Return n, mean and m2 of both parts. All but n, n_a, n_b have shape (N,)."""
    n = n_a + n_b
    delta = mean_b - mean_a  # (N,)
    mean = mean_a + delta * n_b / n  # (N,)
    return n, mean, m2_a + m2_b + delta**2 * n_a * n_b / n


def _from_the_first(x):
    """Return x without the first entry of its row, (..., D), in float64: exact for these rows."""
    return x.astype(np.float64) - x[..., :1]


def _kept_cases():
    """Return {what is special: (x, mean, rstd)}, as a layer keeps them, in the dtype of x."""

    def kept(x):
        x = x * np.array([[1], [1], [-1]], x.dtype)  # not all means are rounded the same way
        d = _from_the_first(x)  # (B, T, D)
        mean, rstd = x[..., 0] + d.mean(axis=-1), 1 / np.sqrt(d.var(axis=-1) + 1e-5)  # (B, T)
        return x, mean.astype(x.dtype), rstd.astype(x.dtype)

    return {label: kept(x) for label, (x,) in OFFSET_CASES.items()}


def _exact_x_hat(x, mean, rstd):
    d = _from_the_first(x)  # (B, T, D)
    return ((d - d.mean(axis=-1, keepdims=True)) * rstd[..., None]).astype(x.dtype)


def _judge_float64(function):
    far = _kept_cases()[FAR_FLOAT64]
    return seven_digits([function(*far)], [rebuilt_x_hat(*far)])


@exercise("x_hat", _kept_cases, rtol=2e-6, expected=_exact_x_hat, judge=_judge_float64)
@mistakes("""
    xc = xc - xc.mean(axis=-1, keepdims=True) =>  # the rounding of the stored mean is still in it.
    x - mean[..., None] => x - x.mean(axis=-1, keepdims=True)
    xc = xc - xc.mean(axis=-1, keepdims=True) =>
        centred once, by a new mean of x: at an offset, that is rounded, too.
    x - mean[..., None] => (x - x.mean(axis=-1, keepdims=True, dtype=np.float64)).astype(x.dtype)
    xc = xc - xc.mean(axis=-1, keepdims=True) =>
        centred once, by a float64 mean: it is no wider than float64 rows.
    x - mean[..., None] => x + mean[..., None]
    xc = xc - xc.mean(axis=-1, keepdims=True) =>  # the mean is added.
    xc - xc.mean( => xc + xc.mean(  # the second mean is added.
    xc * rstd[..., None] => xc  # rstd is missing: these are only the deviations from the mean.
    xc * rstd[..., None] => xc / rstd[..., None]  # divided by rstd, which is 1 / std already.
    xc * rstd[..., None] => xc * rstd[..., None] - mean[..., None]  # the mean is subtracted again.
""")
def rebuilt_x_hat(x, mean, rstd):
    """Return x_hat, (B, T, D), in the dtype of x, for x (B, T, D), mean and rstd (B, T)."""
    xc = x - mean[..., None]  # (B, T, D)
    xc = xc - xc.mean(axis=-1, keepdims=True)  # (B, T, D)
    return xc * rstd[..., None]
