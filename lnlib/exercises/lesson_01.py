"""Lesson 01: derivatives on paper, checked as functions."""

import numpy as np

from ..checker import Terms, mistakes
from ..layernorm import LayerNormCache
from .data import DX_TERMS, layers, museum, of_layers
from .registry import exercise

JACOBIAN_TERMS = Terms(
    "gamma[:, None] * rstd; rstd; gamma[:, None]; gamma[:, None] * rstd**2; gamma * rstd; 1",
    "np.eye(D); 1 / D; np.outer(x_hat, x_hat) / D; 1; np.outer(x_hat, x_hat); np.eye(D) / D;"
    "gamma[:, None] * np.eye(D); x_hat * x_hat / D; x_hat @ x_hat / D",
    {"D": "x_hat.size"},
    {"1 / rstd": "1 / rstd", "rstd": "rstd", "1 / rstd**2": "1 / rstd**2"},
)


@exercise("jacobian", of_layers("x_hat rstd gamma", 5), terms=JACOBIAN_TERMS)
@mistakes("""
    gamma[:, None] * J => J  # gamma is missing.
    gamma[:, None] * J => gamma * J  # gamma_i belongs to y_i, to the rows; here it is on columns.
    gamma[:, None] * J => gamma[:, None] * J + rstd / D * (gamma[:, None] - 1)
        gamma_i multiplies all three terms, 1 / D too.
    np.outer(x_hat, x_hat) / D => np.outer(x_hat, x_hat) / D**2  # the last term has one 1 / D: (6).
""")
def jacobian_of_y(x_hat, rstd, gamma):
    """Return all dy_i/dx_j of one row, (D, D)."""
    D = x_hat.size
    J = rstd * (np.eye(D) - 1 / D - np.outer(x_hat, x_hat) / D)  # (D, D)
    return gamma[:, None] * J  # (D, D)


@exercise("dx", of_layers("dy", 2, 3, 5), terms=Terms("1", "dz; mean(dz); sum(dz)"))
@mistakes("""
    .mean(axis=-1, keepdims=True) => / dz.shape[-1]  # every z_i moves with x_j, not z_j alone.
""")
def centre_backward(dz):
    """Return dx for z = x - mean(x), both (B, T, D)."""
    return dz - dz.mean(axis=-1, keepdims=True)  # (B, T, D)


@exercise("dx", of_layers("dy x_hat rstd gamma", 5), terms=DX_TERMS)
@mistakes("""
    np.mean(g * x_hat) => np.sum(g * x_hat) / np.sum(x_hat**2)
        x_hat @ x_hat is not D but a little less, by eps; the mean is over D entries.
""")
@mistakes(museum(LayerNormCache, outputs=0))
def dx_of_row(dy, x_hat, rstd, gamma):
    """Return dx of one row, (D,): formula (7)."""
    g = gamma * dy  # (D,)
    return rstd * (g - g.mean() - x_hat * np.mean(g * x_hat))  # (D,)


LENGTH_TERMS = Terms(
    "1 / length; 1; 1 / length**2; length",
    "dy; y * sum(dy * y); y * mean(dy * y); mean(dy); sum(dy * y); dy * y * y;"
    "x * sum(dy * x); y * sum(dy * x)",
    {"length": "np.sqrt(sum(x * x))", "y": "x / length"},
    {"length": "length", "1 / length": "1 / length", "length**2": "length**2"},
)


def _length_cases():
    for label, a in layers(2, 3, 5).items():
        yield label, (a.dy, a.x * np.linspace(0.5, 2, a.x.shape[-1]))


@exercise("dx", _length_cases, terms=LENGTH_TERMS)
@mistakes("""
    np.sqrt(np.sum(x * x, axis=-1, keepdims=True)) => np.sum(x * x, axis=-1, keepdims=True)
        the root is missing: the length is the root of the sum of squares.
    np.sum(x => np.mean(x  # the root of the sum of squares is the length, not that of the mean.
    np.sum => np.mean  # this is right for x / root mean square; the length has a sum, not a mean.
    np.sum(x * x, axis=-1, keepdims=True) => np.sum(x * x)  # one length for all rows.
    np.sum(dy * y, axis=-1, keepdims=True) => np.sum(dy * y)  # one sum for all rows.
""")
def unit_length_backward(dy, x):
    """Return dx for y = x / length of x, rows of (B, T, D)."""
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))  # (B, T, 1)
    y = x / length  # (B, T, D)
    return (dy - y * np.sum(dy * y, axis=-1, keepdims=True)) / length  # (B, T, D)
