"""Lesson 01: derivatives on paper, checked as functions."""

import numpy as np

from ..layernorm import LayerNormCache
from .checker import exercise
from .data import dx_terms, layers, museum


def _jacobian(x_hat, rstd, mean_term=1.0, variance_term=1.0):
    D = x_hat.size
    return rstd * (np.eye(D) - mean_term / D - variance_term * np.outer(x_hat, x_hat) / D)


@exercise(
    "jacobian",
    lambda: {k: (a.cache.x_hat, a.cache.rstd, a.gamma) for k, a in layers(5).items()},
    {
        "gamma is missing.": lambda x_hat, rstd, gamma: _jacobian(x_hat, rstd),
        "gamma stands on the columns (with j); y_i is gamma_i times x_hat_i, so it belongs to the "
        "rows. This matrix is the transpose of the right one.": lambda x_hat, rstd, gamma: (
            gamma * _jacobian(x_hat, rstd)
        ),
        "the term through the mean is missing.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, mean_term=0)
        ),
        "the term through the variance is missing.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, variance_term=0)
        ),
        "only the straight route is there: the mean and the variance depend on x too.": (
            lambda x_hat, rstd, gamma: np.diag(gamma * rstd)
        ),
        "the term through the variance has the wrong sign.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, variance_term=-1)
        ),
        "the term through the mean has the wrong sign.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, mean_term=-1)
        ),
        "the term through the variance is not divided by D.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, variance_term=x_hat.size)
        ),
        "the term through the mean is not divided by D.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, mean_term=x_hat.size)
        ),
        "neither of the two last terms is divided by D.": lambda x_hat, rstd, gamma: (
            gamma[:, None] * _jacobian(x_hat, rstd, x_hat.size, x_hat.size)
        ),
        "twice the term through the variance: the 1/2 of the root is missing.": (
            lambda x_hat, rstd, gamma: gamma[:, None] * _jacobian(x_hat, rstd, variance_term=2)
        ),
        "the term through the mean reaches the diagonal only: 1/D stands in every entry.": (
            lambda x_hat, rstd, gamma: (
                gamma[:, None]
                * (_jacobian(x_hat, rstd, mean_term=0) - rstd * np.eye(x_hat.size) / x_hat.size)
            )
        ),
        "x_hat @ x_hat is one number, the sum of squares; the term needs all products "
        "x_hat_i x_hat_j: np.outer(x_hat, x_hat).": lambda x_hat, rstd, gamma: (
            gamma[:, None] * rstd * (np.eye(x_hat.size) - (1 + x_hat @ x_hat) / x_hat.size)
        ),
        "gamma multiplies the straight route only; it belongs to the whole row of the matrix.": (
            lambda x_hat, rstd, gamma: (
                _jacobian(x_hat, rstd) + rstd * (np.diag(gamma) - np.eye(x_hat.size))
            )
        ),
        "rstd is missing.": lambda x_hat, rstd, gamma: gamma[:, None] * _jacobian(x_hat, 1.0),
        "x_hat * x_hat is one row of squares; the term needs all products x_hat_i x_hat_j: "
        "np.outer(x_hat, x_hat).": lambda x_hat, rstd, gamma: (
            gamma[:, None] * rstd * (np.eye(x_hat.size) - (1 + x_hat * x_hat) / x_hat.size)
        ),
    },
)
def jacobian_of_y(x_hat, rstd, gamma):
    """Return all dy_i/dx_j of one row, (D, D)."""
    return gamma[:, None] * _jacobian(x_hat, rstd)


@exercise(
    "dx",
    lambda: {k: (a.dy,) for k, a in layers(2, 3, 5).items()},
    {
        "the route through the mean is missing.": lambda dz: dz,
        "the route through the mean has the wrong sign.": lambda dz: (
            dz + dz.mean(axis=-1, keepdims=True)
        ),
        "the sum of each row is subtracted where its mean belongs.": lambda dz: (
            dz - dz.sum(axis=-1, keepdims=True)
        ),
        "the mean over the rows is subtracted (axes 0 and 1), not that of each row.": lambda dz: (
            dz - dz.mean(axis=(0, 1))
        ),
        "the mean over the sequences is subtracted (axis 0), not that of each row.": lambda dz: (
            dz - dz.mean(axis=0)
        ),
        "the mean over the tokens is subtracted (axis 1), not that of each row.": lambda dz: (
            dz - dz.mean(axis=1, keepdims=True)
        ),
        "one mean of the whole array is subtracted, where each row has its own.": lambda dz: (
            dz - dz.mean()
        ),
        "only dz_j / D is subtracted from dz_j, but every z_i moves when x_j does.": lambda dz: (
            dz - dz / dz.shape[-1]
        ),
    },
)
def centre_backward(dz):
    """Return dx for z = x - mean(x), both (B, T, D)."""
    return dz - dz.mean(axis=-1, keepdims=True)


@exercise(
    "dx",
    lambda: {k: (a.dy, *a.cache[:2], a.gamma) for k, a in layers(5).items()},
    museum(LayerNormCache, outputs=0),
    terms={"dx": dx_terms},
)
def dx_of_row(dy, x_hat, rstd, gamma):
    """Return dx of one row, (D,): formula (7)."""
    g = gamma * dy  # (D,)
    return rstd * (g - g.mean() - x_hat * np.mean(g * x_hat))


def _length(x):
    return np.sqrt(np.sum(x * x, axis=-1, keepdims=True))  # (..., 1)


def _along(a, b):
    return np.sum(a * b, axis=-1, keepdims=True)  # (..., 1)


def _unit_length_terms(dy, x):
    """Return the terms of which dx, right or wrong, may be a sum; see `Exercise.terms`."""
    r, D = _length(x), x.shape[-1]
    y = x / r
    terms = {
        "dy": dy,
        "y sum(dy y)": y * _along(dy, y),
        "y mean(dy y)": y * _along(dy, y) / D,
        "mean(dy)": dy.mean(axis=-1, keepdims=True) + 0 * y,
        "sum(dy y)": _along(dy, y) + 0 * y,
        "dy y y": dy * y * y,
    }
    fronts = {"1/r * ": 1 / r, "": 1, "1/r**2 * ": 1 / r**2, "r * ": r}
    return {front: {k: f * a for k, a in terms.items()} for front, f in fronts.items()}


def _rms(x):
    return np.sqrt(np.mean(x * x, axis=-1, keepdims=True))  # (..., 1)


@exercise(
    "dx",
    lambda: {
        k: (a.dy, a.x * np.linspace(0.5, 2, a.x.shape[-1])) for k, a in layers(2, 3, 5).items()
    },
    {
        "the length counts as constant; it depends on every x.": lambda dy, x: dy / _length(x),
        "1/length is missing in front.": lambda dy, x: (
            dy - x / _length(x) * _along(dy, x / _length(x))
        ),
        "the term through the length has the wrong sign: d(1/r) = -dr/r**2.": lambda dy, x: (
            (dy + x / _length(x) * _along(dy, x / _length(x))) / _length(x)
        ),
        "a mean where the length has a sum: nothing here divides by D.": lambda dy, x: (
            (dy - x / _length(x) * _along(dy, x / _length(x)) / x.shape[-1]) / _length(x)
        ),
        "twice the term through the length: the 1/2 of the root's derivative is missing.": (
            lambda dy, x: (dy - 2 * x / _length(x) * _along(dy, x / _length(x))) / _length(x)
        ),
        "x stands where y = x / length belongs in the last term.": lambda dy, x: (
            (dy - x * _along(dy, x)) / _length(x)
        ),
        "one of the two x in the last term is not divided by the length.": lambda dy, x: (
            (dy - x * _along(dy, x) / _length(x)) / _length(x)
        ),
        "LayerNorm's mean term is there; nothing was centred here.": lambda dy, x: (
            (dy - dy.mean(axis=-1, keepdims=True) - x / _length(x) * _along(dy, x / _length(x)))
            / _length(x)
        ),
        "the length is the root of the sum of squares; this has the root of their mean.": (
            lambda dy, x: (dy - _along(dy, x) * x / (rms := _rms(x)) ** 2) / rms
        ),
        "this is right for x / root mean square; the length has a sum, not a mean.": (
            lambda dy, x: (dy - _along(dy, x) / x.shape[-1] * x / (rms := _rms(x)) ** 2) / rms
        ),
        "one length of the whole array, where each row has its own.": lambda dy, x: (
            (dy - x * _along(dy, x) / np.sum(x * x)) / np.sqrt(np.sum(x * x))
        ),
        "one length and one sum of the whole array, where each row has its own.": lambda dy, x: (
            (dy - x * np.sum(dy * x) / np.sum(x * x)) / np.sqrt(np.sum(x * x))
        ),
        "one sum of dy * y over the whole array, where each row has its own.": lambda dy, x: (
            (dy - x / _length(x) * np.sum(dy * x / _length(x))) / _length(x)
        ),
    },
    terms={"dx": _unit_length_terms},
)
def unit_length_backward(dy, x):
    """Return dx for y = x / length of x, rows of (B, T, D)."""
    y = x / _length(x)  # (B, T, D)
    return (dy - y * _along(dy, y)) / _length(x)
