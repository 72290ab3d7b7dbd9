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


def _adam_inputs():
    for label, size, k in (
        ("the first step", 1, 1),
        ("step 5", 0.3, 5),
        ("gradients near 1e-8", 1e-8, 3),
    ):
        rng = np.random.default_rng(k)
        W, dW, m, v = rng.standard_normal((4, 4, 3))  # (4, 3) each
        m, v = (m, v**2) if k > 1 else (0 * m, 0 * v)
        yield label, (W, size * dW, size * m / 5, size**2 * v / 100, k, 0.1)


@exercise("W m v", _adam_inputs)
@mistakes("""
    m / (1 - 0.9**k) => m
        not corrected: the step divides m by 1 - 0.9**k and v by 1 - 0.999**k.
    v / (1 - 0.999**k) => v  # "
    m / (1 - 0.9**k) => m
    v / (1 - 0.999**k) => v  # "
    np.sqrt(v / (1 - 0.999**k)) + 1e-8 => np.sqrt(v / (1 - 0.999**k) + 1e-8)
        1e-8 is inside the root; it is added to the root.
    np.sqrt(v / (1 - 0.999**k)) + 1e-8 => np.sqrt(v) / (1 - 0.999**k) + 1e-8
        v is corrected before the root is taken.
    np.sqrt(v / (1 - 0.999**k)) => (v / (1 - 0.999**k))  # the root of v is missing.
    m / (1 - 0.9**k) => (m - 0.1 * dW) / 0.9 / (1 - 0.9**k)
        made with the old m; compute the new one first.
    W - rate * step => W + rate * step  # a step up: against the gradient goes W - rate * ...
    W - rate * step => -rate * step  # the step alone; return W after it.
    W - rate * step => W - step  # rate is missing.
    dW**2 => dW  # v is an average of the squares, dW**2.
    0.1 * dW => dW  # the new gradient has the weight 0.1 in m.
    0.001 * dW => dW  # the new square has the weight 0.001 in v.
    0.9 * m + 0.1 * dW => 0.1 * m + 0.9 * dW  # 0.9 and 0.1 are exchanged.
    0.999 * v + 0.001 * dW => 0.001 * v + 0.999 * dW  # 0.999 and 0.001 are exchanged.
    **k) => ** (k + 1))  # k counts from 1: the first step divides by 1 - 0.9.
    step, m, v => step, m / (1 - 0.9**k), v / (1 - 0.999**k)
        the corrected one; return the average itself, the next step needs it.
""")
def adam_step(W, dW, m, v, k, rate):
    """Return the new W, m and v, each of the shape of W."""
    m = 0.9 * m + 0.1 * dW
    v = 0.999 * v + 0.001 * dW**2
    step = m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    return W - rate * step, m, v
