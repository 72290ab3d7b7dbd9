"""Lesson 11: the layer in a network."""

import numpy as np

from ..checker import mistakes
from ..layernorm import layer_norm_backward, layer_norm_forward
from .registry import exercise


def _block_inputs():
    for label, (N, n_in, D) in {"ordinary rows": (6, 4, 5), "another shape": (7, 8, 3)}.items():
        rng = np.random.default_rng(D)
        rows, W = rng.standard_normal((N, n_in)), rng.standard_normal((n_in, D))
        gamma = rng.uniform(0.5, 2, D) * rng.choice([-1, 1, 1], D)  # (D,)
        y, cache = layer_norm_forward(rows @ W, gamma, rng.standard_normal(D))  # (N, D)
        yield label, (0.4 + rng.standard_normal((N, D)), np.maximum(y, 0), rows, W, cache)


@exercise("drows dW dgamma dbeta", _block_inputs)
@mistakes("""
    dh * (h > 0) => dh
        the ReLU is missing, or not the first step back: where h is 0, dh goes no further.
    dh * (h > 0) => dh
    dz @ W.T, rows.T @ dz => (dz * (h > 0)) @ W.T, rows.T @ (dz * (h > 0))  # "
    dh * (h > 0) => dh * h  # multiplied by h; the derivative of the ReLU is 1 where h > 0, else 0.
    dh * (h > 0) => dh * (rows @ W > 0)
        the ReLU stands behind the LayerNorm: it looks at the sign of y, not of z = rows @ W.
    dh * (h > 0) => dh * (cache.x_hat > 0)
        the ReLU looks at the sign of y = gamma * x_hat + beta, not of x_hat.
    dz @ W.T => dy @ W.T
        this is taken from dy, the gradient of the LayerNorm's output; W made its input, z.
    rows.T @ dz => rows.T @ dy  # "
    dz @ W.T, rows.T @ dz => dy @ W.T, rows.T @ dy  # "
    dz @ W.T => dh @ W.T
        this is taken from dh, the gradient of the block's output; W made the LayerNorm's input, z.
    rows.T @ dz => rows.T @ dh  # "
    dz @ W.T, rows.T @ dz => dh @ W.T, rows.T @ dh  # "
    rows.T @ dz => rows.T @ dz / len(rows)  # averaged over the rows; each row uses W, so add up.
    layer_norm_backward(dy, => layer_norm_backward(cache.gamma * dy,
        gamma twice: layer_norm_backward multiplies dy by gamma itself.
    dz @ W.T, rows.T @ dz => (T := cache.gamma * cache.rstd * dy) @ W.T, rows.T @ T
        mean and rstd are taken for constants; they depend on z. Use layer_norm_backward.
""")
def block_backward(dh, h, rows, W, cache):
    """Return drows (N, n_in), dW (n_in, D), dgamma (D,) and dbeta (D,)."""
    dy = dh * (h > 0)  # (N, D)
    dz, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dz @ W.T, rows.T @ dz, dgamma, dbeta


def _centre_inputs():
    for label, (n_in, D) in {"ordinary weights": (4, 5), "another shape": (6, 3)}.items():
        rng = np.random.default_rng(D)
        yield label, (0.3 + rng.standard_normal((n_in, D)), 1 + rng.standard_normal(D))


@exercise("V c", _centre_inputs)
@mistakes("""
    W.mean(axis=1, keepdims=True) => W.mean(axis=0)
        the mean of each column; a drift adds one number to all entries of a row.
    W.mean(axis=1, keepdims=True) => W.mean()
        one mean for all of W; each row of W has a drift of its own.
    W - W.mean(axis=1, keepdims=True) => W - (W.mean() + b.mean())
        one mean for all of W; each row of W has a drift of its own.
    W - W.mean(axis=1, keepdims=True) => W
        unchanged; the rows of x @ W have a mean, and an RMSNorm leaves it there.
    b - b.mean() => b
        unchanged; b has a mean, which it adds to the mean of every row.
    b - b.mean() => 0 * b
        all zero; the LayerNorm removes only the mean of b, the rest changes its output.
    b - b.mean() => b - W.mean()  # the mean of W is subtracted; b has a mean of its own.
    W - W.mean(axis=1, keepdims=True) => (W - W.mean(axis=1, keepdims=True)) / W.std()
        divided by a spread; the RMSNorm divides, so only the mean goes.
    W - W.mean(axis=1, keepdims=True) => W + W.mean(axis=1, keepdims=True)  # the mean is added.
    b - b.mean() => b + b.mean()  # the mean is added.
    W - W.mean(axis=1, keepdims=True) => W.mean(axis=1, keepdims=True) + 0 * W
        the part that goes; return what is left.
    W.mean(axis=1, keepdims=True) => W.sum(axis=1, keepdims=True)
        the sum of each row is subtracted; its mean is that divided by D.
    b - b.mean() => b - b.sum()  # the sum is subtracted; the mean is that divided by D.
""")
def centre_weights(W, b):
    """Return V (n_in, D) and c (D,)."""
    return W - W.mean(axis=1, keepdims=True), b - b.mean()
