"""Lesson 05: the backward pass in strips of rows, watched at work."""

import numpy as np

from .. import textbook
from ..layernorm import LayerNormCache
from .checker import exercise, mistakes
from .data import layer, museum
from .watch import blocks_are_used


def _strips_are_used(function):
    x = layer(54, 301, 768)
    arrays = {"dy": x.dy, "x_hat": x.cache.x_hat, "rstd": x.cache.rstd, "gamma": x.gamma}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    dx = np.asarray(function(*arrays.values(), 4)[0])
    if dx.dtype != np.float32:
        return (
            f"The gradients are right. But dx is {dx.dtype} where dy is float32: twice the bytes."
        )
    return blocks_are_used(function, arrays, (4,), ("dy", "x_hat"), cache_bytes=256 * 1024)


MUSEUM = museum(lambda x_hat, rstd, gamma, rows: LayerNormCache(x_hat, rstd, gamma))


@exercise(
    "dx dgamma dbeta",
    lambda: {
        k: (a.dy, *a.cache, rows)
        for k, a, rows in (
            ("a last strip that is shorter", layer(51, 11, 5), 4),
            ("flat rows, in strips of one", layer(52, 3, 8, spread=0.004), 1),
            ("fewer rows than a strip has", layer(53, 4, 6), 9),
        )
    },
    judge=_strips_are_used,
)
@mistakes("""
    len(dy), rows) => len(dy) - rows + 1, rows)  # the last strip is missing where it is shorter.
    len(dy), rows) => len(dy) - rows + 1, rows)
    np.empty_like => np.zeros_like  # the last, shorter strip is missing (its rows are zero).
    len(dy), rows) => rows, rows)  # the first strip only. Is return inside the loop?
    dgamma += => dgamma =
    dbeta += => dbeta =  # the sums of the last strip only. Each strip adds to what is there.
    dgamma, dbeta = np.zeros((2, *gamma.shape), dy.dtype) => dgamma = dbeta = np.zeros_like(gamma)
        dgamma and dbeta are one and the same array: a = b = np.zeros(...) makes one only.
    return dx, dgamma, dbeta => return dx, *(a / -(-len(dy) // rows) for a in (dgamma, dbeta))
        the sums of the strips are averaged; they are parts of one sum.
""")
@mistakes({words: f for words, f in MUSEUM.items() if "axes 0 and 1" not in words})
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
