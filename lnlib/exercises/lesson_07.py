"""Lesson 07: the backward pass, a strip of rows at a time."""

import numpy as np

from .. import textbook
from ..checker import mistakes
from ..layernorm import LayerNormCache
from .data import layer, museum
from .registry import exercise
from .watch import blocks_are_used


def _judge_strips(function):
    x = layer(54, 301, 768)
    arrays = {k: np.float32(a) for k, a in ({"dy": x.dy} | x.cache._asdict()).items()}
    dx = np.asarray(function(*arrays.values(), 4)[0])
    if dx.dtype != np.float32:
        return f"The gradients are right, but dx is {dx.dtype} where dy is float32."
    return blocks_are_used(function, arrays, (4,), ("dy", "x_hat"), cache_bytes=256 * 1024)


def _strip_cases():
    for N, D, rows, spread in (11, 5, 4, 1.0), (3, 8, 1, 0.004), (4, 6, 9, 1.0):
        a = layer(51, N, D, spread=spread)
        yield f"{N} rows in strips of {rows}", (a.dy, *a.cache, rows)


@exercise("dx dgamma dbeta", _strip_cases, judge=_judge_strips)
@mistakes("""
    len(dy), rows) => len(dy) - rows + 1, rows)  # the last strip is missing where it is shorter.
    len(dy), rows) => rows, rows)  # the first strip only. Is return inside the loop?
    dgamma += => dgamma =
    dbeta += => dbeta =  # the sums of the last strip only. Each strip adds to what is there.
    dgamma, dbeta = np.zeros((2, *gamma.shape), dy.dtype) => dgamma = dbeta = np.zeros_like(gamma)
        dgamma and dbeta are the same array: a = b = np.zeros(...) makes one only.
    return dx, dgamma, dbeta => return dx, *(a / -(-len(dy) // rows) for a in (dgamma, dbeta))
        the sums of the strips are averaged; they are parts of one sum.
""")
@mistakes(museum(lambda x_hat, rstd, gamma, rows: LayerNormCache(x_hat, rstd, gamma)))
def backward_by_strips(dy, x_hat, rstd, gamma, rows):
    """Return dx (N, D), dgamma (D,) and dbeta (D,); rstd is (N, 1), dy and x_hat (N, D)."""
    dx = np.empty_like(dy)  # (N, D)
    dgamma, dbeta = np.zeros((2, *gamma.shape), dy.dtype)  # (D,) each
    for start in range(0, len(dy), rows):
        strip = slice(start, start + rows)
        cache = x_hat[strip], rstd[strip], gamma
        dx[strip], more_dgamma, more_dbeta = textbook.backward_means(dy[strip], cache)
        dgamma += more_dgamma
        dbeta += more_dbeta
    return dx, dgamma, dbeta
