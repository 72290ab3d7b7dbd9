"""The same layer, a block of rows at a time: tiling, on a CPU.

NumPy runs one operation over the whole array, then the next, and each of them moves everything
through memory. Here all operations run on a block of rows that stays in the processor's cache, and
BLAS adds up: sums along rows and columns are products with a vector.

Centring costs passes, and few rows need it. x is centred, twice as in the reference, in blocks
where a row's mean is not small beside its spread: larger than 0.7 of it, or for D > 72 than
6 / sqrt(D) of it. Random rows around 0 do not come near that. Where it holds for a row of
g = gamma * dy, g is computed in float64, as in the reference.

The promise of `lnlib.layernorm` leans on BLAS here, which decides how a strip is added up. The
search found at most 5.6e-7 of dx's scale with OpenBLAS for AVX-512, 6.9e-7 with that for SSE. Rows
built against the order in which one BLAS adds up reach 2e-6.
"""

import contextlib
from typing import NamedTuple

import numpy as np

from . import layernorm as reference
from .checks import check_backward, check_forward, check_out

# Values of x in a block. A pass works on at most five arrays of this size: 5 MiB in float32 fit a
# cache of 8 MiB. NumPy's calls, of about a microsecond each, are few against the work in them.
BLOCK = 2**18
# NumPy works through a buffer of 8192 numbers, and fills it anew with what it broadcasts to several
# rows. With a buffer shorter than a row it does not; very short rows are better off as it is.
SHORT_BUFFER, LONG_ROW = 16, 512
SMALL, FEW = 2**14, 2  # values, rows: up to here calls cost more than work, the reference is faster
# Rows, and columns, that BLAS adds up in float32; on old processors one after the other.
RUN, STRIP = 16, 64


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
    with _numpy_settings(x.shape[-1]):
        _, lo, r = found = _write_y(flat_x, gamma, beta, eps, flat_y)
        fits = (np.abs(lo) * r <= 1) & (r > 1e-3) & (r < 1e4)
    kept = BlockedCache(x, *found.reshape(3, *x.shape[:-1], 1), gamma)
    if not fits.all():
        y[...], kept = reference.layer_norm_forward(x, gamma, beta, eps)
    return y, kept


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
    mean, gamma = cache.mean.astype(work).reshape(-1, 1), cache.gamma.astype(work)
    lo, r = (a.ravel().astype(np.result_type(work, np.float64)) for a in cache[2:4])  # (N,) each
    weights = np.array([-r * lo, np.ones_like(r), r], work)  # (3, N)
    sums = np.zeros((2, D), r.dtype)  # dgamma, dbeta
    buffer = np.empty((rows_per_block(*flat_x.shape), D), work)
    with _numpy_settings(D):
        for b in _blocks(*flat_x.shape):
            dy_b, xc = (a[b].astype(work, copy=False) for a in (flat_dy, flat_x))  # (n, D) each
            if mean[b].any():
                xc = xc - mean[b]
            terms = np.multiply(dy_b, xc, out=buffer[: len(xc)])  # (n, D)
            sums += _column_sums(weights[:2, b], dy_b)
            sums[0] += _column_sums(weights[2:, b], terms)[0]
            g = flat_dx[b] if dtype == work else np.empty_like(terms)  # (n, D)
            means = _write_g(dy_b, xc, gamma, terms, g)
            _write_dx(g, xc, lo[b], r[b], *means, terms, flat_dx[b])
    return dx, *sums.astype(dtype)


def _write_y(x, gamma, beta, eps, y):
    """Write y, (N, D), and return mean, mean_lo and rstd, (3, N)."""
    found, work = np.zeros((3, len(x)), gamma.dtype), gamma.dtype
    for b in _blocks(*x.shape):
        xc = x[b].astype(work, copy=False)  # (n, D)
        x_hat = y[b] if y.dtype == work else np.empty_like(xc)  # (n, D)
        m, var = _mean_and_variance(xc)  # (n,) each
        if not is_small(m, var, x.shape[1]).all():
            found[0, b] = m
            xc = np.subtract(xc, found[0, b, None], out=x_hat)
            m, var = _mean_and_variance(xc)
        r = 1 / np.sqrt(var + eps)
        found[1:, b] = m, r
        np.multiply(xc, found[2, b, None], out=x_hat)
        x_hat -= (m * r).astype(work)[:, None]
        x_hat *= gamma
        np.add(x_hat, beta, out=y[b])
    return found


def _write_g(dy, xc, gamma, terms, g):
    """Write g = gamma * dy, less its mean where needed; return means of g and of g * xc, (n,).

    terms holds dy * xc, and may be overwritten.
    """
    np.multiply(dy, gamma, out=g)
    mean, square = _row_means(dy, gamma), np.vecdot(g, g) / np.float64(len(gamma))  # (n,) each
    in_range = (square > 1e-35) & (square < np.inf)
    if (in_range & is_small(mean, square - mean * mean, len(gamma))).all():
        return mean, _row_means(terms, gamma)
    reference.centred_product(gamma, dy, out=g)
    return np.zeros_like(mean), _row_means(np.multiply(g, xc, out=terms), np.ones_like(gamma))


def _write_dx(g, xc, lo, r, mean_g, mean_gxc, terms, dx):
    """Write dx from g and xc, (n, D), and numbers per row; g and terms are overwritten."""
    slope = r * (r * (r * (mean_gxc - lo * mean_g)))  # (n,), in float64
    numbers = np.array([r, slope, slope * lo - r * mean_g], g.dtype)[..., None]  # (3, n, 1)
    g *= numbers[0]
    g -= np.multiply(xc, numbers[1], out=terms)
    np.add(g, numbers[2], out=dx)


@contextlib.contextmanager
def _numpy_settings(D):
    """Hide NumPy's warnings, and if rows of D are long, make its buffer shorter than a row."""
    with np.errstate(all="ignore"):  # which also puts the buffer's size back at its end
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
    return max(1, min(N, BLOCK // D // RUN * RUN or BLOCK // D))


def _blocks(N, D):
    size = rows_per_block(N, D)
    return [slice(start, start + size) for start in range(0, N, size)]


def is_small(mean, var, D):
    """Tell which means, (n,), cost no digits if they stay in their rows.

    A mean's part in each product is rounded. If all are rounded the same way, an outlier in x_hat
    multiplies what that leaves by up to sqrt(D).
    """
    return max(2, D / 36) * mean * mean <= var


def _mean_and_variance(a):
    square, mean = _row_means(a), _row_means(a, np.ones(a.shape[1], a.dtype))
    return mean, square - mean * mean


def _row_means(a, b=None):
    """Return the means of the rows of a * a, or of a * b: (n, D) and (D,) give (n,), in float64."""
    n, D = a.shape
    size = 2 * STRIP if b is None else STRIP  # BLAS adds up a * a in more lanes
    whole = D - D % size
    strips, rest = a[:, :whole].reshape(n, -1, size), a[:, whole:]
    if b is None:
        sums = np.vecdot(strips, strips).T
    else:
        sums = (strips.swapaxes(0, 1) @ b[:whole].reshape(-1, size, 1))[..., 0]
    total = sums.astype(np.result_type(a, np.float64)).sum(axis=0)
    if whole < D:
        total += np.vecdot(rest, rest) if b is None else rest @ b[whole:]
    return total / D


def _column_sums(weights, a):
    """Return weights @ a, (k, n) by (n, D), in float64: (k, D)."""
    whole, D = len(a) - len(a) % RUN, a.shape[1]
    per_run = weights[:, :whole].reshape(len(weights), -1, RUN).swapaxes(0, 1)
    runs = per_run @ a[:whole].reshape(-1, RUN, D)
    total = runs.astype(np.result_type(a, np.float64)).sum(axis=0)
    return total + weights[:, whole:] @ a[whole:] if whole < len(a) else total
