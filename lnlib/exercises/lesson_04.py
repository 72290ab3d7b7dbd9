"""Lesson 04: float32 rows on which every careless formula loses digits, on every machine."""

import numpy as np

from ..layernorm import layer_norm_forward
from .checker import exercise, mistakes
from .data import layer
from .describe import Terms


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


def _offsets():
    return {
        "ordinary rows": (_x(41, 2, 3, 5),),
        "rows with an offset of 1e7 and a spread of 4": (_far(43, 1e7, 1),),
        "float64 rows with an offset of 1e15": (_far(44, 9e14, 1 / 8, np.float64, spread=0.5),),
    }


def _one_pass(function):
    """Say if more digits are left than one pass over x - x[..., :1] in the dtype of x can leave."""
    x = _x(57, 5, 4, 40_000)  # (5, 4, 40000)
    x[..., 0] += 3e3  # far from the other entries: half of the digits must go
    exact = np.var(x, axis=-1, dtype=np.float64)  # (5, 4)
    if np.median(np.abs(function(x) / exact - 1)) < 1e-5:
        return (
            "Right numbers, but not by one pass in the dtype of x: where the first entry lies far "
            "from the others, that leaves fewer digits. Two passes, or a wider type?"
        )


def _variance_in_float64(x):
    return shifted_variance(x.astype(np.float64)).astype(x.dtype)


@exercise("variance", _offsets, rtol=1e-4, judge=_one_pass, expected=_variance_in_float64)
@mistakes("""
    x - x[..., :1] => x  # nothing is shifted: the naive formula; at an offset all digits cancel.
    return np => return np.var(x, axis=-1); np  # two-pass: at an offset the mean's rounding shows.
    - np.mean(d, axis=-1) ** 2 =>  # subtract the square of the mean: these are squared distances.
    np.mean(d, => np.mean(x,  # that is the mean of x; take the shifted x.
    d * d => x * x  # the squares are those of x; take those of the shifted x.
    ) ** 2 => )  # the second mean is not squared.
    return np => return np.std(d, axis=-1); np  # the standard deviation, not the variance.
    x[..., :1] => x[:, :1]  # shifted by the first row of each sequence, not by its own entry.
    x[..., :1] => x[0, 0, 0]  # one shift for all rows; each row has its own first entry.
""")
def shifted_variance(x):
    """Return the variance of each row of x (B, T, D), shape (B, T), in the dtype of x."""
    d = x - x[..., :1]  # (B, T, D)
    return np.mean(d * d, axis=-1) - np.mean(d, axis=-1) ** 2


def _parts():
    """Return {what is special: (n_a, mean_a, m2_a, n_b, mean_b, m2_b)}, for four rows."""

    def split(seed, n_a, n_b, offset=0.7):
        rows = offset + np.random.default_rng(seed).standard_normal((4, n_a + n_b))
        rows[:, n_a:] += np.array([[0.5], [-0.8], [1.1], [2.0]])  # the means differ
        parts = rows[:, :n_a], rows[:, n_a:]
        return tuple(v for p in parts for v in (len(p.T), p.mean(1), p.var(1) * len(p.T)))

    return {
        "parts of 5 and 11 entries": split(44, 5, 11),
        "a part of 9 and a single new entry": split(46, 9, 1),
        "means near 1e7, where squares of means cancel": split(47, 6, 10, offset=1e7),
    }


MERGE_TERMS = Terms(
    "1",
    "mean_a; mean_b; m2_a; m2_b; delta**2; delta**2 * n_a; delta**2 * n_b; delta**2 * n_a * n_b;"
    "delta**2 * n_a * n_b / n; delta**2 * n_a * n_b / n**2; delta**2 * n_a / n; delta * n_b / n;"
    "delta * n_a / n; delta * n_a * n_b / n; n_a * m2_a; n_b * m2_b; n_b * (mean_b - mean_ab) ** 2",
    {"n": "n_a + n_b", "delta": "mean_b - mean_a", "mean_ab": "mean_a + delta * n_b / n"},
)


@exercise("n mean m2", _parts, rtol=1e-8, terms=MERGE_TERMS)
@mistakes("""
    delta * n_b / n => delta * n_a / n  # the weights have changed places: the longer pulls harder.
    m2_a + m2_b => n_a * m2_a + n_b * m2_b  # m2_a and m2_b are no variances; they are sums.
    delta**2 * n_a * n_b / n => n_a * mean_a**2 + n_b * mean_b**2 - n * mean**2
        squares of the means are subtracted: near 1e7 the digits cancel. Square the difference.
""")
def merge_parts(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
    """Return n, mean (N,) and m2 (N,) of both parts together; n_a, n_b are int, the rest (N,)."""
    n = n_a + n_b
    delta = mean_b - mean_a  # (N,)
    mean = mean_a + delta * n_b / n  # (N,)
    return n, mean, m2_a + m2_b + delta**2 * n_a * n_b / n


def _among_large_rows():
    """Return (1010, 3): rows too small to be added to the eight before them and the one after."""
    values = np.random.default_rng(48).uniform(0.25, 0.45, (1010, 3))  # (1010, 3)
    large = (2.0**20 * np.array([1.1, -1.4, 1.3])).astype(np.float32)  # (3,)
    values *= np.spacing(large)  # less than half an ulp
    values[:8] = large * np.array([[1, -1, 1, -1, 1, -1, 0.6, 0.4]]).T  # one for each partial sum
    values[-1] = 0.8 * large
    return values.astype(np.float32)


def _adds_up_in_dtype(function):
    """Say if the sum is right by a wider type than that of values."""
    values = np.float32([[1], [2**25], [2**50], [-(2**50)], [-(2**25)]])  # (5, 1): the sum is 1
    if function(values)[0] == 1:
        return (
            "The numbers are right, by a wider type, and for float64 rows many machines have none. "
            "Keep the dtype of values in total and in what is carried along."
        )


def _sum_inputs():
    return {"a few rows": (_x(49, 6, 4),), "small rows among large ones": (_among_large_rows(),)}


def _sum_in_float64(values):
    return values.sum(axis=0, dtype=np.float64).astype(values.dtype)


@exercise("total", _sum_inputs, rtol=5e-7, judge=_adds_up_in_dtype, expected=_sum_in_float64)
@mistakes("""
    row - excess => row  # a running sum: the overshoot is 0, or is not taken off the next row.
    row - excess => row + excess  # the overshoot has the wrong sign: what was lost is lost twice.
    - y => - row  # the overshoot is measured against the row; y is what should have been added.
    excess = (t => total = t; excess = (t  # the old total is needed to measure the overshoot.
    excess = (t => excess += (t  # the overshoots are added up: take each of them off once.
    total = t => return t  # only the first row: is the return inside the loop?
    np.zeros_like(values[0]) => values[0].copy()  # the first row is counted twice.
    return total => return values.sum(axis=-1)  # each row is added up; dgamma adds up the rows.
    return total => return total.sum()  # one number; dgamma has one for each column.
""")
def compensated_sum(values):
    """Return the sum of the rows of values (N, D), shape (D,), in the dtype of values."""
    total = np.zeros_like(values[0])  # (D,)
    excess = np.zeros_like(total)  # (D,), what the last addition has added too much
    for row in values:
        y = row - excess
        t = total + y
        excess = (t - total) - y
        total = t
    return total


def _ranges():
    sizes = 10.0 ** np.array([-30, 30, 0, -12, 25, 3])
    x, large = _x(50, 2, 3, 5), -np.float32(1e30) * np.abs(_x(51, 2, 3, 5))
    large[..., 2] = 1  # the largest entry, and not the largest in size
    half = np.float32(1e30) * _x(56, 2, 3, 2)  # (2, 3, 2)
    balanced = np.concatenate([0 * half[..., :1], half, -half[..., ::-1]], axis=-1)  # (2, 3, 5)
    return {
        "ordinary rows": (x,),
        "rows near -1e30, whose squares overflow": (large,),
        "rows from 1e-30 to 1e30 in one array": (x * sizes.reshape(2, 3, 1).astype(np.float32),),
        "an offset of a million spreads": (_far(53, 8e5, 1 / 16, spread=0.8),),
        "rows near 1e30 that begin with 0 and have mean 0": (balanced,),
        "float64 rows near 1e200": (1e200 * layer(54, 2, 3, 5).x,),
        "float64 rows with an offset of 1e14 spreads": (_far(55, 1.1e14, 1 / 64, np.float64, 1),),
    }


def _in_float64(x):
    one = np.ones(x.shape[-1])  # (D,)
    _, cache = layer_norm_forward(x.astype(np.float64), one, 0 * one, eps=0.0)
    return cache.x_hat.astype(x.dtype)


@exercise("x_hat", _ranges, rtol=5e-6, expected=_in_float64)
@mistakes("""
    np.ldexp(x, -exponent) => x
    xc - xc.mean(axis=-1, keepdims=True) => xc  # the textbook's: neither scaled nor centred again.
    np.ldexp(x, -exponent) => x  # not scaled: squares leave the range. Divide by a power of two.
    xc - xc.mean(axis=-1, keepdims=True) => xc  # centred once: the mean's rounding is still in it.
    xc - xc.mean(axis=-1, keepdims=True) => xc
    np.mean(xc * xc => np.var(xc  # centred once; only the variance is corrected for it.
    np.ldexp(x, -exponent) => x / np.abs(x).max(axis=-1, keepdims=True)
        divided by the largest entry itself: that rounds. A power of two does not.
    max(axis=-1, keepdims=True) => max()  # one scale for the whole array; each row needs its own.
    np.abs(x).max => x.max  # scaled by the largest entry; the largest in size may be negative.
    -exponent => exponent  # multiplied by the power of two, where the row must be divided by it.
    return xc => return np.ldexp(1, exponent) * xc  # the scale is put back; x_hat has none.
""")
def robust_x_hat(x):
    """Return x_hat (B, T, D), in the dtype of x, for rows of any size and offset."""
    _, exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True))  # (B, T, 1)
    x = np.ldexp(x, -exponent)  # (B, T, D), now at most 1
    xc = x - x.mean(axis=-1, keepdims=True)  # (B, T, D)
    xc = xc - xc.mean(axis=-1, keepdims=True)  # (B, T, D)
    return xc / np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True))
