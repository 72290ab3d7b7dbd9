"""Lesson 02: the layer in code."""

import numpy as np

from ..layernorm import LayerNormCache, layer_norm_backward
from .checker import exercise
from .data import dx_terms, layers, museum, wrong_rstd


def _forward(x, gamma, beta, eps, axis=-1, ddof=0, centre=True, rstd=None):
    """Run a forward pass that can be varied: axis of the statistics, ddof, rstd(var, eps)."""
    centred = x - x.mean(axis=axis, keepdims=True)  # (B, T, D)
    var = x.var(axis=axis, ddof=ddof, keepdims=True)  # (B, T, 1)
    r = rstd(var, eps) if rstd else 1 / np.sqrt(var + eps)  # (B, T, 1)
    x_hat = (centred if centre else x) * r  # (B, T, D)
    return gamma * x_hat + beta, x_hat, r


def _sum_of_squares(x, gamma, beta, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(np.sum(centred**2, axis=-1, keepdims=True) + eps)
    return gamma * centred * rstd + beta, centred * rstd, rstd


def _varied(**options):
    return lambda x, gamma, beta, eps: _forward(x, gamma, beta, eps, **options)


def _other_y(y_of):
    """Only y is wrong: y_of(x_hat, gamma, beta)."""

    def mistake(x, gamma, beta, eps):
        _, x_hat, rstd = _forward(x, gamma, beta, eps)
        return y_of(x_hat, gamma, beta), x_hat, rstd

    return mistake


def _not_centred_before_squaring(x, gamma, beta, eps):
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    x_hat = (x - x.mean(axis=-1, keepdims=True)) * rstd
    return gamma * x_hat + beta, x_hat, rstd


def _other(change):
    """Return change(y, x_hat, rstd, gamma), the three outputs."""

    def mistake(x, gamma, beta, eps):
        return change(*_forward(x, gamma, beta, eps), gamma)

    return mistake


@exercise(
    "y x_hat rstd",
    lambda: (
        {k: (a.x, a.gamma, a.beta, 1e-5) for k, a in layers(2, 3, 5).items()}
        | {"eps = 0.1": (*layers(3, 4, 2)["another shape"][1:4], 0.1)}
    ),
    {
        "the variance is divided by D - 1 (ddof = 1); the layer divides by D.": _varied(ddof=1),
        **{
            text: _varied(rstd=rstd)
            for text, rstd in wrong_rstd("standard deviation", "the variance", "var").items()
        },
        "this is the standard deviation; rstd is its reciprocal.": _other(
            lambda y, x_hat, rstd, gamma: (y, x_hat, 1 / rstd)
        ),
        "this is var + eps; rstd is one over its root.": _other(
            lambda y, x_hat, rstd, gamma: (y, x_hat, 1 / rstd**2)
        ),
        "this is the variance; rstd is 1 / sqrt(var + eps).": lambda x, gamma, beta, eps: (
            *_forward(x, gamma, beta, eps)[:2],
            x.var(axis=-1, keepdims=True),
        ),
        "gamma is in it already; x_hat is what gamma multiplies.": _other(
            lambda y, x_hat, rstd, gamma: (y, gamma * x_hat, rstd)
        ),
        "the squares are summed and not divided by D.": _sum_of_squares,
        "the mean of x**2, not the variance: centre before you square.": (
            _not_centred_before_squaring
        ),
        "x is divided, but not centred: subtract the mean.": _varied(centre=False),
        "mean and variance over the sequences (axis 0), not along each row.": _varied(axis=0),
        "mean and variance over all rows (axes 0 and 1), not along each row.": _varied(axis=(0, 1)),
        "mean and variance over the tokens (axis 1), not along each row.": _varied(axis=1),
        "one mean and variance for the whole array, where each row has its own.": _varied(
            axis=(0, 1, 2)
        ),
        "beta is missing.": _other_y(lambda x_hat, gamma, beta: gamma * x_hat),
        "gamma is missing.": _other_y(lambda x_hat, gamma, beta: x_hat + beta),
        "gamma and beta are missing.": _other_y(lambda x_hat, gamma, beta: x_hat),
        "gamma multiplies beta as well: it must not.": _other_y(
            lambda x_hat, gamma, beta: gamma * (x_hat + beta)
        ),
        "gamma and beta have changed places.": _other_y(
            lambda x_hat, gamma, beta: beta * x_hat + gamma
        ),
    },
)
def forward_by_hand(x, gamma, beta, eps):
    """Return y (B, T, D), x_hat (B, T, D) and rstd (B, T, 1)."""
    return _forward(x, gamma, beta, eps)


@exercise(
    "dx dgamma dbeta",
    lambda: {k: (a.dy, *a.cache) for k, a in layers(2, 3, 5).items()},
    museum(LayerNormCache),
    terms={"dx": dx_terms},
)
def backward_by_hand(dy, x_hat, rstd, gamma):
    """Return dx (B, T, D), dgamma (D,) and dbeta (D,)."""
    return layer_norm_backward(dy, LayerNormCache(x_hat, rstd, gamma))


def _with_x_hat(x_hat_of):
    """Take x_hat to be x_hat_of(y, gamma, beta)."""

    def backward(dy, y, rstd, gamma, beta):
        cache = LayerNormCache(x_hat_of(y, gamma, beta), rstd, gamma)
        return layer_norm_backward(dy, cache)

    return backward


_right_x_hat = _with_x_hat(lambda y, gamma, beta: (y - beta) / gamma)


@exercise(
    "dx dgamma dbeta",
    lambda: {k: (a.dy, a.y, a.cache.rstd, a.gamma, a.beta) for k, a in layers(2, 3, 5).items()},
    {
        "y is taken for x_hat.": _with_x_hat(lambda y, gamma, beta: y),
        "x_hat is y / gamma here: beta is not subtracted.": _with_x_hat(
            lambda y, gamma, beta: y / gamma
        ),
        "x_hat is y - beta here: gamma is still in it.": _with_x_hat(
            lambda y, gamma, beta: y - beta
        ),
        "x_hat is y / gamma - beta here: beta was added last, so take it off first.": (
            _with_x_hat(lambda y, gamma, beta: y / gamma - beta)
        ),
        "x_hat is (y + beta) / gamma here: the sign of beta.": _with_x_hat(
            lambda y, gamma, beta: (y + beta) / gamma
        ),
        "x_hat is (y - beta) * gamma here: divide by gamma.": _with_x_hat(
            lambda y, gamma, beta: (y - beta) * gamma
        ),
        **museum(lambda y, rstd, gamma, beta: LayerNormCache((y - beta) / gamma, rstd, gamma)),
    },
    terms={"dx": lambda dy, y, rstd, gamma, beta: dx_terms(dy, (y - beta) / gamma, rstd, gamma)},
)
def backward_from_y(dy, y, rstd, gamma, beta):
    """Return dx, dgamma, dbeta from what the layer put out."""
    return _right_x_hat(dy, y, rstd, gamma, beta)


def _other_dx(dx_of):
    """Only dx is wrong: dx_of(dz, dx of the layer, cache)."""

    def backward(dz, cache):
        dx, dgamma, dbeta = layer_norm_backward(dz, cache)
        return dx_of(dz, dx, cache), dgamma, dbeta

    return backward


def _gradients_twice(dz, cache):
    dx, dgamma, dbeta = layer_norm_backward(dz, cache)
    return dx + dz, 2 * dgamma, 2 * dbeta


@exercise(
    "dx dgamma dbeta",
    lambda: {k: (a.dy, a.cache) for k, a in layers(2, 3, 5).items()},
    {
        "the gradient that flows past the layer is missing: z contains x itself.": _other_dx(
            lambda dz, dx, cache: dx
        ),
        "the gradient through the layer is missing.": _other_dx(lambda dz, dx, cache: dz),
        "the two gradients are subtracted; a value used twice gets the sum.": _other_dx(
            lambda dz, dx, cache: dz - dx
        ),
        "the path past the layer has no gamma in it.": _other_dx(
            lambda dz, dx, cache: cache.gamma * dz + dx
        ),
        "the path past the layer has no rstd in it.": _other_dx(
            lambda dz, dx, cache: cache.rstd * dz + dx
        ),
        "the path past the layer is counted twice.": _other_dx(lambda dz, dx, cache: 2 * dz + dx),
        "the path through the layer is counted twice.": _other_dx(
            lambda dz, dx, cache: dz + 2 * dx
        ),
        "the two gradients are averaged; a value used twice gets the sum.": _other_dx(
            lambda dz, dx, cache: (dz + dx) / 2
        ),
        "they come out twice: gamma and beta are used once.": _gradients_twice,
    },
)
def prenorm_backward(dz, cache):
    """Return dx, dgamma, dbeta for z = x + layer_norm(x)."""
    dx, dgamma, dbeta = layer_norm_backward(dz, cache)
    return dz + dx, dgamma, dbeta
