"""Lesson 00: shapes, sums over rows, and one step of the chain rule."""

import numpy as np

from ..checker import mistakes
from .data import layer, of_layers
from .registry import exercise


@exercise("mean", of_layers("x", 2, 3, 5))
@mistakes("""
    .mean => .sum  # the sum of each row, not divided by D.
""")
def row_mean(x):
    """Return the mean of each row, (B, T, 1)."""
    return x.mean(axis=-1, keepdims=True)  # (B, T, 1)


@exercise("dbeta", of_layers("dy", 2, 3, 5))
@mistakes("""
    .sum(axis=(0, 1)) =>  # not summed: every row got the same values, so their gradients add up.
    sum => mean  # the mean over the rows: beta is added to each row, so its gradient is the sum.
    dy.sum => np.ones_like(dy).sum  # dy is missing: multiply by the gradient that arrives.
    dy.sum(axis=(0, 1)) => np.ones(dy.shape[-1])
        that is the derivative of one entry of y. Multiply it by dy, and add up all rows.
""")
def shift_backward(dy):
    """Return the gradient with respect to beta, (D,)."""
    return dy.sum(axis=(0, 1))  # (D,)


@exercise("dx", {"D = 5": (layer(3, 2, 3, 1).dy, 5), "D = 7": (layer(4, 4, 2, 1).dy, 7)})
@mistakes("""
    np.repeat(dm => np.repeat(np.ones_like(dm)
        dm is missing: multiply by the gradient that arrives.
    np.repeat(dm, D, axis=-1) => dm  # not spread: each of the D entries of a row gets this share.
    / D =>  # not divided: if one x moves by h, the mean moves by h / D.
    / D => / dm.size  # divided by the number of rows; each mean is over the D entries of a row.
""")
def mean_backward(dm, D):
    """Return the gradient with respect to x, (B, T, D); dm is (B, T, 1)."""
    return np.repeat(dm, D, axis=-1) / D  # (B, T, D)
