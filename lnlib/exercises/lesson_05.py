"""Lesson 05: long sums and rows of every size, in which careless formulas lose digits."""

import numpy as np

from ..checker import mistakes
from .data import far_rows, float32_rows, layer
from .registry import exercise
from .watch import units_off


def _among_large_rows():
    """Return (1010, 3): rows too small to be added to the eight before them and the one after."""
    values = np.random.default_rng(48).uniform(0.25, 0.45, (1010, 3))  # (1010, 3)
    large = (2.0**20 * np.array([1.1, -1.4, 1.3])).astype(np.float32)  # (3,)
    values *= np.spacing(large)  # less than half an ulp
    values[:8] = large * np.array([[1, -1, 1, -1, 1, -1, 0.6, 0.4]]).T  # one for each partial sum
    values[-1] = 0.8 * large
    return values.astype(np.float32)


def _judge_compensation(function):
    """Say if the sum is right by a wider type, or for the few inputs only."""
    values = np.float32([[1], [2**25], [2**50], [-(2**50)], [-(2**25)]])  # (5, 1): the sum is 1
    if function(values)[0] == 1:
        return (
            "The numbers are right, but by a wider type, by another order of the rows, or by more "
            "compensation than asked. Add row by row, in the dtype of values, with one overshoot. "
            "A common cause: np.zeros makes float64, unless it gets dtype=values.dtype."
        )
    values = np.random.default_rng(42).uniform(0.5, 1, (256, 1000)).astype(np.float32)
    off = units_off(function(values), values.sum(axis=0, dtype=np.float64))
    if off > 0.9:  # 0.5 where what each addition loses is made good, 1.3 where sums are paired
        return (
            f"Right for these rows, but of 256 rows of one sign the sum is off by {off:.1f} units "
            "in the last place, as without compensation: carry along what each addition loses."
        )


PAIRWISE = (
    "a pairwise sum: each addition still loses digits. Add row by row, and carry along what each "
    "loses."
)
SUM_CASES = {
    "a few rows": (float32_rows(49, 6, 4),),
    "small rows among large ones": (_among_large_rows(),),
}


@exercise("total", SUM_CASES, widen=True, rtol=5e-7, judge=_judge_compensation)
@mistakes("""
    row - excess => row
        a running sum: the overshoot is 0, as t - (total + a) is, or not taken off the next row.
    row - excess => row + excess  # the overshoot has the wrong sign: what was lost is lost twice.
    - y => - row
        the overshoot is measured against the row, not against what you wanted to add.
    excess = (t => total = t; excess = (t  # the old total is needed to measure the overshoot.
    excess = (t => excess += (t  # the overshoots are added up: take each of them off once.
    total = t => return t  # only the first row: is the return inside the loop?
    np.zeros_like(values[0]) => values[0].copy()  # the first row is counted twice.
""")
@mistakes([(PAIRWISE, lambda values: np.ascontiguousarray(values.T).sum(axis=-1))])
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


def _size_cases():
    sizes = 10.0 ** np.array([-30, 30, 0, -12, 25, 3])
    x, large = float32_rows(50, 2, 3, 5), -np.float32(1e30) * np.abs(float32_rows(51, 2, 3, 5))
    large[..., 2] = 1  # the largest entry, and not the largest in size
    half = np.float32(1e30) * float32_rows(56, 2, 3, 2)  # (2, 3, 2)
    tiny = x * sizes.reshape(2, 3, 1).astype(np.float32)  # (2, 3, 5)
    tiny[0, 0, 2] = 0  # an exact zero among entries near 1e-30, which has the exponent 0
    balanced = np.concatenate([0 * half[..., :1], half, -half[..., ::-1]], axis=-1)  # (2, 3, 5)
    return {
        "ordinary rows": (x,),
        "rows near -1e30, whose squares overflow": (large,),
        "rows from 1e-30 to 1e30 in one array": (tiny,),
        "an offset of a million spreads": (far_rows(53, 8e5, 1 / 16, spread=0.8),),
        "rows near 1e30 that begin with 0 and have mean 0": (balanced,),
        "float64 rows near 1e200": (1e200 * layer(54, 2, 3, 5).x,),
        "float64 rows with an offset of 1e14 spreads": (
            far_rows(55, 1.1e14, 1 / 64, np.float64, 1),
        ),
    }


def _judge_width(function):
    """Say if nearly all entries of float32 rows are rounded correctly: only a wider type can."""
    x = float32_rows(59, 4, 5, 300)
    right = robust_x_hat(x.astype(np.float64)).astype(np.float32)
    if np.mean(function(x) == right) > 0.9:
        return (
            "Right numbers, but by a wider type inside; for float64 rows there may be none. "
            "Stay in the dtype of x: cast a mean in float64 back to it before you subtract."
        )


def _centred_once_in_float64(x):
    _, exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True))  # (B, T, 1)
    wide = np.ldexp(x, -exponent).astype(np.float64)  # (B, T, D)
    xc = (wide - wide.mean(axis=-1, keepdims=True)).astype(x.dtype)  # (B, T, D)
    return xc / np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True))


WIDE_MEAN = (
    "centred once, with a float64 mean: it is no wider than float64 rows. Centre a second time."
)


@exercise("x_hat", _size_cases, widen=True, rtol=5e-6, judge=_judge_width)
@mistakes("""
    np.ldexp(x, -exponent) => x
    xc - xc.mean(axis=-1, keepdims=True) => xc  # the textbook's: neither scaled nor centred again.
    np.ldexp(x, -exponent) => x  # not scaled: squares leave the range. Divide by a power of two.
    xc - xc.mean(axis=-1, keepdims=True) => xc  # centred once: the mean's rounding is still in it.
    = x - x.mean(axis=-1, keepdims=True) => = x - x.mean(-1, float, keepdims=True).astype(x.dtype)
    xc - xc.mean(axis=-1, keepdims=True) => xc
        centred once: cast back to the dtype of x, the mean is rounded. Centre a second time.
    xc - xc.mean(axis=-1, keepdims=True) => xc
    np.mean(xc * xc => np.var(xc  # centred once; only the variance is corrected for it.
    np.ldexp(x, -exponent) => x / np.abs(x).max(axis=-1, keepdims=True)
        divided by the largest entry itself: that rounds. A power of two does not.
    _, exponent = => _, exponent = 0, np.frexp(x)[1].max(axis=-1, keepdims=True); _, _ =
        an exact zero has the exponent 0, which wins where all others are tiny: take that of max|x|.
    np.abs(x).max(axis=-1, keepdims=True) => x
        each entry has its own exponent here; all entries of a row need the same.
    max(axis=-1, keepdims=True) => max()  # one scale for the whole array; each row needs its own.
    np.abs(x).max => x.max  # scaled by the largest entry; the largest in size may be negative.
    -exponent => exponent  # multiplied by the power of two, where the row must be divided by it.
    return xc => return np.ldexp(1, exponent) * xc  # the scale is put back; x_hat has none.
    np.mean(xc * xc, axis=-1, keepdims=True) => np.mean(xc * xc, axis=-1, keepdims=True) + 1e-5
        something like 1e-5 is added to the variance. Here eps is 0.
    np.ldexp(x, -exponent) => x
    np.mean(xc * xc, axis=-1, keepdims=True) => np.mean(xc * xc, axis=-1, keepdims=True) + 1e-5
        "
""")
@mistakes([(WIDE_MEAN, _centred_once_in_float64)])
def robust_x_hat(x):
    """Return x_hat (B, T, D), in the dtype of x, for rows of any size and offset."""
    _, exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True))  # (B, T, 1)
    x = np.ldexp(x, -exponent)  # (B, T, D), now at most 1
    xc = x - x.mean(axis=-1, keepdims=True)  # (B, T, D)
    xc = xc - xc.mean(axis=-1, keepdims=True)  # (B, T, D)
    return xc / np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True))
