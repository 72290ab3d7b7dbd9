"""The layer in 60-digit decimal arithmetic and in float64, straight from the definition."""

from decimal import Decimal, localcontext

import numpy as np


def oracle(dy, x, gamma, beta, eps=1e-5):
    """Return y, dx, dgamma, dbeta and the yardstick of dx, as float64 (x of shape (N, D))."""
    with localcontext() as context:
        context.prec = 60
        decimal = np.vectorize(lambda v: Decimal(float(v)), otypes=[object])
        eps = decimal(x.dtype.type(eps)).item()  # the eps that this dtype can hold
        dy, x, gamma, beta = decimal(dy), decimal(x), decimal(gamma), decimal(beta)
        D = x.shape[-1]
        xc = x - x.sum(axis=-1, keepdims=True) / D
        var = (xc * xc).sum(axis=-1, keepdims=True) / D
        std = np.vectorize(lambda v: (v + eps).sqrt(), otypes=[object])(var)
        x_hat, g = xc / std, gamma * dy
        mean_g = g.sum(axis=-1, keepdims=True) / D
        mean_gx = (g * x_hat).sum(axis=-1, keepdims=True) / D
        dx = (g - mean_g - x_hat * mean_gx) / std
        bound = np.abs(g).max(axis=-1, keepdims=True) / std
        results = gamma * x_hat + beta, dx, (dy * x_hat).sum(axis=0), dy.sum(axis=0), bound
        return [a.astype(np.float64) for a in results]


def norm_wise(value, truth, scale=None):
    """Largest error relative to the largest truth (of the array) or to a given scale."""
    value = np.asarray(value, dtype=np.float64)
    scale = np.abs(truth).max() if scale is None else scale
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(value - truth) / scale))


def promised(dy, x, gamma, beta, eps=1e-5):
    """Return y, dx, dgamma, dbeta in float64, and the sizes to which the promise is relative.

    That of dx is less than promised, where gamma * dy cancels: see `promised_of_dx`.
    """
    eps = float(x.dtype.type(eps))
    dy, x, gamma, beta = (a.astype(np.float64) for a in (dy, x, gamma, beta))
    xc = x - x[:, :1]  # (N, D), exact, and small
    xc -= xc.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True) + eps)
    x_hat = xc * rstd
    m = dy.mean(axis=-1, keepdims=True)
    g = gamma * (dy - m) + m * (gamma - gamma.mean())  # less mean(gamma) * m, which dx ignores
    g -= g.mean(axis=-1, keepdims=True)
    dx = rstd * (g - x_hat * np.mean(g * x_hat, axis=-1, keepdims=True))
    results = gamma * x_hat + beta, dx, (dy * x_hat).sum(axis=0), dy.sum(axis=0)
    sizes = (
        np.abs(gamma).max() * np.abs(x_hat).max() + np.abs(beta).max(),
        (rstd * np.abs(g)).max(),
        (np.abs(dy) * (1 + np.abs(x_hat))).sum(axis=0),
        np.abs(dy).sum(axis=0),
    )
    return results, sizes


def promised_of_dx(dy, x, gamma, eps=1e-5):
    """Return the size to which the promise for dx is relative."""
    dy, x, gamma = (a.astype(np.float64) for a in (dy, x, gamma))
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    m = dy.mean(axis=-1, keepdims=True)
    return (rstd * (np.abs(gamma * (dy - m)) + np.abs(m * (gamma - gamma.mean())))).max()
