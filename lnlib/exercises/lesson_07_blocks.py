"""Lesson 07, section 7: RMSNorm by blocks of rows, watched at work."""

import numpy as np

from .checker import exercise, mistakes
from .data import layer
from .watch import blocks_are_used


def _blocks_are_used(function):
    """Judge by an x of 2 MiB, in blocks of 32 KiB."""
    x = np.random.default_rng(79).standard_normal((2048, 256), np.float32)
    arrays = {"x": x, "gamma": np.ones(256, np.float32)}
    return blocks_are_used(function, arrays, (1e-5, 32), ("x",), cache_bytes=512 * 1024)


@exercise(
    "y rstd",
    lambda: {
        "11 rows in blocks of 4": (layer(81, 11, 5).x, layer(81, 11, 5).gamma, 1e-5, 4),
        "12 rows in blocks of 3": (layer(82, 12, 7).x, layer(82, 12, 7).gamma, 0.1, 3),
        "3 rows in blocks of 8": (layer(83, 3, 6).x, layer(83, 3, 6).gamma, 1e-5, 8),
    },
    judge=_blocks_are_used,
)
@mistakes("""
    len(x), rows) => len(x) - rows + 1, rows)  # the last, shorter block of rows is missing.
    range(0, len(x), rows) => [0]  # only the first block is there.
    start + rows) => start + 1)  # only one row of each block: a block ends at start + rows.
    ms = => ms = np.mean(x[block] ** 2);  # one mean square for a block; each row has its own.
""")
def rms_forward_blocked(x, gamma, eps, rows):
    """Return y (N, D) and rstd (N, 1), from so many rows of x at a time."""
    y, rstd = np.empty_like(x), np.empty_like(x[:, :1])  # (N, D), (N, 1)
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        ms = np.vecdot(x[block], x[block]) / x.shape[1]  # (rows,)
        rstd[block, 0] = 1 / np.sqrt(ms + eps)
        np.multiply(x[block], rstd[block], out=y[block])  # (rows, D)
        y[block] *= gamma
    return y, rstd
