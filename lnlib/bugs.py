"""The museum: well-known wrong backward passes, each with a name and with what it forgets.

Every bug is a function (dy, cache) -> (dx, dgamma, dbeta), to be called in place of
`layer_norm_backward`. All of them run, and return finite numbers of plausible size. Where one
needs eps it is the default, 1e-5, since the cache does not hold it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .layernorm import layer_norm_backward


class Bug(NamedTuple):
    """One exhibit.

    Attributes
    ----------
    name, forgets : str
    backward : callable
        (dy, cache) -> (dx, dgamma, dbeta).
    """

    name: str
    forgets: str
    backward: Callable


BUGS = []  # filled by the functions below, in their order


def _exhibit(name, forgets):
    """Put the decorated backward pass into the museum."""

    def register(backward):
        BUGS.append(Bug(name, forgets, backward))
        return backward

    return register


def _wrong_dx(name, forgets):
    """Exhibit a wrong dx(dy, g, x_hat, rstd, gamma), where g = gamma * dy; the rest is right."""

    def register(dx_of):
        @_exhibit(name, forgets)
        def backward(dy, cache):
            _, dgamma, dbeta = layer_norm_backward(dy, cache)
            return dx_of(dy, cache.gamma * dy, *cache), dgamma, dbeta

        return backward

    return register


def _mean_of_row(a):
    """Return the mean of each row of a, (..., D), in shape (..., 1)."""
    return a.mean(axis=-1, keepdims=True)


@_wrong_dx("no mean term", "that every x moves the mean")
def no_mean_term(dy, g, x_hat, rstd, gamma):
    return rstd * (g - x_hat * _mean_of_row(g * x_hat))


@_wrong_dx("no projection term", "that every x moves the variance; mean(g) * mean(x_hat) is 0")
def no_projection_term(dy, g, x_hat, rstd, gamma):
    return rstd * (g - _mean_of_row(g))


@_wrong_dx("statistics constant", "that mean and variance depend on x at all")
def statistics_constant(dy, g, x_hat, rstd, gamma):
    return rstd * g


@_wrong_dx("gamma outside the means", "that gamma differs from entry to entry, inside the means")
def gamma_outside_means(dy, g, x_hat, rstd, gamma):
    return gamma * rstd * (dy - _mean_of_row(dy) - x_hat * _mean_of_row(dy * x_hat))


@_wrong_dx("no gamma", "that y is gamma times x_hat")
def no_gamma(dy, g, x_hat, rstd, gamma):
    return rstd * (dy - _mean_of_row(dy) - x_hat * _mean_of_row(dy * x_hat))


@_wrong_dx("sign of the projection", "that rstd falls when the variance grows")
def sign_of_projection(dy, g, x_hat, rstd, gamma):
    return rstd * (g - _mean_of_row(g) + x_hat * _mean_of_row(g * x_hat))


@_wrong_dx("no half in dvar", "the 1/2 of the square root's derivative")
def no_half_in_dvar(dy, g, x_hat, rstd, gamma):
    return rstd * (g - _mean_of_row(g) - 2 * x_hat * _mean_of_row(g * x_hat))


@_wrong_dx("sums not divided by D", "the 1/D of the variance's mean")
def sums_not_divided(dy, g, x_hat, rstd, gamma):
    return rstd * (g - _mean_of_row(g) - x_hat * np.sum(g * x_hat, axis=-1, keepdims=True))


@_wrong_dx("ddof = 1", "that the layer divides by D, not by D - 1")
def ddof_one(dy, g, x_hat, rstd, gamma):
    D = g.shape[-1]
    return rstd * (g - _mean_of_row(g) - x_hat * _mean_of_row(g * x_hat) * D / max(D - 1, 1))


@_wrong_dx("eps outside the root", "where eps stands: sqrt(var + eps), not sqrt(var) + eps")
def eps_outside_root(dy, g, x_hat, rstd, gamma, eps=1e-5):
    std = np.sqrt(np.maximum(1 / rstd**2 - eps, 0))
    return (g - _mean_of_row(g) - x_hat * _mean_of_row(g * x_hat)) / (std + eps)


@_wrong_dx("rstd squared", "that rstd is already the reciprocal, and enters once")
def rstd_squared(dy, g, x_hat, rstd, gamma):
    return rstd**2 * (g - _mean_of_row(g) - x_hat * _mean_of_row(g * x_hat))


@_wrong_dx("no rstd", "that x_hat is x divided by the standard deviation")
def no_rstd(dy, g, x_hat, rstd, gamma):
    return g - _mean_of_row(g) - x_hat * _mean_of_row(g * x_hat)


@_wrong_dx("wrong axis", "that the statistics belong to a row, not to a column")
def wrong_axis(dy, g, x_hat, rstd, gamma):
    rows = tuple(range(g.ndim - 1))
    return rstd * (g - g.mean(axis=rows) - x_hat * (g * x_hat).mean(axis=rows))


@_exhibit("stale x_hat", "that the cache belongs to one forward pass: these rows are another's")
def stale_x_hat(dy, cache):
    rows = cache.x_hat.reshape(-1, dy.shape[-1])  # (N, D)
    stale = np.roll(rows, 1, axis=0).reshape(dy.shape)
    return layer_norm_backward(dy, cache._replace(x_hat=stale))


@_exhibit("dgamma not summed", "that every row uses the same gamma, so that gradients add up")
def dgamma_not_summed(dy, cache):
    dx, _, dbeta = layer_norm_backward(dy, cache)
    return dx, dy * cache.x_hat, dbeta


@_exhibit("dgamma without x_hat", "that gamma multiplies x_hat")
def dgamma_without_x_hat(dy, cache):
    dx, _, dbeta = layer_norm_backward(dy, cache)
    return dx, dbeta, dbeta


@_exhibit("dbeta averaged", "that every row uses the same beta, and any average is in dy already")
def dbeta_averaged(dy, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx, dgamma, dbeta * dbeta.size / dy.size
