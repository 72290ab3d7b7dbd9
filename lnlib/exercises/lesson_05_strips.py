"""Lesson 05: the backward pass in strips of rows; its memory and its bytes are watched."""

import tracemalloc

import numpy as np

from .. import textbook
from ..layernorm import LayerNormCache
from ..trace import trace, traffic
from .checker import exercise
from .data import layer, museum


def _by_strips(one=textbook.backward_means, whole_strips=False, merge=np.add, start=0.0):
    """Vary what runs on a strip, which strips there are, and how their sums are merged."""

    def backward(dy, x_hat, rstd, gamma, rows):
        dx = np.full_like(dy, start)  # (N, D)
        sums = np.zeros((2, dy.shape[1]), dy.dtype)  # (2, D)
        end = len(dy) // rows * rows if whole_strips else len(dy)
        for first in range(0, end, rows):
            s = slice(first, first + rows)
            dx[s], *strip_sums = one(dy[s], (x_hat[s], rstd[s], gamma))
            sums = merge(sums, strip_sums)
        return dx, *sums

    return backward


def _one_mean_a_strip(dy, cache):
    x_hat, rstd, gamma = cache
    _, *sums = textbook.backward_means(dy, cache)
    g = gamma * dy
    return rstd * (g - g.mean() - x_hat * (g * x_hat).mean()), *sums


def _averaged(dy, x_hat, rstd, gamma, rows):
    dx, *sums = _by_strips()(dy, x_hat, rstd, gamma, rows)
    return dx, *(total / -(-len(dy) // rows) for total in sums)


def _one_array_for_both(dy, x_hat, rstd, gamma, rows):
    dx, dgamma, dbeta = _by_strips()(dy, x_hat, rstd, gamma, rows)
    return dx, dgamma + dbeta, dgamma + dbeta


def _first_strip(dy, x_hat, rstd, gamma, rows):
    dx = np.full_like(dy, np.nan)  # (N, D)
    dx[:rows], *sums = textbook.backward_means(dy[:rows], (x_hat[:rows], rstd[:rows], gamma))
    return dx, *sums


def _too_much_moves(function):
    """Say what is still wrong with a function whose gradients are right, or None."""
    x = layer(54, 301, 768)
    arrays = [a.astype(np.float32) for a in (x.dy, x.cache.x_hat, x.cache.rstd, x.gamma)]
    tracemalloc.start()
    dx = function(*arrays, 4)[0]
    held = tracemalloc.get_traced_memory()[1] / arrays[0].nbytes
    tracemalloc.stop()
    _, steps = trace(lambda *a: function(*a, 4), *arrays)
    moved = traffic(steps, 256 * 1024) / arrays[0].nbytes
    fine = "The gradients are right. But "
    if np.asarray(dx).dtype != np.float32:
        return fine + f"dx is {np.asarray(dx).dtype} where dy is float32: twice the bytes."
    if held > 1.9:
        return fine + (
            f"{held:.1f} arrays of the size of dy exist at the worst moment, where dx alone would "
            "do. Strips that are collected and joined, a copy, or an operation over all rows?"
        )
    if moved > 8:
        return fine + (
            f"through a cache of 256 KiB go {moved:.0f} values per element, where 3 must. Are the "
            "strips longer than rows?"
        )
    return None


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
    {
        "the last strip is missing where it is shorter than the others.": _by_strips(
            whole_strips=True, start=np.nan
        ),
        "the last strip is missing where it is shorter than the others (its rows are zero).": (
            _by_strips(whole_strips=True)
        ),
        "the sums of the last strip only. Each strip adds to what is there.": _by_strips(
            merge=lambda sums, strip: strip
        ),
        "the sums of the strips are averaged; they are parts of one sum.": _averaged,
        "the first strip only. Is return inside the loop?": _first_strip,
        "dgamma and dbeta are one and the same array: a = b = np.zeros(...) makes one only.": (
            _one_array_for_both
        ),
        "one mean for the whole strip, where each row has its own.": _by_strips(_one_mean_a_strip),
        **{
            text: mistake
            for text, mistake in museum(
                lambda x_hat, rstd, gamma, rows: LayerNormCache(x_hat, rstd, gamma)
            ).items()
            if "axis 0" not in text  # here the same as the museum's wrong axis
        },
    },
    judge=_too_much_moves,
)
def backward_by_strips(dy, x_hat, rstd, gamma, rows):
    """Return dx (N, D), dgamma (D,) and dbeta (D,), worked out in strips of rows."""
    return _by_strips()(dy, x_hat, rstd, gamma, rows)
