"""Inputs for the checkers: never constant, symmetric or aligned, no two axes of one length."""

from typing import NamedTuple
from unittest import mock

import numpy as np

from ..bugs import BUGS
from ..checks import row_mean
from ..layernorm import LayerNormCache, layer_norm_backward, layer_norm_forward


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


def unwritten_as_nan(function):
    """Let np.empty and np.empty_like give NaN, so that results which nobody writes can be seen."""

    def poisoned(make):
        def filled(*args, **options):
            array = make(*args, **options)
            if array.dtype.kind in "fc":
                array.fill(np.nan)
            return array

        return filled

    def call(*arguments):
        with (
            mock.patch("numpy.empty", poisoned(np.empty)),
            mock.patch("numpy.empty_like", poisoned(np.empty_like)),
        ):
            return function(*arguments)

    return call


def layers(*shape):
    """Return {what is special: Layer}: three shapes; rows in which eps is a part of var + eps."""
    *lead, D = shape
    return {
        "ordinary rows": layer(11, *shape),
        "rows so flat that eps counts": layer(12, *reversed(lead), D, spread=0.004),
        "another shape": layer(13, *(n + 2 for n in lead), D + 2),
    }


EVERYTHING = slice(None)


def museum(as_cache, outputs=EVERYTHING):
    """Return {diagnosis: mistake} with every bug of `lnlib.bugs`, and slips of the keyboard.

    Parameters
    ----------
    as_cache : callable
        Turns the arguments of the exercise after dy into a LayerNormCache.
    outputs : int or slice
        Which of dx, dgamma, dbeta the exercise asks for.
    """

    def mistake(backward):
        return lambda dy, *rest: backward(dy, as_cache(*rest))[outputs]

    told = {f"{bug.name}. Forgotten: {bug.forgets}.": mistake(bug.backward) for bug in BUGS}
    return told | {text: mistake(backward) for text, backward in SLIPS.items()}


def wrong_rstd(root, what, square):
    """Return {diagnosis: rstd(square, eps)} for rstd = 1 / sqrt(square + eps).

    Parameters
    ----------
    root, what, square : str
        How the diagnoses name rstd's divisor, what is under its root, and that in a formula.
    """
    return {
        f"eps is added outside the root: sqrt({square}) + eps, not sqrt({square} + eps).": (
            lambda v, eps: 1 / (np.sqrt(v) + eps)
        ),
        "eps is missing.": lambda v, eps: 1 / np.sqrt(v),
        "eps is not the argument but fixed at 1e-5.": lambda v, eps: 1 / np.sqrt(v + 1e-5),
        f"the root is missing: divided by {what}.": lambda v, eps: 1 / (v + eps),
        f"multiplied by the {root}, where x_hat is divided by it.": lambda v, eps: np.sqrt(v + eps),
    }


def _dx_with(mean_g, mean_gx):
    """Return a backward pass whose two means, of one argument, are other functions."""

    def backward(dy, cache):
        x_hat, rstd, gamma = cache
        _, dgamma, dbeta = layer_norm_backward(dy, cache)
        g = gamma * dy
        return rstd * (g - mean_g(g) - x_hat * mean_gx(g * x_hat)), dgamma, dbeta

    return backward


def _both(**options):
    return _dx_with(*2 * [lambda a: a.mean(**options)])


def _rstd_on_the_first(dy, cache):
    x_hat, rstd, gamma = cache
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx / rstd + (rstd - 1) * gamma * dy, dgamma, dbeta


def _from_g(dy, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx, cache.gamma * dgamma, cache.gamma * dbeta


def _averaged(dy, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx, dgamma * dgamma.size / dy.size, dbeta


SLIPS = {  # diagnosis -> backward pass
    "sums where the two means along the row belong.": _dx_with(
        *2 * [lambda a: a.sum(axis=-1, keepdims=True)]
    ),
    "the first mean is a sum.": _dx_with(lambda a: a.sum(axis=-1, keepdims=True), row_mean),
    "the two means are taken over the sequences (axis 0), not along each row.": _both(axis=0),
    "the two means are taken over the tokens (axis 1), not along each row.": _both(
        axis=1, keepdims=True
    ),
    "the two means are taken over the whole array, where each row has its own.": _both(),
    "rstd multiplies the first term only; it belongs to all three.": _rstd_on_the_first,
    "summed from g = gamma * dy; gamma and beta come after x_hat, so sum dy.": _from_g,
    "the mean over the rows. The loss is a sum over rows: nothing divides.": _averaged,
}


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
