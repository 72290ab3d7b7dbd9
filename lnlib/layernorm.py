"""Layer normalisation and its gradients, by hand: the reference that every lesson trusts.

The layer is from Ba, Kiros and Hinton [1]_, the formula for dx is derived in lesson 01. Forward,
x is centred twice, as the corrected two-pass algorithm [2]_ does: the second mean is what rounding
left of the first, and is added up in float64. Backward, gamma * dy is centred before it is rounded.
Complex input is never conjugated, so that the complex step [3]_ goes through.

The promise, in float32: the error of an entry is at most 4e-7 of a scale for data at large. For
every row it is at most 1e-6 of it, for dx 2e-6: lesson 05 proves that for D <= 1e5. `lnlib.blocked`
and the kernel add up in float32; they keep the promise for the worst rows that we know, which are
built against their order of additions. It holds for every offset of x, for means of g = gamma * dy
up to 1e4 times the spread of g, and for up to 1e6 rows. As usual in such bounds, nothing may
overflow or underflow. y and dx have a scale for each row, dgamma and dbeta have one each. They are

- of y: max |gamma| * max |x_hat| + max |beta|;
- of dx: the largest rstd * (|gc| + |x_hat| * mean(|gc * x_hat|)), where gc = g - mean(g). This is
  the formula for dx with a sum in place of its last difference, and without signs in its mean;
- of dgamma and dbeta: the largest sum over the rows of |dy| * (1 + |x_hat|), and of |dy|.

References
----------
.. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", 2016, arXiv:1607.06450.
.. [2] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance",
   The American Statistician 37 (1983) 242-247, doi:10.1080/00031305.1983.10483115.
.. [3] W. Squire, G. Trapp, "Using complex variables to estimate derivatives of real functions",
   SIAM Review 40 (1998) 110-112, doi:10.1137/S003614459631241X.
"""

from typing import NamedTuple

import numpy as np

from .checks import check_backward, check_forward


class LayerNormCache(NamedTuple):
    """What the backward pass needs from the forward pass, and nothing more.

    Attributes
    ----------
    x_hat : ndarray, shape (..., D)
        The normalised input, in the dtype of the computation (float32 for float16 input).
    rstd : ndarray, shape (..., 1)
        1 / sqrt(var + eps), in units of 1/x.
    gamma : ndarray, shape (D,)
        A copy of the gain, so that an optimiser step in between cannot change the gradient.
    """

    x_hat: np.ndarray
    rstd: np.ndarray
    gamma: np.ndarray


def layer_norm_forward(x, gamma, beta, eps=1e-5):
    """Normalise the last axis: y = gamma * (x - mean) / sqrt(var + eps) + beta.

    Parameters
    ----------
    x : array_like, shape (..., D)
        Typically (B, T, D). Floating-point or complex; float16 is computed in float32.
    gamma, beta : array_like, shape (D,)
    eps : float
        Added to the variance, which divides by D; in units of x squared.

    Returns
    -------
    y : ndarray, shape (..., D)
        In the dtype to which NumPy promotes x, gamma and beta together.
    cache : LayerNormCache

    Raises
    ------
    TypeError
        If an array is not floating-point or complex, or eps is not a real number.
    ValueError
        If a shape does not fit, D is 0, or eps is negative or not finite.
    """
    x, gamma, beta, eps, dtype = check_forward(x, gamma, beta, eps)
    x, eps, scale = _rescale(x.astype(gamma.dtype, copy=False), eps)  # (..., D), (..., 1) twice
    xc = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    xc -= _wide_mean(xc)  # the first mean was rounded: take away the rest
    rstd = (1 / np.sqrt(_wide_mean(xc * xc) + eps)).astype(x.dtype, copy=False)  # (..., 1)
    x_hat = xc * rstd  # (..., D)
    y = gamma * x_hat  # (..., D)
    y += beta
    return y.astype(dtype, copy=False), LayerNormCache(x_hat, rstd / scale, gamma)


def layer_norm_backward(dy, cache):
    """Gradients of a loss with respect to x, gamma and beta, from cached values only.

    dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = gamma * dy. Both means and the two
    sums over the rows are accumulated in float64.

    Parameters
    ----------
    dy : array_like, shape (..., D)
        Gradient of the loss with respect to y.
    cache : LayerNormCache
        From the forward pass.

    Returns
    -------
    dx : ndarray, shape (..., D)
    dgamma, dbeta : ndarray, shape (D,)
        All three in the dtype of dy (complex if the cache is).

    Raises
    ------
    TypeError
        If dy is not floating-point or complex, or cache is not a LayerNormCache.
    ValueError
        If dy does not have the shape of the cached x_hat.
    """
    dy, dtype = check_backward(dy, cache, LayerNormCache, "x_hat")
    x_hat, rstd, gamma = cache
    g = centred_product(gamma, dy)  # (..., D), less what would move the mean of x
    g -= x_hat * _wide_mean(g * x_hat).astype(g.dtype, copy=False)  # what moves the variance
    dx = rstd * g  # (..., D)
    rows = tuple(range(dy.ndim - 1))
    wide = np.result_type(x_hat, dy, np.float64)
    dgamma = np.sum(dy * x_hat, axis=rows, dtype=wide)  # (D,)
    dbeta = np.sum(dy, axis=rows, dtype=wide)  # (D,)
    return tuple(d.astype(dtype, copy=False) for d in (dx, dgamma, dbeta))


def layer_norm_backward_staged(dy, x, gamma, eps=1e-5):
    """Gradients by the chain rule, one node of the graph at a time: the cross-check.

    Runs its own forward pass and uses no simplified formula, so that it can disagree with
    `layer_norm_backward` where either of them is wrong. Takes x and gamma as the forward pass
    does; returns and raises what `layer_norm_backward` does.
    """
    x, gamma, _, eps, _ = check_forward(x, gamma, np.zeros_like(gamma), eps)
    x, eps, scale = _rescale(x.astype(gamma.dtype, copy=False), eps)
    # forward: x -> xc -> var -> std -> rstd -> x_hat -> y
    xc = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    xc -= _wide_mean(xc)
    std = np.sqrt(_wide_mean(xc * xc) + eps)  # (..., 1)
    rstd = (1 / std).astype(xc.dtype, copy=False)  # (..., 1)
    x_hat = xc * rstd  # (..., D)
    cache = LayerNormCache(x_hat, rstd, gamma)
    dy, dtype = check_backward(dy, cache, LayerNormCache, "x_hat")
    # backward: the same nodes, from the last to the first
    D = x.shape[-1]
    rows = tuple(range(x.ndim - 1))
    wide = np.result_type(x_hat, dy, np.float64)
    dbeta = np.sum(dy, axis=rows, dtype=wide)  # (D,)     y = gamma * x_hat + beta
    dgamma = np.sum(dy * x_hat, axis=rows, dtype=wide)  # (D,)
    dx_hat = centred_product(gamma, dy)  # (..., D), less its mean: x_hat sums to 0
    dxc = dx_hat * rstd  # (..., D)     x_hat = xc * rstd, the direct way
    drstd = D * _wide_mean(dx_hat * xc)  # (..., 1)     and through rstd
    dstd = -drstd * rstd * rstd  # (..., 1)     rstd = 1 / std
    dvar = dstd * rstd / 2  # (..., 1)     std = sqrt(var + eps)
    dxc += 2 * xc * (dvar / D)  # (..., D)     var = mean(xc ** 2)
    dmean = -np.sum(dxc, axis=-1, keepdims=True)  # (..., 1)     xc = x - mean, through mean
    dx = (dxc + dmean / D) / scale  # (..., D)     mean = sum(x) / D
    return tuple(d.astype(dtype, copy=False) for d in (dx, dgamma, dbeta))


def centred_product(gamma, dy, out=None):
    """Return g - mean(g) with g = gamma * dy, (..., D), in out or in a new array.

    The product of two float32 numbers is exact in float64. So nothing is rounded before the mean is
    subtracted, and however large that is, it takes no digits from what is left.
    """
    g = np.multiply(gamma, dy, dtype=np.result_type(gamma, dy, np.float64))
    out = np.empty(g.shape, np.result_type(gamma, dy)) if out is None else out
    return np.subtract(g, g.mean(axis=-1, keepdims=True), out=out, casting="same_kind")


def _wide_mean(a):
    """Return the mean of each row, (..., 1), in float64: one entry can dwarf all others."""
    return a.mean(axis=-1, keepdims=True, dtype=np.result_type(a, np.float64))


def _rescale(x, eps):
    """Return x / s, eps / s**2 and s: s is a power of two near the largest |x| of each row.

    LayerNorm(x, eps) = LayerNorm(x / s, eps / s**2) for every s > 0. Dividing by a power of two is
    exact, and afterwards no square of a large row overflows and none of a small row underflows.
    A constant row only has eps to be measured by: it becomes 0 (not finite if it was not).
    """
    x = np.where(np.all(x == x[..., :1], axis=-1, keepdims=True), x - x, x)
    top = np.maximum(np.abs(x.real).max(axis=-1, keepdims=True), x.real.dtype.type(eps**0.5))
    scale = np.ldexp(x.real.dtype.type(1), np.frexp(top)[1] - 1)  # (..., 1)
    return x / scale, (np.float64(eps) / scale / scale).astype(top.dtype), scale
