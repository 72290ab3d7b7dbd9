"""Inputs for the checkers: never constant, symmetric or aligned, no two axes of one length."""

from typing import NamedTuple

import numpy as np

from ..bugs import BUGS
from ..checker import Terms, edits, functions_of
from ..layernorm import LayerNormCache, layer_norm_forward
from .registry import axes_of


class Layer(NamedTuple):
    """What goes into and comes out of a forward pass, and a gradient dy for its backward pass."""

    dy: np.ndarray
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    y: np.ndarray
    cache: LayerNormCache


def layer(seed, *shape, spread=1.0):
    """Return a `Layer` with x of that shape; dy has a mean, gamma has both signs."""
    rng = np.random.default_rng(seed)
    x = 0.7 + spread * rng.standard_normal(shape)  # (..., D)
    gamma = rng.uniform(0.5, 2, shape[-1]) * rng.choice([-1, 1, 1], shape[-1])  # (D,)
    beta, dy = rng.standard_normal(shape[-1]), 0.4 + rng.standard_normal(shape)  # (D,), (..., D)
    return Layer(dy, x, gamma, beta, *layer_norm_forward(x, gamma, beta))


def layers(*shape):
    """Return {what is special: Layer}: three shapes; in flat rows eps counts."""
    *lead, D = shape
    return {
        "ordinary rows": layer(11, *shape),
        "flat rows": layer(12, *reversed(lead), D, spread=0.004),
        "another shape": layer(13, *(n + 2 for n in lead), D + 2),
    }


def of_layers(names, *shape):
    """Return the cases {what is special: the named fields of a Layer or its cache}, as called."""

    def cases():
        fields = {label: a._asdict() | a.cache._asdict() for label, a in layers(*shape).items()}
        return {label: tuple(a[name] for name in names.split()) for label, a in fields.items()}

    return cases


def far_rows(seed, offset, grid, dtype=np.float32, spread=4):
    """Return rows, (2, 3, 7), whose means lie 3/7 of a grid step from the next float of dtype.

    So the mean cannot be stored exactly, in whatever order it is added up.
    """
    rng = np.random.default_rng(seed)
    steps = np.rint(spread / grid * rng.standard_normal((2, 3, 7)))  # (2, 3, 7)
    steps[..., -1] += 3 - steps.sum(axis=-1) % 7
    sign = rng.choice([-1, 1], (2, 3, 1))
    middle = np.rint(offset * rng.uniform(1, 1.2, (2, 3, 1)) / grid)
    return ((sign * middle + steps) * grid).astype(dtype)  # exact


def float32_rows(seed, *shape):
    """Return the x of a `layer` in float32."""
    return layer(seed, *shape).x.astype(np.float32)


def _backward(dy, cache):
    x_hat, rstd, gamma = cache
    rows = tuple(range(dy.ndim - 1))
    g = gamma * dy  # (B, T, D)
    mean_g = g.mean(axis=-1, keepdims=True)  # (B, T, 1)
    mean_gx = (g * x_hat).mean(axis=-1, keepdims=True)  # (B, T, 1)
    dx = rstd * (g - mean_g - x_hat * mean_gx)  # (B, T, D)
    return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)


SLIPS = axes_of(_backward) | edits("""
    .mean( => .sum(  # sums where the two means along the row belong.
    mean_g = g.mean( => mean_g = g.sum(  # the first mean is a sum.
    rstd * (g - mean_g => (rstd * g - mean_g  # rstd multiplies the first term only, not all three.
    .sum(axis=rows) =>  # not summed: every row uses the same gamma and beta, so the rows add up.
    (dy * x_hat).sum( => (g * x_hat).sum(
    dy.sum( => g.sum(  # summed from g = gamma * dy; gamma and beta come after x_hat, so sum dy.
    (dy * x_hat).sum( => (dy * x_hat).mean(  # the mean over the rows, where they are added up.
""")


def museum(as_cache, outputs=slice(None)):
    """Return {what is wrong: function}: every bug of `lnlib.bugs`, and slips of the keyboard.

    Parameters
    ----------
    as_cache : callable
        Turns the arguments of the exercise after dy into a LayerNormCache.
    outputs : int or slice
        Which of dx, dgamma, dbeta the exercise asks for.
    """

    def mistake(backward):
        return lambda dy, *kept: backward(dy, as_cache(*kept))[outputs]

    wrong = {f"{bug.name}. Forgotten: {bug.forgets}.": mistake(bug.backward) for bug in BUGS}
    return wrong | {text: mistake(backward) for text, backward in functions_of(SLIPS, _backward)}


DX_TERMS = Terms(  # of which dx, right or wrong, is usually a sum
    "rstd; 1; rstd**2; 1 / rstd; gamma * rstd",
    "g; mean(g); x_hat * mean(g * x_hat); mean(g * x_hat); x_hat * mean(g); dy; mean(dy);"
    "x_hat * mean(dy * x_hat); gamma * mean(dy); gamma * x_hat * mean(dy * x_hat);"
    "x_hat * g * x_hat; x_hat * g * x_hat / dy.shape[-1]",
    {"g": "gamma * dy"},
)
