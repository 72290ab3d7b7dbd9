"""Lesson 02: the layer in code."""

import numpy as np

from ..checker import Terms, mistakes
from ..layernorm import LayerNormCache, layer_norm_backward
from .data import ROWS_TERMS, eps_slips, layers, layers_with_zero, museum, of_layers
from .registry import exercise


def _forward_cases():
    for label, a in layers(2, 3, 5).items():
        yield label, (a.x, a.gamma, a.beta, 1e-5)
    a = layers(3, 4, 2)["another shape"]
    yield "eps = 0.1", (a.x, a.gamma, a.beta, 0.1)


FORWARD_TERMS = Terms(
    "1",
    "gamma * x_hat; beta; gamma; x_hat; gamma * beta; beta * x_hat; x; x - mean(x);"
    "1 / np.sqrt(var + eps); np.sqrt(var + eps); var; var + eps",
    {"var": "x.var(axis=-1, keepdims=True)", "x_hat": "(x - mean(x)) / np.sqrt(var + eps)"},
)


@exercise("y x_hat rstd", _forward_cases, terms=FORWARD_TERMS)
@mistakes("""
    x - x.mean(axis=-1, keepdims=True) => x - x.mean(axis=0)
        the mean that is subtracted is not that of each row, which lies along axis=-1.
    x - x.mean(axis=-1, keepdims=True) => x - x.mean()  # "
    np.mean(xc**2, axis=-1, keepdims=True) => x.var(axis=0)
        only the mean is that of each row; the variance lies along axis=-1 as well.
    np.mean(xc**2, axis=-1, keepdims=True) => x.var(axis=(0, 1))  # "
    np.mean(xc**2, axis=-1, keepdims=True) => x.var()  # "
    np.mean(xc**2, axis=-1, keepdims=True) => np.mean(xc**2, axis=(1, 2), keepdims=True)  # "
    x - x.mean(axis=-1, keepdims=True) => x - x.mean(axis=(1, 2), keepdims=True)
    np.mean(xc**2, axis=-1, keepdims=True) => np.mean(xc**2, axis=(1, 2), keepdims=True)
        mean and variance run over several rows; each row has its own, along axis=-1.
    var + eps => np.maximum(var, eps)  # eps is a least variance here; the layer adds it.
    np.sqrt(var + eps) => (var + eps)  # the root is missing: divided by the variance.
    1 / np.sqrt => np.sqrt  # this is the standard deviation; rstd is its reciprocal.
    np.mean(xc**2 => np.sum(xc**2  # the squares are summed and not divided by D.
    var + eps => np.mean(x, axis=-1, keepdims=True)**2 - np.mean(x**2, axis=-1, keepdims=True) + eps
        the sign of the variance: mean(x**2) - mean(x)**2; better, square x - mean(x).
    np.mean(xc**2 => np.mean(x**2  # the mean of x**2, not the variance: centre before you square.
    np.mean(xc**2 => np.mean(np.abs(xc)  # mean(abs(xc)) is no variance: square xc, then the mean.
    xc * rstd => x * rstd  # x is divided, but not centred: subtract the mean.
    beta, x_hat => beta, gamma * x_hat
        this is gamma * x_hat: return x_hat as it is before gamma multiplies it.
    beta, x_hat => beta, xc  # this is x - mean(x), before it is multiplied by rstd.
""")
@mistakes(eps_slips("var"))
def forward_by_hand(x, gamma, beta, eps):
    """Return y (B, T, D), x_hat (B, T, D) and rstd (B, T, 1)."""
    xc = x - x.mean(axis=-1, keepdims=True)  # (B, T, D)
    var = np.mean(xc**2, axis=-1, keepdims=True)  # (B, T, 1)
    rstd = 1 / np.sqrt(var + eps)  # (B, T, 1)
    x_hat = xc * rstd  # (B, T, D)
    return gamma * x_hat + beta, x_hat, rstd


BACKWARD_CASES = of_layers("dy x_hat rstd gamma", 2, 3, 5, make=layers_with_zero)


@exercise("dx dgamma dbeta", BACKWARD_CASES, terms=ROWS_TERMS)
@mistakes("""
    dgamma, dy.sum(axis=(0, 1)) => dgamma, dgamma  # this is dgamma: dbeta adds up dy alone.
""")
@mistakes(museum(LayerNormCache))
def backward_by_hand(dy, x_hat, rstd, gamma):
    """Return dx (B, T, D), dgamma (D,) and dbeta (D,)."""
    g = gamma * dy  # (B, T, D)
    mean_g = g.mean(axis=-1, keepdims=True)  # (B, T, 1)
    mean_gx = (g * x_hat).mean(axis=-1, keepdims=True)  # (B, T, 1)
    dx = rstd * (g - mean_g - x_hat * mean_gx)  # (B, T, D)
    dgamma = (dy * x_hat).sum(axis=(0, 1))  # (D,)
    return dx, dgamma, dy.sum(axis=(0, 1))


FROM_Y_TERMS = ROWS_TERMS._replace(names=ROWS_TERMS.names | {"x_hat": "(y - beta) / gamma"})


FROM_Y = """
    (y - beta) / gamma => y  # y is taken for x_hat.
    (y - beta) => y  # x_hat is y / gamma here: beta is not subtracted.
    (y - beta) / gamma => y - beta  # x_hat is y - beta here: gamma is still in it.
    (y - beta) / gamma => y - beta / gamma  # beta is divided alone: (y - beta) / gamma.
    (y - beta) / gamma => y / gamma - beta  # beta was added last, so take it off first.
    y - beta => y + beta  # x_hat is (y + beta) / gamma here: the sign of beta.
    / gamma => * gamma  # x_hat is (y - beta) * gamma here: divide by gamma.
    (y - beta) / gamma => (y - beta) * rstd
        rstd is in y already: to undo the product with gamma, divide by gamma.
    (y - beta) / gamma => (y - beta) / gamma / rstd
        (y - beta) / gamma is x_hat already: do not divide it by rstd as well.
    (y - beta) / gamma => gamma / (y - beta)  # x_hat is upside down here: (y - beta) / gamma.
    (y - beta) / gamma => (y - y.mean(axis=-1, keepdims=True)) * rstd
        y is normalised as if it were x: undo the last line of the forward pass instead.
    (y - beta) / gamma => (y - y.mean(axis=-1, keepdims=True)) / (y.var(-1)[..., None] + 1e-5)**0.5
    , rstd, gamma) => , 1 / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-5), gamma)  # "
"""


@mistakes(FROM_Y)
def _by_lnlib(dy, y, rstd, gamma, beta):
    """Return the gradients by lnlib: of a wrong x_hat it makes other numbers than the formulas."""
    return layer_norm_backward(dy, LayerNormCache((y - beta) / gamma, rstd, gamma))


OF_THE_CACHE = [  # gamma outside the means gives what a wrong order of the cache gives, see below
    (words, wrong)
    for words, wrong in museum(lambda y, r, gamma, b: LayerNormCache((y - b) / gamma, r, gamma))
    if not words.startswith("gamma outside")
]


@exercise("dx dgamma dbeta", of_layers("dy y rstd gamma beta", 2, 3, 5), terms=FROM_Y_TERMS)
@mistakes(_by_lnlib.mistakes)
@mistakes(FROM_Y)
@mistakes("""
    x_hat, rstd, gamma) => x_hat, gamma, rstd)
        gamma and rstd are exchanged in (x_hat, rstd, gamma), or gamma is outside the means.
    x_hat, rstd, gamma) => rstd, x_hat, gamma)
        the cache is not in the order (x_hat, rstd, gamma).
    x_hat, rstd, gamma) => rstd, gamma, x_hat)  # "
    x_hat, rstd, gamma) => gamma, rstd, x_hat)  # "
    x_hat, rstd, gamma) => gamma, x_hat, rstd)  # "
""")
@mistakes(OF_THE_CACHE)
def backward_from_y(dy, y, rstd, gamma, beta):
    """Return dx (B, T, D), dgamma (D,) and dbeta (D,)."""
    x_hat = (y - beta) / gamma  # (B, T, D)
    return backward_by_hand(dy, x_hat, rstd, gamma)


PRENORM_TERMS = Terms(
    "1; cache.gamma; cache.rstd",
    "dz; dx_layer; cache.gamma * dz; cache.rstd * dz",
    {"dx_layer": "layer_norm_backward(dz, cache)[0]"},
)


@exercise("dx dgamma dbeta", of_layers("dy cache", 2, 3, 5), terms=PRENORM_TERMS)
@mistakes("""
    dz + dx => dx  # the way past the layer is missing: add dz, what comes back along it.
    dz + dx, dgamma => dz + dx, dgamma + dz.sum(axis=(0, 1))
        the way past the layer does not touch gamma: only dx gets a second part.
    return dz => dbeta = 2 * dbeta; return dz
        the way past the layer does not touch beta: only dx gets a second part.
    dz + dx => 1 + dx  # the derivative of x is 1, but the gradient of the loss there is dz.
    dz + dx => dz * dx  # the gradients of the two ways add up, they do not multiply.
    dz + dx => dz * (1 + dx)  # "
    return dz + dx, dgamma, dbeta => return layer_norm_backward(dz + dx, cache)
        the layer is passed twice: dz goes back through it once, and then dz is added.
    dz + dx => cache.x_hat + dx  # past the layer flows the gradient dz, not the value x_hat.
    dz + dx => cache.x_hat + dz + dx  # x_hat is a value: add up the two gradients, and no value.
    dz + dx => dz.sum() + dx  # dz is summed; past the layer each entry goes to its own x.
    dz + dx => dz.sum(axis=-1, keepdims=True) + dx  # "
    dz + dx => dz.sum(axis=(0, 1)) + dx  # "
    dz + dx => dz.sum(axis=0) + dx  # "
    dz + dx => dz.mean() + dx  # dz is averaged; past the layer each entry goes to its own x.
    dz + dx => dz.mean(axis=-1, keepdims=True) + dx  # "
    dz + dx => dz.mean(axis=(0, 1)) + dx  # "
    dz + dx => dz.mean(axis=0) + dx  # "
""")
def prenorm_backward(dz, cache):
    """Return dx (B, T, D), dgamma (D,) and dbeta (D,)."""
    dx, dgamma, dbeta = layer_norm_backward(dz, cache)
    return dz + dx, dgamma, dbeta


def _padded_cases():
    for label, a in layers(2, 3, 5).items():
        rng = np.random.default_rng(len(label))
        keep = rng.permuted(np.arange(a.dy[..., 0].size) % 3 > 0).reshape(a.dy.shape[:2])  # (B, T)
        x_hat, rstd = a.cache.x_hat.copy(), a.cache.rstd.copy()  # (B, T, D), (B, T, 1)
        if label != "ordinary rows":
            label += " and NaN"
            x_hat[~keep] = rstd[~keep] = np.nan
        dy = a.dy.copy()  # (B, T, D)
        if label.startswith("another shape"):
            label += " in x and dy"
            dy[~keep] = np.nan
        yield label, (dy, LayerNormCache(x_hat, rstd, a.gamma), keep)


@exercise("dx dgamma dbeta", _padded_cases)
@mistakes("""
    [keep] => [~keep]  # the rows are exchanged: keep is True for those that count.
    np.zeros_like(dy) => layer_norm_backward(dy, cache)[0]
        not 0 where keep is False; rows that do not count have no gradient.
    np.zeros_like(dy) => dy.copy()  # "
    x_hat[keep], rstd[keep], gamma => x_hat, rstd, gamma
    dx[keep], => dx,
    (dy[keep], => (dy * keep[..., None],
        NaN times 0 is NaN: leave out the rows that do not count, and multiply nothing by 0.
    x_hat[keep], rstd[keep], gamma => np.nan_to_num(x_hat), np.nan_to_num(rstd), gamma
    dx[keep], => dx,
    (dy[keep], => (dy * keep[..., None],
        NaN times 0 is NaN: dy has NaN as well. Leave out the rows that do not count.
    x_hat[keep], rstd[keep], gamma => np.nan_to_num(x_hat), np.nan_to_num(rstd), gamma
    dx[keep], => dx,
    (dy[keep], => (dy,
        rows that do not count are used, too: choose the rows by keep.
    return dx, dgamma, dbeta => return dx, np.nansum(dy * x_hat, axis=(0, 1)), dbeta  # "
    return dx, dgamma, dbeta => return dx, np.nan_to_num((dy * x_hat).sum(axis=(0, 1))), dbeta  # "
    return dx, dgamma, => return dx, np.nan_to_num((dy * keep[..., None] * x_hat).sum(axis=(0, 1))),
        the sum was NaN already when NaN became 0: leave the rows out before the sum.
    return dx, dgamma, dbeta => return dx, dgamma, dy.sum(axis=(0, 1))
        summed over all rows; add up those that count.
    return dx, dgamma, dbeta => return dx, (dy * x_hat).sum(axis=(0, 1)), dbeta  # "
    return dx, dgamma, dbeta => return dx, dgamma / keep.sum(), dbeta / keep.sum()
        averaged over the rows that count; the rows add up.
""")
def backward_of_kept_rows(dy, cache, keep):
    """Return dx (B, T, D), dgamma (D,) and dbeta (D,)."""
    x_hat, rstd, gamma = cache
    kept = LayerNormCache(x_hat[keep], rstd[keep], gamma)  # (N, D), (N, 1), (D,)
    dx = np.zeros_like(dy)  # (B, T, D)
    dx[keep], dgamma, dbeta = layer_norm_backward(dy[keep], kept)
    return dx, dgamma, dbeta
