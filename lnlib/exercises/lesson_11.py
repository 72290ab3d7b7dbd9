"""Lesson 11: the layer in a network."""

import copy  # noqa: F401, for a mistake

import numpy as np

from ..bugs import BUGS
from ..checker import mistakes
from ..layernorm import layer_norm_backward, layer_norm_forward
from .registry import exercise


class _Layer:
    def __init__(self, gamma, beta, backward):
        self.gamma, self.beta, self.backward_pass = gamma, beta, backward

    def forward(self, x):
        y, self.cache = layer_norm_forward(x, self.gamma, self.beta)
        return y

    def backward(self, dy):
        dx, self.dgamma, self.dbeta = self.backward_pass(dy, self.cache)
        return dx


def _right_backward(layer):
    return lambda dy: layer_norm_backward(dy, layer.cache)[0]


def _training_inputs():
    wrong = next(bug.backward for bug in BUGS if bug.name == "no projection term")
    for label, backward, shape, rate, steps in (
        ("a layer with the right backward pass", layer_norm_backward, (6, 4, 5), 0.3, 3),
        ("a layer with a wrong backward pass", wrong, (7, 8, 3), 0.2, 4),
        ("what comes before the first step", layer_norm_backward, (3, 2, 4), 0.1, 1),
    ):
        (N, n_in, D), rng = shape, np.random.default_rng(steps)
        gamma = rng.uniform(0.5, 2, D) * rng.choice([-1, 1, 1], D)  # (D,)
        layer = _Layer(gamma, rng.standard_normal(D), backward)
        rows, W = 0.4 + rng.standard_normal((N, n_in)), rng.standard_normal((n_in, D))
        yield label, (rows, W, rng.standard_normal((N, D)), layer, rate, steps)


@exercise("lengths losses", _training_inputs)
@mistakes("""
    W - rate * => W + rate *
        uphill: the loss grows along its gradient, so rate times the gradient is subtracted.
    (y - target) / len(rows) => (target - y) / len(rows)  # "
    W - rate * => W -  # the step is the gradient; it is rate times the gradient.
    W = W - => _ = W -
        each step must go forward with the W that the step before it has made.
    lengths, losses = [], [] => lengths, losses, y = [], [], layer.forward(rows @ W)
    y = layer.forward(rows @ W) => y = y  # "
    lengths, losses = [], [] => lengths, losses, start = [], [], W
    W = W - => W = start -
        each step starts from the first W; it starts from the W that the step before it has made.
    rows.T @ dz => rows.T @ (y - target) / len(rows)
        the gradient does not go back through the LayerNorm: W made its input, not its output.
    rows.T @ dz => rows.T @ dz / len(rows)
        divided by N twice: the gradient with respect to y has the 1/N already.
    (y - target) / len(rows) => y - target
        the gradient with respect to y is not divided by N, as the loss is.
    (y - target) / len(rows) => (y - target) / y.size
        the gradient with respect to y is divided by N * D; the loss is divided by N only.
    (y - target) / len(rows) => 2 * (y - target) / len(rows)
        the gradient with respect to y is twice what it is: the 1/2 cancels the 2 of the square.
    layer.backward(( => _right_backward(layer)((
        another backward pass than the layer's own; call layer.backward, which may be a wrong one.
    layer.backward( => layer.gamma * layer.cache.rstd * (
        mean and rstd are taken for constants; they depend on W. Call layer.backward.
    lengths, losses = [], [] => lengths, losses, layer = [], [], copy.copy(layer)
    W = W - => layer.gamma = layer.gamma - rate * layer.dgamma; W = W -
        gamma is trained, too; here only W changes.
    lengths, losses = [], [] => lengths, losses, layer = [], [], copy.copy(layer)
    W = W - => layer.beta = layer.beta - rate * layer.dbeta; W = W -
        beta is trained, too; here only W changes.
    lengths, losses = [], [] => lengths, losses, layer = [], [], copy.copy(layer)
    W = W - => layer.gamma = layer.gamma - rate * layer.dgamma; W = W -
    @ dz => @ dz; layer.beta = layer.beta - rate * layer.dbeta
        gamma and beta are trained, too; here only W changes.
    range(steps) => range(steps + 1)
    return lengths, losses => return lengths[1:], losses[:-1]
        measured after each step; measure before it: the first number is that of the first W.
    range(steps) => range(steps + 1)
    return lengths, losses => return lengths[:-1], losses[1:]  # "
    range(steps) => range(steps + 1)
    return lengths, losses => return lengths[1:], losses[1:]  # "
    np.linalg.norm(W) => np.sum(W**2)  # the square of the length: the root is missing.
    np.linalg.norm(W) => np.sqrt(np.mean(W**2))  # the root of a mean; the length is that of a sum.
    np.linalg.norm(W) => np.linalg.norm(W, 2)
        the largest singular value; the length is the root of the sum of all squared entries.
    np.linalg.norm(W) => np.sum(np.abs(W))
        the sum of the sizes; the length is the root of the sum of all squared entries.
    np.sum((y - target) ** 2) => np.sum(y - target) ** 2
        the square of the sum; the loss asks for the sum of the squares.
    / (2 * len(rows))) => / 2)  # not divided by N.
    / (2 * len(rows))) => / (2 * y.size))  # divided by N * D; the loss is divided by N only.
    / (2 * len(rows))) => / y.size)  # the mean over all entries; the loss is the sum over 2 * N.
""")
def train_one_layer(rows, W, target, layer, rate, steps):
    """Return lengths of W and losses before each step, (steps,) each."""
    lengths, losses = [], []
    for _ in range(steps):
        y = layer.forward(rows @ W)  # (N, D)
        lengths.append(np.linalg.norm(W))
        losses.append(np.sum((y - target) ** 2) / (2 * len(rows)))
        dz = layer.backward((y - target) / len(rows))  # (N, D)
        W = W - rate * rows.T @ dz  # (n_in, D)
    return lengths, losses


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
    W.mean(axis=1, keepdims=True) => W[:, :1]
        the first column is subtracted; the LayerNorm does not feel it, but a mean is left.
    W.mean(axis=1, keepdims=True) => W[:1]
        the first row is subtracted; each row of W loses one number, its own mean.
    W.mean(axis=1, keepdims=True) => np.median(W, axis=1, keepdims=True)
        the median of each row is subtracted; its mean must become 0.
    W - W.mean(axis=1, keepdims=True) => np.c_[W[:, :1] - W.sum(axis=1, keepdims=True), W[:, 1:]]
        the rows have the mean 0, but only the first column has changed: change all alike.
    W - W.mean(axis=1, keepdims=True) => W
        unchanged; the rows of x @ W have a mean, and an RMSNorm leaves it there.
    b - b.mean() => b
        unchanged; b has a mean, which it adds to the mean of every row.
    b - b.mean() => b - b[0]  # the first entry is subtracted; a mean is left.
    b - b.mean() => b - np.median(b)  # the median is subtracted; the mean must become 0.
    b - b.mean() => 0 * b
        all zero; the LayerNorm removes only the mean of b, the rest changes its output.
    b - b.mean() => b - W.mean()  # the mean of W is subtracted; b has a mean of its own.
    W - W.mean(axis=1, keepdims=True) => (W - W.mean(axis=1, keepdims=True)) / W.std()
        divided by a spread; the RMSNorm divides, so only the mean goes.
    W - W.mean(axis=1, keepdims=True) => (W.T - W.mean(axis=1)).T / W.std(axis=1, keepdims=True)
        divided by the spread of each row; the RMSNorm divides, so only the mean goes.
    W - W.mean(axis=1, keepdims=True) => W + W.mean(axis=1, keepdims=True)  # the mean is added.
    b - b.mean() => b + b.mean()  # the mean is added.
    W - W.mean(axis=1, keepdims=True) => W.mean(axis=1, keepdims=True) + 0 * W
        the part that goes; return what is left.
    W.mean(axis=1, keepdims=True) => W.sum(axis=1, keepdims=True)
        the sum of each row is subtracted; its mean is that divided by D.
    W - W.mean(axis=1, keepdims=True) => W - W.mean(axis=1, keepdims=True) - b.mean()
        the mean of b is subtracted from W; it belongs to b.
    b - b.mean() => b - b.sum()  # the sum is subtracted; the mean is that divided by D.
""")
def centre_weights(W, b):
    """Return V (n_in, D) and c (D,)."""
    return W - W.mean(axis=1, keepdims=True), b - b.mean()
