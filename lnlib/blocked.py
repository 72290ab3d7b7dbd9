"""The same layer, a block of rows at a time: fusion, on a CPU.

NumPy runs one operation over the whole array, then the next, and each of them moves everything
through memory. Here all operations run on a block of rows that stays in the processor's cache, and
BLAS adds up: sums along rows and columns are products with a vector.

Centring costs passes, and few rows need it. x is centred, twice as in the reference, in blocks
with a row whose mean is larger than 0.7 times its spread; and dy, before gamma multiplies it, in
blocks where that holds for a row of g = gamma * dy.

The promise of `lnlib.layernorm` leans on BLAS here, which decides how a strip is added up. It was
searched on processors with AVX-512. With the sums of one without AVX2, 8.9e-7 of dx's scale is the
worst that was seen.
"""

import contextlib
from typing import NamedTuple

import numpy as np

from . import layernorm as reference
from .checks import check_backward, check_forward, check_out

# Values of x in a block. The five arrays of this size that a pass works on, 5 MiB in float32, fit a
# cache of 8 MiB; and NumPy's calls, of about a microsecond each, are few against the work in them.
BLOCK = 2**18
# NumPy works through a buffer of 8192 numbers, and fills it anew with what it broadcasts to several
# rows. With a buffer shorter than a row it does not; very short rows are better off as it is.
SHORT_BUFFER, LONG_ROW = 16, 512
SMALL, FEW = 2**14, 2  # values, rows: up to here calls cost more than work, the reference is faster
# Rows, and columns, that BLAS adds up in float32; on old processors one after the other.
RUN, STRIP = 16, 256


class BlockedCache(NamedTuple):
    """What the backward pass needs: three numbers per row beside x, which is not copied.

    Attributes
    ----------
    x : ndarray, shape (..., D)
        The input itself if it is C-contiguous: it must not change before the backward pass.
    mean, mean_lo : ndarray, shape (..., 1)
        The mean in two parts: what was subtracted (0 from rows that did not need it) and the mean
        of what was left then. x_hat = rstd * ((x - mean) - mean_lo).
    rstd : ndarray, shape (..., 1)
        1 / sqrt(var + eps).
    gamma : ndarray, shape (D,)
        A copy of the gain.
    """

    x: np.ndarray
    mean: np.ndarray
    mean_lo: np.ndarray
    rstd: np.ndarray
    gamma: np.ndarray


def layer_norm_forward(x, gamma, beta, eps=1e-5, *, out=None):
    """Normalise the last axis, as `lnlib.layer_norm_forward` does and as accurately.

    Parameters
    ----------
    x, gamma, beta, eps
        As for the reference, but real.
    out : ndarray, shape of x, optional
        Where to write y: C-contiguous, of the dtype of y, not overlapping x.

    Returns
    -------
    y : ndarray, shape (..., D)
    cache : BlockedCache
        Or a LayerNormCache, where the reference does the work: for up to 2**14 values or two rows,
        and for an input with a row whose rstd is below 1e-3 or above 1e4, or is not finite.

    Raises
    ------
    TypeError, ValueError
        As the reference, and if out does not fit.

    Notes
    -----
    y = (xc * rstd - mean_lo * rstd) * gamma + beta, where xc is x, or x - mean in blocks with a row
    whose mean is larger than 0.7 times its spread. With rstd in these bounds dy * xc stays in range
    for dy from 1e-30 to 1e30; the reference scales each row.
    """
    if np.size(x) <= max(SMALL, FEW * np.size(gamma)):
        y, kept = reference.layer_norm_forward(x, gamma, beta, eps)
        return _written(out, y, x), kept
    x, gamma, beta, eps, dtype = check_forward(x, gamma, beta, eps)
    y = check_out(out, x, dtype, x)
    flat_x, flat_y = (a.reshape(-1, x.shape[-1]) for a in (x, y))  # (N, D) each
    with _short_buffer(x.shape[-1]):
        found = _write_y(flat_x, gamma, beta, eps, flat_y)
    if found is None:
        y[...], kept = reference.layer_norm_forward(x, gamma, beta, eps)
        return y, kept
    return y, BlockedCache(x, *found.reshape(3, *x.shape[:-1], 1), gamma)


def layer_norm_backward(dy, cache, *, out=None):
    """Gradients, as `lnlib.layer_norm_backward` gives them and as accurately.

    Parameters
    ----------
    dy : array_like, shape (..., D)
    cache : BlockedCache or LayerNormCache
    out : ndarray, shape of dy, optional
        Where to write dx: C-contiguous, of the dtype of dy, overlapping neither dy nor the cache.

    Returns
    -------
    dx : ndarray, shape (..., D)
    dgamma, dbeta : ndarray, shape (D,)

    Raises
    ------
    TypeError, ValueError
        As the reference, and if out does not fit.

    Notes
    -----
    With x_hat = rstd * (xc - mean_lo) and g = gamma * dy the formula is
    dx = rstd * g - slope * xc + (slope * mean_lo - rstd * mean(g)), where
    slope = rstd ** 2 * mean(g * x_hat).
    """
    if isinstance(cache, reference.LayerNormCache):
        dx, dgamma, dbeta = reference.layer_norm_backward(dy, cache)
        return _written(out, dx, dy, *cache), dgamma, dbeta
    dy, dtype = check_backward(dy, cache, BlockedCache)
    dx = check_out(out, dy, dtype, dy, *cache)
    work, D = np.result_type(dy, cache.gamma), len(cache.gamma)
    flat_dy, flat_dx, flat_x = (a.reshape(-1, D) for a in (dy, dx, cache.x))  # (N, D)
    mean, mean_lo, rstd = (a.ravel().astype(work, copy=False) for a in cache[1:4])  # (N,) each
    gamma = cache.gamma.astype(work)
    sums = np.zeros((2, D), np.result_type(work, np.float64))  # dgamma, dbeta
    buffers = np.empty((3, rows_per_block(len(flat_x), D), D), work)
    with _short_buffer(D):
        for b in _slices(len(flat_x), buffers.shape[1]):
            m, lo, r = mean[b], mean_lo[b], rstd[b]  # (n,) each
            dy_b, xc = (a[b].astype(work, copy=False) for a in (flat_dy, flat_x))  # (n, D) each
            g, terms, centred = buffers[:, : len(xc)]  # (n, D) each
            if m.any():
                xc = np.subtract(xc, m[:, None], out=centred)
            np.multiply(dy_b, xc, out=terms)
            sums += _column_sums(np.stack([-r * lo, np.ones_like(r)]), dy_b)
            sums[0] += _column_sums(r[None], terms)[0]
            means = _write_g(dy_b, xc, gamma, terms, g)
            _write_dx(g, xc, lo, r, *means, terms, flat_dx[b])
    return dx, *sums.astype(dtype)


def _write_y(x, gamma, beta, eps, y):
    """Write y, (N, D); return mean, mean_lo and rstd, (3, N), or None if the reference should."""
    (N, D), work = x.shape, gamma.dtype
    found, ones = np.zeros((3, N), work), np.ones(D, work)
    buffer = np.empty((rows_per_block(N, D), D), work)
    for b in _slices(N, len(buffer)):
        xc = x[b].astype(work, copy=False)  # (n, D)
        m, var = _mean_and_variance(xc, ones)  # (n,) each
        if not (2 * m * m <= var).all():
            found[0, b] = m
            xc = np.subtract(xc, found[0, b, None], out=buffer[: len(xc)])
            m, var = _mean_and_variance(xc, ones)
        r = 1 / np.sqrt(var + eps)
        if not ((np.abs(m) * r <= 1) & (r > 1e-3) & (r < 1e4)).all():
            return None
        found[1:, b] = m, r
        x_hat = np.multiply(xc, found[2, b, None], out=buffer[: len(xc)])
        x_hat -= (m * r).astype(work)[:, None]
        x_hat *= gamma
        np.add(x_hat, beta, out=y[b])
    return found


def _write_g(dy, xc, gamma, terms, g):
    """Write g = gamma * dy, less a constant where needed; return means of g and of g * xc, (n,).

    terms holds dy * xc, and may be overwritten.
    """
    ones = np.ones_like(gamma)
    np.multiply(dy, gamma, out=g)
    mean, square = _mean_of_product(g, ones), np.vecdot(g, g) / len(gamma)  # (n,) each
    if ((3 * mean * mean <= square) & (square > 1e-35) & (square < np.inf)).all():  # in range
        return mean, _mean_of_product(terms, gamma)
    mean_dy = _mean_of_product(dy, ones).astype(g.dtype)[:, None]  # (n, 1)
    np.multiply(gamma, np.subtract(dy, mean_dy, out=g), out=g)
    g += np.multiply(mean_dy, gamma - gamma.mean(), out=terms)
    return _mean_of_product(g, ones), _mean_of_product(g, xc)


def _write_dx(g, xc, lo, r, mean_g, mean_gxc, terms, dx):
    """Write dx from g and xc, (n, D), and numbers per row; g and terms are overwritten."""
    slope = r * (r * (r * (mean_gxc - lo * mean_g)))  # (n,), in float64
    g *= r[:, None]
    g -= np.multiply(xc, slope.astype(g.dtype)[:, None], out=terms)
    np.add(g, (slope * lo - r * mean_g).astype(g.dtype)[:, None], out=dx)


@contextlib.contextmanager
def _short_buffer(D):
    """Let NumPy use a buffer shorter than a row of D, if that is long, and hide warnings.

    What goes out of range is found later.
    """
    with np.errstate(all="ignore"):  # in the end, the buffer is as it was, too
        np.setbufsize(SHORT_BUFFER if D >= LONG_ROW else np.getbufsize())
        yield


def _written(out, result, *inputs):
    """Return result, or out with its values."""
    if out is not None or np.iscomplexobj(result):  # which check_out refuses
        out = check_out(out, result, result.dtype, *map(np.asarray, inputs))
        out[...] = result
    return result if out is None else out


def rows_per_block(N, D):
    """Return how many of N rows of D values are worked on at a time."""
    return max(1, min(N, BLOCK // D))


def _slices(total, size):
    return [slice(start, start + size) for start in range(0, total, size)]


def _mean_and_variance(a, ones):
    mean = _mean_of_product(a, ones)
    return mean, _mean_of_product(a, a) - mean * mean


def _mean_of_product(a, b):
    """Return the means of the rows of a * b as float64: (n, D) and (n, D) or (D,) give (n,)."""
    D = a.shape[1]
    strips = D // STRIP
    whole = strips * STRIP
    parts = np.vecdot(*(v[..., :whole].reshape(*v.shape[:-1], strips, STRIP) for v in (a, b)))
    total = parts.astype(np.result_type(a, np.float64)) @ np.ones(strips)
    return (total + np.vecdot(a[:, whole:], b[..., whole:])) / D


def _column_sums(weights, a):
    """Return weights @ a, (k, n) by (n, D), as float64: (k, D)."""
    whole, shape = len(a) // RUN * RUN, (len(weights), a.shape[1])
    per_run = weights[:, :whole].reshape(len(weights), -1, RUN).swapaxes(0, 1)
    runs = (per_run @ a[:whole].reshape(-1, RUN, a.shape[1])).reshape(
        -1, weights.shape[0] * shape[1]
    )
    rest = np.einsum("kn,nd->kd", weights[:, whole:], a[whole:]).astype(np.float64)
    return rest + (np.ones(len(runs)) @ runs.astype(np.float64)).reshape(shape)
