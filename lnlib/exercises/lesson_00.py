"""Lesson 00: shapes, sums over rows, and one step of the chain rule."""

import numpy as np

from .checker import exercise
from .data import layer
from .edits import edits


def _x():
    return {"2 sequences": (layer(1, 2, 3, 5).x,), "4 sequences": (layer(2, 4, 2, 3).x,)}


@exercise(
    "mean",
    _x,
    edits("""
    axis=-1 => axis=0  # the mean is taken over the sequences (axis 0), not along each row.
    axis=-1 => axis=1  # the mean is taken over the tokens (axis 1), not along each row.
    axis=-1, keepdims=True =>  # one mean for the whole array, where each row has its own.
    .mean => .sum  # the sum of each row, not divided by D.
    """),
)
def row_mean(x):
    """Return the mean of each row, (B, T, 1)."""
    return x.mean(axis=-1, keepdims=True)  # (B, T, 1)


@exercise(
    "dbeta",
    _x,
    edits("""
    (0, 1) => 0  # the tokens are not summed yet: a sum over axis 0 alone.
    (0, 1) => 1  # the sequences are not summed yet: a sum over axis 1 alone.
    (0, 1) => -1  # a sum along each row; beta is shared by the rows, so add up the rows.
    axis=(0, 1) =>  # one number: also the last axis, which beta has, was summed.
    sum => mean  # the mean over the rows. Broadcast values get the sum, not divided by B T.
    """),
)
def shift_backward(dy):
    """Return the gradient of something that was added to every row, (D,)."""
    return dy.sum(axis=(0, 1))  # (D,)


@exercise(
    "dx",
    lambda: {"D = 5": (layer(3, 2, 3, 1).dy, 5), "D = 7": (layer(4, 4, 2, 1).dy, 7)},
    edits("""
    / D =>  # the 1/D of the mean is missing.
    np.repeat(dm, D, axis=-1) => dm  # dx must have the shape of x: D entries a row.
    / D => / dm.size  # divided by the number of rows; each mean is over the D entries of a row.
    """),
)
def mean_backward(dm, D):
    """Return the gradient of x, (B, T, D), from dm, that of its row means, (B, T, 1)."""
    return np.repeat(dm, D, axis=-1) / D  # (B, T, D)
