"""Inputs for the checkers: never constant, symmetric or aligned, no two axes of one length."""

from typing import NamedTuple

import numpy as np

from ..bugs import BUGS
from ..checks import row_mean
from ..layernorm import LayerNormCache, layer_norm_forward
from .edits import edits, functions_of


class Layer(NamedTuple):
    """What goes into and comes out of a forward pass, and a gradient dy for its backward pass."""

    dy: np.ndarray
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    y: np.ndarray
    cache: LayerNormCache


def layer(seed, *shape, spread=1.0):
    """Return a `Layer` with x of that shape; dy has a mean, gamma has both signs."""
    rng = np.random.default_rng(seed)
    x = 0.7 + spread * rng.standard_normal(shape)  # (..., D)
    gamma = rng.uniform(0.5, 2, shape[-1]) * rng.choice([-1, 1, 1], shape[-1])  # (D,)
    beta, dy = rng.standard_normal(shape[-1]), 0.4 + rng.standard_normal(shape)  # (D,), (..., D)
    return Layer(dy, x, gamma, beta, *layer_norm_forward(x, gamma, beta))


def layers(*shape):
    """Return {what is special: Layer}: three shapes; rows in which eps is a part of var + eps."""
    *lead, D = shape
    return {
        "ordinary rows": layer(11, *shape),
        "rows so flat that eps counts": layer(12, *reversed(lead), D, spread=0.004),
        "another shape": layer(13, *(n + 2 for n in lead), D + 2),
    }


def _backward(dy, x_hat, rstd, gamma):
    axis = -1
    rows = tuple(range(dy.ndim - 1))
    g = gamma * dy  # (B, T, D)
    mean_g = g.mean(axis=axis, keepdims=True)  # (B, T, 1)
    mean_gx = (g * x_hat).mean(axis=axis, keepdims=True)  # (B, T, 1)
    dx = rstd * (g - mean_g - x_hat * mean_gx)  # (B, T, D)
    return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)


SLIPS = edits("""
    .mean( => .sum(  # sums where the two means along the row belong.
    mean_g = g.mean( => mean_g = g.sum(  # the first mean is a sum.
    axis = -1 => axis = 0  # the two means are those of the sequences (axis 0), not of each row.
    axis = -1 => axis = 1  # the two means are taken over the tokens (axis 1), not along each row.
    axis = -1 => axis = None  # the two means are those of the whole array, not of each row.
    rstd * (g - mean_g => (rstd * g - mean_g  # rstd multiplies the first term only, not all three.
    (dy * x_hat).sum( => (g * x_hat).sum(
    dy.sum( => g.sum(  # summed from g = gamma * dy; gamma and beta come after x_hat, so sum dy.
    (dy * x_hat).sum( => (dy * x_hat).mean(  # the mean over the rows, where they are added up.
""")


def museum(as_cache, outputs=slice(None)):
    """Return {what is wrong: function}: every bug of `lnlib.bugs`, and slips of the keyboard.

    Parameters
    ----------
    as_cache : callable
        Turns the arguments of the exercise after dy into a LayerNormCache.
    outputs : int or slice
        Which of dx, dgamma, dbeta the exercise asks for.
    """

    def mistake(backward):
        return lambda dy, *kept: backward(dy, as_cache(*kept))[outputs]

    def slip(backward):
        return mistake(lambda dy, cache: backward(dy, *cache))

    wrong = {f"{bug.name}. Forgotten: {bug.forgets}.": mistake(bug.backward) for bug in BUGS}
    return wrong | {text: slip(backward) for text, backward in functions_of(SLIPS, _backward)}


def dx_terms(dy, x_hat, rstd, gamma):
    """Return the terms of which dx, right or wrong, is usually a sum; see `Exercise.terms`."""
    g = gamma * dy  # (..., D)
    terms = {
        "g": g,
        "mean(g)": row_mean(g) + 0 * g,
        "x_hat mean(g x_hat)": x_hat * row_mean(g * x_hat),
        "mean(g x_hat)": row_mean(g * x_hat) + 0 * g,
        "x_hat mean(g)": x_hat * row_mean(g),
        "dy": dy,
        "mean(dy)": row_mean(dy) + 0 * g,
        "x_hat mean(dy x_hat)": x_hat * row_mean(dy * x_hat),
        "gamma mean(dy)": gamma * row_mean(dy),
        "gamma x_hat mean(dy x_hat)": gamma * x_hat * row_mean(dy * x_hat),
    }
    fronts = {
        "rstd * ": rstd,
        "": 1,
        "rstd**2 * ": rstd**2,
        "1/rstd * ": 1 / rstd,
        "gamma rstd * ": gamma * rstd,
    }
    return {front: {k: f * a for k, a in terms.items()} for front, f in fronts.items()}
