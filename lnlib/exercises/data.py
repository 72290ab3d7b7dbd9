"""Inputs for the checkers: never constant, symmetric or aligned, no two axes of one length."""

from typing import NamedTuple

import numpy as np

from ..bugs import BUGS
from ..layernorm import LayerNormCache, layer_norm_forward


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
    """Return {what is special: Layer}: two shapes, and rows in which eps is a part of var + eps."""
    return {
        "ordinary rows": layer(11, *shape),
        "rows so flat that eps counts": layer(12, *shape, spread=0.004),
        "longer rows": layer(13, *shape[:-1], shape[-1] + 3),
    }


def museum(as_cache, outputs=slice(None)):
    """Return {diagnosis: mistake} with every bug of `lnlib.bugs`.

    Parameters
    ----------
    as_cache : callable
        Turns the arguments of the exercise after dy into a LayerNormCache.
    outputs : int or slice
        Which of dx, dgamma, dbeta the exercise asks for.
    """

    def mistake(bug):
        return lambda dy, *rest: bug.backward(dy, as_cache(*rest))[outputs]

    return {f"{bug.name}. It forgets {bug.forgets}.": mistake(bug) for bug in BUGS}


def dx_terms(dy, x_hat, rstd, gamma):
    """Return the terms of which dx, right or wrong, is usually a sum; see `Exercise.terms`."""

    def mean(a):
        return a.mean(axis=-1, keepdims=True)

    g = gamma * dy  # (..., D)
    terms = {
        "g": g,
        "mean(g)": mean(g) + 0 * g,
        "x_hat mean(g x_hat)": x_hat * mean(g * x_hat),
        "mean(g x_hat)": mean(g * x_hat) + 0 * g,
        "x_hat mean(g)": x_hat * mean(g),
        "dy": dy,
        "mean(dy)": mean(dy) + 0 * g,
        "x_hat mean(dy x_hat)": x_hat * mean(dy * x_hat),
        "gamma mean(dy)": gamma * mean(dy),
        "gamma x_hat mean(dy x_hat)": gamma * x_hat * mean(dy * x_hat),
    }
    fronts = {"rstd * ": rstd, "": 1, "rstd**2 * ": rstd**2, "1/rstd * ": 1 / rstd}
    return {front: {k: f * a for k, a in terms.items()} for front, f in fronts.items()}
