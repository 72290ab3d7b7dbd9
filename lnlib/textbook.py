"""The layer as textbooks and blogs write it, in two common forms, to be compared with.

Each takes (x, gamma, beta, eps) and (dy, cache) and sums over all axes but the last. Correct, and
with the digits that lesson 04 expects of a two-pass variance. Nothing is checked.
"""

import numpy as np


def forward_means(x, gamma, beta, eps=1e-5):
    """Cache x_hat and rstd."""
    mean = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(var + eps)
    x_hat = (x - mean) * rstd
    return gamma * x_hat + beta, (x_hat, rstd, gamma)


def backward_means(dy, cache):
    """Write the formula with means."""
    x_hat, rstd, gamma = cache
    rows = tuple(range(dy.ndim - 1))
    dbeta = dy.sum(axis=rows)
    dgamma = (dy * x_hat).sum(axis=rows)
    g = dy * gamma
    along = (g * x_hat).mean(axis=-1, keepdims=True)
    return rstd * (g - g.mean(axis=-1, keepdims=True) - x_hat * along), dgamma, dbeta


def forward_rstd(x, gamma, beta, eps=1e-5):
    """Take both statistics first."""
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt(var + eps)
    x_hat = (x - mean) * rstd
    return x_hat * gamma + beta, (x_hat, rstd, gamma)


def backward_rstd(dy, cache):
    """Project x_hat out of g, and the ones."""
    x_hat, rstd, gamma = cache
    D, rows = dy.shape[-1], tuple(range(dy.ndim - 1))
    g = dy * gamma
    total = g.sum(axis=-1, keepdims=True)
    proj = (g * x_hat).sum(axis=-1, keepdims=True)
    dx = rstd * (g - total / D - x_hat * (proj / D))
    return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)


FORMS = {
    "means": (forward_means, backward_means),
    "rstd": (forward_rstd, backward_rstd),
}
