"""Lesson 07, section 5: RMSNorm for rows of any size."""

import numpy as np

from .checker import exercise, mistakes
from .data import layer
from .lesson_07_rms import rms_forward


def _sized(dtype, sizes, seed):
    """Return rows of very different sizes, every second one below zero, and gamma."""
    a = layer(seed, len(sizes), 6)
    x = a.x * sizes.reshape(len(sizes), -1)  # (N, 6)
    x[::2] = -np.abs(x[::2])
    return x.astype(dtype), a.gamma.astype(dtype)


def _range_cases():
    x, gamma = _sized(np.float32, np.array([1e-3, 1, 30, 1e3]), 75)
    yield "ordinary rows", (x, gamma, 1e-5)
    x, gamma = _sized(np.float32, np.array([1e-30, 1e-8, 1, 1e20, 1e30]), 76)
    yield "float32 rows of sizes 1e-30 to 1e30", (x, gamma, 1e-5)
    yield "float32 rows of these sizes, eps = 0", (x, gamma, 0.0)
    x, gamma = _sized(np.float64, np.array([1e-200, 1e-8, 1, 1e160, 1e200]), 77)
    yield "float64 rows of sizes 1e-200 to 1e200, eps = 0", (x, gamma, 0.0)
    x, gamma = _sized(np.float32, np.array([1, 0, 1e25]), 78)
    yield "a row of zeros", (x, gamma, 1e-20)
    mixed = np.array([[0, 1e30, 1, 1e30, 1e29, 1e-30], [1e29, 1, 1e-20, 1e30, 1e28, 0]])
    yield "all sizes in one row", (*_sized(np.float32, mixed, 80), 1e-5)


def _in_float64(x, gamma, eps):
    y, _, rstd = rms_forward(x.astype(np.float64), gamma.astype(np.float64), eps)
    return y.astype(x.dtype), rstd.astype(x.dtype)


@exercise("y rstd", lambda: dict(_range_cases()), rtol=3e-6)
@mistakes("""
    small = x / s => s = one; small = x  # nothing is scaled yet: squares overflow, and vanish.
    max(axis=-1, => max(  # one scale for all rows. The small ones vanish: each row needs its own.
    np.abs(x).max => x.max  # the largest x; the largest |x| is negative here.
    np.abs(x).max(axis=-1, keepdims=True) => np.abs(x[:, :1])  # the first is not the largest.
    + eps / s / s => + eps  # eps is not scaled with the row: it must be divided by s squared.
    + eps / s / s => + eps / s  # eps is divided by s; the squares shrink with s squared.
    / s / s => / s**2  # s**2 leaves the range: divide by s twice.
    , rstd / s => , rstd  # this is the rstd of x / s; that of x is smaller by s.
    , rstd / s => , rstd * s  # multiplied by s; a larger row has a smaller rstd.
    s = np => s = np.abs(x).max(axis=-1, keepdims=True); np  # 0 / 0 for zeros: let s >= sqrt(eps).
    , np.sqrt(eps)) => , 0)  # eps / s**2 overflows for small rows: let s >= sqrt(eps).
""")
@mistakes(
    {
        "float64 holds the squares of float32, but not its own: rows of 1e200 overflow. Scale.": (
            _in_float64
        )
    }
)
def rms_forward_safe(x, gamma, eps):
    """Return y (N, D) and rstd (N, 1), also where the squares of x overflow or vanish."""
    one, eps = x.dtype.type(1), x.dtype.type(eps)
    top = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.sqrt(eps))  # (N, 1)
    s = np.ldexp(one, np.frexp(top)[1] - 1)  # (N, 1)
    small = x / s  # (N, D)
    rstd = 1 / np.sqrt(np.mean(small * small, axis=-1, keepdims=True) + eps / s / s)  # (N, 1)
    return gamma * (small * rstd), rstd / s
