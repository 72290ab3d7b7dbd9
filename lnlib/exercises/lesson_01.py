"""Lesson 01: derivatives on paper, checked as functions."""

import numpy as np

from ..layernorm import LayerNormCache
from .checker import exercise
from .data import dx_terms, layers, museum
from .edits import edits


@exercise(
    "jacobian",
    lambda: {k: (a.cache.x_hat, a.cache.rstd, a.gamma) for k, a in layers(5).items()},
    edits("""
    gamma[:, None] * J => J  # gamma is missing.
    gamma[:, None] * J => gamma * J  # gamma_i belongs to y_i, to the rows; here it is on columns.
    - 1 / D - => -  # the term through the mean is missing.
    - np.outer(x_hat, x_hat) / D =>  # the term through the variance is missing.
    - 1 / D - np.outer(x_hat, x_hat) / D =>  # the mean and the variance depend on x, too.
    - np.outer => + np.outer  # the term through the variance has the wrong sign.
    - 1 / D => + 1 / D  # the term through the mean has the wrong sign.
    x_hat) / D => x_hat)  # the term through the variance is not divided by D.
    1 / D => 1  # the term through the mean is not divided by D.
    np.outer(x_hat, x_hat) => x_hat @ x_hat  # a number; all products are needed: np.outer.
    rstd * =>  # rstd is missing.
    np.outer(x_hat, x_hat) => x_hat * x_hat  # a row of squares; all products are needed: np.outer.
    """),
)
def jacobian_of_y(x_hat, rstd, gamma):
    """Return all dy_i/dx_j of one row, (D, D)."""
    D = x_hat.size
    J = rstd * (np.eye(D) - 1 / D - np.outer(x_hat, x_hat) / D)  # (D, D)
    return gamma[:, None] * J  # (D, D)


@exercise(
    "dx",
    lambda: {k: (a.dy,) for k, a in layers(2, 3, 5).items()},
    edits("""
    - dz.mean(axis=-1, keepdims=True) =>  # the route through the mean is missing.
    dz - => dz +  # the route through the mean has the wrong sign.
    dz.mean => dz.sum  # the sum of each row is subtracted where its mean belongs.
    axis=-1 => axis=(0, 1)  # the mean over the rows (axes 0 and 1), not that of each row.
    axis=-1 => axis=0  # the mean over the sequences is subtracted (axis 0), not that of each row.
    axis=-1 => axis=1  # the mean over the tokens is subtracted (axis 1), not that of each row.
    axis=-1, keepdims=True =>  # one mean of the whole array, where each row has its own.
    .mean(axis=-1, keepdims=True) => / dz.shape[-1]  # every z_i moves with x_j, not z_j alone.
    """),
)
def centre_backward(dz):
    """Return dx for z = x - mean(x), both (B, T, D)."""
    return dz - dz.mean(axis=-1, keepdims=True)  # (B, T, D)


@exercise(
    "dx",
    lambda: {k: (a.dy, *a.cache[:2], a.gamma) for k, a in layers(5).items()},
    museum(LayerNormCache, outputs=0),
    terms={"dx": dx_terms},
)
def dx_of_row(dy, x_hat, rstd, gamma):
    """Return dx of one row, (D,): formula (7)."""
    g = gamma * dy  # (D,)
    return rstd * (g - g.mean() - x_hat * np.mean(g * x_hat))  # (D,)


def _unit_length_terms(dy, x):
    """Return the terms of which dx, right or wrong, may be a sum; see `Exercise.terms`."""
    r, D = np.sqrt(np.sum(x * x, axis=-1, keepdims=True)), x.shape[-1]  # (B, T, 1)
    y = x / r  # (B, T, D)
    sum_dyy = np.sum(dy * y, axis=-1, keepdims=True)  # (B, T, 1)
    terms = {
        "dy": dy,
        "y sum(dy y)": y * sum_dyy,
        "y mean(dy y)": y * sum_dyy / D,
        "mean(dy)": dy.mean(axis=-1, keepdims=True) + 0 * y,
        "sum(dy y)": sum_dyy + 0 * y,
        "dy y y": dy * y * y,
    }
    fronts = {"1/r * ": 1 / r, "": 1, "1/r**2 * ": 1 / r**2, "r * ": r}
    return {front: {k: f * a for k, a in terms.items()} for front, f in fronts.items()}


@exercise(
    "dx",
    lambda: {
        k: (a.dy, a.x * np.linspace(0.5, 2, a.x.shape[-1])) for k, a in layers(2, 3, 5).items()
    },
    edits("""
    y = x / length => y = x  # x stands where y = x / length belongs in the last term.
    dy * y => dy * x  # one of the two x in the last term is not divided by the length.
    np.sum(x => np.mean(x  # the root of the sum of squares is the length, not that of the mean.
    np.sum => np.mean  # this is right for x / root mean square; the length has a sum, not a mean.
    , axis=-1, keepdims=True =>  # one length and one sum of the whole array, not of each row.
    """),
    terms={"dx": _unit_length_terms},
)
def unit_length_backward(dy, x):
    """Return dx for y = x / length of x, rows of (B, T, D)."""
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))  # (B, T, 1)
    y = x / length  # (B, T, D)
    return (dy - y * np.sum(dy * y, axis=-1, keepdims=True)) / length  # (B, T, D)
