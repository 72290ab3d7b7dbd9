"""Layer normalisation and its gradients, by hand: the reference that every lesson trusts."""

from numbers import Real
from typing import NamedTuple

import numpy as np


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
        Input, typically (B, T, D). Floating-point or complex; float16 is computed in float32.
    gamma, beta : array_like, shape (D,)
        Gain and shift.
    eps : float
        Added to the variance; in units of x squared.

    Returns
    -------
    y : ndarray, shape (..., D)
        In the dtype to which NumPy promotes x, gamma and beta together.
    cache : LayerNormCache
        For `layer_norm_backward`.

    Raises
    ------
    TypeError
        If an array is not floating-point or complex, or eps is not a real number.
    ValueError
        If a shape does not fit, D is 0, or eps is negative or not finite.

    Notes
    -----
    The variance divides by D. Centring twice removes what rounding left of the mean, as the
    corrected two-pass algorithm does for the variance [1]_; complex input is never conjugated, so
    that the complex step [2]_ goes through. The layer is from [3]_.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance",
       The American Statistician 37 (1983) 242-247, doi:10.1080/00031305.1983.10483115.
    .. [2] W. Squire, G. Trapp, "Using complex variables to estimate derivatives of real functions",
       SIAM Review 40 (1998) 110-112, doi:10.1137/S003614459631241X.
    .. [3] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", 2016, arXiv:1607.06450.
    """
    x, gamma, beta, dtype = _check_forward(x, gamma, beta, eps)
    x, eps, scale = _rescale(x.astype(gamma.dtype, copy=False), eps)  # (..., D), (..., 1) twice
    xc = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    xc -= xc.mean(axis=-1, keepdims=True)  # the first mean was rounded: take away the rest
    var = np.mean(xc * xc, axis=-1, keepdims=True)  # (..., 1)
    rstd = 1 / np.sqrt(var + eps)  # (..., 1)
    x_hat = xc * rstd  # (..., D)
    y = gamma * x_hat  # (..., D)
    y += beta
    return y.astype(dtype, copy=False), LayerNormCache(x_hat, rstd / scale, gamma)


def layer_norm_backward(dy, cache):
    """Gradients of a loss with respect to x, gamma and beta, from cached values only.

    Parameters
    ----------
    dy : array_like, shape (..., D)
        Gradient of the loss with respect to y, of the shape of x.
    cache : LayerNormCache
        From the forward pass on the same x.

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

    Notes
    -----
    dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) with g = gamma * dy; lesson 01 derives it.
    The two sums over the rows are accumulated in float64.
    """
    dy, dtype = _check_backward(dy, cache)
    x_hat, rstd, gamma = cache
    g = gamma * dy  # (..., D), the gradient of x_hat
    g -= g.mean(axis=-1, keepdims=True)  # what moves the mean
    g -= x_hat * np.mean(g * x_hat, axis=-1, keepdims=True)  # what moves the variance
    dx = rstd * g  # (..., D)
    rows = tuple(range(dy.ndim - 1))
    wide = np.result_type(x_hat, dy, np.float64)
    dgamma = np.sum(dy * x_hat, axis=rows, dtype=wide)  # (D,)
    dbeta = np.sum(dy, axis=rows, dtype=wide)  # (D,)
    return tuple(d.astype(dtype, copy=False) for d in (dx, dgamma, dbeta))


def layer_norm_backward_staged(dy, x, gamma, eps=1e-5):
    """Gradients by the chain rule, one node of the graph at a time: the cross-check.

    Runs its own forward pass and uses no simplified formula, so that it can disagree with
    `layer_norm_backward` where either of them is wrong.

    Parameters
    ----------
    dy, x : array_like, shape (..., D)
    gamma : array_like, shape (D,)
    eps : float

    Returns
    -------
    dx, dgamma, dbeta : ndarray
        As `layer_norm_backward` returns them.

    Raises
    ------
    TypeError, ValueError
        As the two functions above.
    """
    x, gamma, _, _ = _check_forward(x, gamma, np.zeros_like(gamma), eps)
    x, eps, scale = _rescale(x.astype(gamma.dtype, copy=False), eps)
    # forward: x -> xc -> var -> std -> rstd -> x_hat -> y
    xc = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    xc -= xc.mean(axis=-1, keepdims=True)
    std = np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True) + eps)  # (..., 1)
    rstd = 1 / std  # (..., 1)
    x_hat = xc * rstd  # (..., D)
    dy, dtype = _check_backward(dy, LayerNormCache(x_hat, rstd, gamma))
    # backward: the same nodes, from the last to the first
    D = x.shape[-1]
    rows = tuple(range(x.ndim - 1))
    wide = np.result_type(x_hat, dy, np.float64)
    dbeta = np.sum(dy, axis=rows, dtype=wide)  # (D,)     y = gamma * x_hat + beta
    dgamma = np.sum(dy * x_hat, axis=rows, dtype=wide)  # (D,)
    dx_hat = gamma * dy  # (..., D)
    dxc = dx_hat * rstd  # (..., D)     x_hat = xc * rstd, the direct way
    drstd = np.sum(dx_hat * xc, axis=-1, keepdims=True)  # (..., 1)     and through rstd
    dstd = -drstd * rstd * rstd  # (..., 1)     rstd = 1 / std
    dvar = dstd * rstd / 2  # (..., 1)     std = sqrt(var + eps)
    dxc += 2 * xc * dvar / D  # (..., D)     var = mean(xc ** 2)
    dmean = -np.sum(dxc, axis=-1, keepdims=True)  # (..., 1)     xc = x - mean, through mean
    dx = (dxc + dmean / D) / scale  # (..., D)     mean = sum(x) / D
    return tuple(d.astype(dtype, copy=False) for d in (dx, dgamma, dbeta))


def _rescale(x, eps):
    """Return x / s, eps / s**2 and s: s is a power of two near the largest |x| of each row.

    LayerNorm(x, eps) = LayerNorm(x / s, eps / s**2) for every s > 0. Dividing by a power of two is
    exact, and afterwards no square of a large row overflows and none of a small row underflows.
    """
    real = x.real.dtype.type
    top = np.maximum(np.abs(x.real).max(axis=-1, keepdims=True), np.sqrt(real(eps)))
    scale = np.ldexp(real(1), np.frexp(top)[1] - 1)  # (..., 1)
    return x / scale, real(eps) / scale / scale, scale


def _check_floating(name, value):
    array = np.asarray(value, order="C")  # rows contiguous: NumPy sums those pairwise
    if array.dtype.kind not in "fc":
        raise TypeError(f"{name} must be floating-point or complex, got dtype {array.dtype}")
    return array


def _check_rows(x):
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (..., D) with D >= 1, got shape {x.shape}")


def _check_eps(eps):
    if not isinstance(eps, Real):
        raise TypeError(f"eps must be a real number, got {type(eps).__name__}")
    if not 0 <= eps < np.inf:
        raise ValueError(f"eps must be finite and not negative, got {eps}")


def _check_forward(x, gamma, beta, eps):
    x, gamma, beta = map(_check_floating, ("x", "gamma", "beta"), (x, gamma, beta))
    _check_rows(x)
    for name, array in (("gamma", gamma), ("beta", beta)):
        if array.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape {x.shape[-1:]}, the last axis of x with shape {x.shape}, "
                f"got shape {array.shape}"
            )
    _check_eps(eps)
    dtype = np.result_type(x, gamma, beta)
    work = np.result_type(dtype, np.float32)  # float16 is computed in float32
    return x, gamma.astype(work), beta.astype(work), dtype


def _check_backward(dy, cache, kind=LayerNormCache):
    if not isinstance(cache, kind):
        raise TypeError(f"cache must be a {kind.__name__}, got {type(cache).__name__}")
    dy = _check_floating("dy", dy)
    kept = cache[0]  # x_hat or x
    if dy.shape != kept.shape:
        raise ValueError(
            f"dy must have the shape of x in the forward pass, {kept.shape}, got {dy.shape}"
        )
    dtype = np.result_type(dy, np.complex64) if np.iscomplexobj(kept) else dy.dtype
    return dy, dtype
