"""Lesson 07, sections 1 to 3: RMSNorm, y = gamma * x / sqrt(mean(x**2) + eps), and its gradient."""

import numpy as np

from .checker import exercise, mistakes
from .data import DX_TERMS, layer, layers
from .describe import Terms


def _rows(*shape):
    """Return `layers`, with small rows, where eps counts, in place of flat ones."""
    ordinary, flat, other = layers(*shape).items()
    small = flat[1]._replace(x=layer(72, *flat[1].x.shape).x / 200)
    matrix = ("rows of shape (N, D)", layer(73, *shape[-2:]))
    return dict([ordinary, ("small rows", small), other] + [matrix] * (len(shape) > 1))


@exercise(
    "y x_hat rstd",
    lambda: (
        {k: (a.x, a.gamma, 1e-5) for k, a in _rows(2, 3, 5).items()}
        | {"eps = 0.1": (*_rows(3, 4, 2)["another shape"][1:3], 0.1)}
    ),
)
@mistakes("""
    rstd = 1 => x = x - x.mean(-1)[..., None]; rstd = 1  # this is LayerNorm: subtract no mean.
    np.mean(x * x => np.var(x  # the variance is in it. Nothing is centred: the mean of x**2.
    x_hat = x * => x_hat = (x - x.mean(-1)[..., None]) *  # x_hat is centred; in RMSNorm nothing is.
    np.mean => np.sum  # a sum where the mean of x**2 belongs: not divided by D.
    keepdims=True) + eps) => keepdims=True)) + eps  # eps is added to rstd, not inside the root.
    1 / np.sqrt( => 1 / (np.sqrt(
    keepdims=True) + eps) => keepdims=True)) + eps)  # eps is outside the root: sqrt(ms) + eps.
    + eps) => )  # eps is missing.
    + eps) => + 1e-5)  # eps is not the argument but fixed at 1e-5.
    np.sqrt( => (  # the root is missing: divided by the mean of the squares.
    1 / np.sqrt => np.sqrt  # multiplied by the root, where x_hat is divided by it.
    , x_hat, rstd => , x_hat, 1 / rstd  # this is the root; rstd is its reciprocal.
    gamma * x_hat => (1 + gamma) * x_hat  # multiplied by 1 + gamma (Gemma's way), not gamma.
    gamma * x_hat => x_hat  # gamma is missing.
    , x_hat, rstd => , gamma * x_hat, rstd  # gamma is in it; it belongs to y.
""")
def rms_forward(x, gamma, eps):
    """Return y (B, T, D), x_hat (B, T, D) and rstd (B, T, 1)."""
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)  # (B, T, 1)
    x_hat = x * rstd  # (B, T, D)
    return gamma * x_hat, x_hat, rstd


RMS_JACOBIAN_TERMS = Terms(
    "rstd; 1; rstd**2; rstd**3",
    "np.eye(D); np.outer(x_hat, x_hat) / D; 1 / D; 1; np.outer(x_hat, x_hat);"
    "rstd * np.outer(x_hat, x_hat) / D; rstd**2 * np.outer(x_hat, x_hat) / D",
    {"D": "x_hat.size"},
)


def _with_cache(*shape):
    """Return {what is special: (Layer, x_hat, rstd)}."""
    return {k: (a, *rms_forward(a.x, a.gamma, 1e-5)[1:]) for k, a in _rows(*shape).items()}


@exercise(
    "jacobian",
    lambda: {k: kept for k, (_, *kept) in _with_cache(5).items()},
    terms=RMS_JACOBIAN_TERMS,
)
@mistakes("""
    np.eye(D) => np.eye(D) - 1 / D  # LayerNorm's term through the mean; here is no mean.
    - np.outer(x_hat, x_hat) / D =>  # only the straight route is there: rstd depends on x too.
    np.outer => rstd**2 * np.outer  # rstd**3 goes with x; x_hat has two of them in it already.
    np.outer(x_hat, x_hat) => x_hat * x_hat  # one row; all products are needed: np.outer.
    np.outer(x_hat, x_hat) => x_hat @ x_hat  # one number; all products are needed: np.outer.
""")
def rms_jacobian(x_hat, rstd):
    """Return all dx_hat_i/dx_j of one row, (D, D), from x_hat (D,) and rstd (1,)."""
    D = x_hat.size
    return rstd * (np.eye(D) - np.outer(x_hat, x_hat) / D)


@exercise(
    "dx dgamma",
    lambda: {k: (a.dy, *kept, a.gamma) for k, (a, *kept) in _with_cache(2, 3, 5).items()},
    terms=DX_TERMS,
)
@mistakes("""
    (g - => (g - g.mean(axis=-1, keepdims=True) -  # LayerNorm's mean term; this layer has no mean.
    - x_hat * along =>  # only the straight route is there: rstd depends on every x too.
    g = gamma * dy => g = dy
    dx = rstd => dx = gamma * rstd  # gamma stands in front of the mean; it belongs inside.
    g = gamma * dy => g = dy  # gamma is missing.
    np.mean(g => np.mean(dy  # gamma is missing inside the mean, where the row's g is averaged.
    np.mean => np.sum  # a sum where the mean of g * x_hat belongs: not divided by D.
    rstd * (g - x_hat * along) => (g - x_hat * along) / (np.sqrt(1 / rstd**2 - 1e-5) + 1e-5)
        it holds for sqrt(ms) + eps, with eps outside the root.
    rstd * (g - => (rstd * g - rstd**3 *  # rstd**3 goes with x; x_hat has two of them already.
    .sum(axis=tuple(range(dy.ndim - 1))) =>  # not summed: the rows share gamma; add them up.
    (dy * x_hat).sum => dy.sum  # x_hat is missing: gamma multiplies it.
    (dy * x_hat).sum => (g * x_hat).sum  # gamma is in it: the derivative by gamma is x_hat.
    .sum( => .mean(  # averaged over the rows, where they are added up.
    axis=tuple(range(dy.ndim - 1)) => axis=-1  # a sum along each row; add up the rows.
""")
def rms_backward(dy, x_hat, rstd, gamma):
    """Return dx, of the shape of dy, and dgamma (D,)."""
    g = gamma * dy  # (B, T, D)
    along = np.mean(g * x_hat, axis=-1, keepdims=True)  # (B, T, 1)
    dx = rstd * (g - x_hat * along)  # (B, T, D)
    return dx, (dy * x_hat).sum(axis=tuple(range(dy.ndim - 1)))
