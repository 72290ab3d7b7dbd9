"""The same layer, a block of rows at a time: tiling, on a CPU.

NumPy runs one operation over the whole array, then the next, and each of them moves everything
through memory. Here all operations run on a block of rows that stays in the processor's cache, and
BLAS adds up: sums along rows and columns are products with a vector.

Centring costs passes, and few rows need it. x is centred, twice as in the reference, in blocks
where a row's mean is not small beside its spread: larger than 0.7 of it, or for D > 72 than
6 / sqrt(D) of it. Random rows around 0 do not come near that. Where it holds for a row of
g = gamma * dy, g is computed in float64, as in the reference.

The promise of `lnlib.layernorm` leans on BLAS here, which decides how a strip is added up. The
search found at most 6.2e-7 of dx's scale with OpenBLAS for AVX-512, 6.9e-7 with that for SSE. Rows
built against the order in which one BLAS adds up reach 2e-6.
"""

import contextlib
import math
from typing import NamedTuple

import numpy as np

from . import layernorm as reference
from .checks import check_backward, check_forward

# Values of x in a block. A pass works on at most five arrays of this size: 5 MiB in float32 fit a
# cache of 8 MiB. (Where g is centred, it is held in float64 too, which takes 2 MiB more.) NumPy's
# calls, of about a microsecond each, are few against the work in them.
BLOCK = 2**18
# NumPy works through a buffer of 8192 numbers, and fills it anew with what it broadcasts to several
# rows. With a buffer shorter than a row it does not; very short rows are better off as it is.
SHORT_BUFFER, LONG_ROW = 16, 512
SMALL, FEW = 2**14, 2  # values, rows: up to here calls cost more than work, the reference is faster
# Rows, and columns, that BLAS adds up in float32; on old processors one after the other.
RUN, STRIP = 16, 64
# Bytes: of a huge page, and of an array to which room for one more adds little.
HUGE_PAGE, LARGE_ARRAY = 2**21, 2**25


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
    whose mean is not small, see `is_small`. With rstd in these bounds dy * xc stays in range for dy
    from 1e-30 to 1e30; the reference scales each row.
    """
    if np.size(x) <= max(SMALL, FEW * np.size(gamma)):
        y, kept = reference.layer_norm_forward(x, gamma, beta, eps)
        return _written(out, y, x), kept
    x, gamma, beta, eps, dtype = check_forward(x, gamma, beta, eps)
    y = check_out(out, x, dtype, x)
    flat_x, flat_y = (a.reshape(-1, x.shape[-1]) for a in (x, y))  # (N, D) each
    with _numpy_settings(x.shape[-1]):
        mean, mean_lo, rstd = _write_y(flat_x, gamma, beta, eps, flat_y)
        fits = (np.abs(mean_lo) * rstd <= 1) & (rstd > 1e-3) & (rstd < 1e4)
    of_rows = (a.reshape(*x.shape[:-1], 1) for a in (mean, mean_lo, rstd))
    kept = BlockedCache(x, *of_rows, gamma)
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
    dy, dtype = check_backward(dy, cache, BlockedCache, "x")
    dx = check_out(out, dy, dtype, dy, *cache)
    work, D = np.result_type(dy, cache.gamma), len(cache.gamma)
    flat_dy, flat_dx, flat_x = (a.reshape(-1, D) for a in (dy, dx, cache.x))  # (N, D)
    mean, gamma = cache.mean.astype(work).reshape(-1, 1), cache.gamma.astype(work)
    wide = np.result_type(work, np.float64)
    mean_lo, rstd = (a.ravel().astype(wide) for a in (cache.mean_lo, cache.rstd))  # (N,) each
    weights = np.array([-rstd * mean_lo, np.ones_like(rstd), rstd], work)  # (3, N)
    sums = np.zeros((2, D), wide)  # dgamma, dbeta
    buffer = np.empty((rows_per_block(*flat_x.shape), D), work)
    with _numpy_settings(D):
        for rows in _blocks(*flat_x.shape):
            some_dy, xc = (a[rows].astype(work, copy=False) for a in (flat_dy, flat_x))  # (n, D)
            if mean[rows].any():
                xc = xc - mean[rows]
            dy_xc = np.multiply(some_dy, xc, out=buffer[: len(xc)])  # (n, D)
            sums += _column_sums(weights[:2, rows], some_dy)
            sums[0] += _column_sums(weights[2:, rows], dy_xc)[0]
            g = flat_dx[rows] if dtype == work else np.empty_like(dy_xc)  # (n, D)
            means = _write_g(some_dy, xc, gamma, dy_xc, g)
            _write_dx(g, xc, mean_lo[rows], rstd[rows], *means, dy_xc, flat_dx[rows])
    return dx, *sums.astype(dtype)


def _write_y(x, gamma, beta, eps, y):
    """Write y, (N, D), and return mean, mean_lo and rstd, (3, N)."""
    work, statistics = gamma.dtype, np.zeros((3, len(x)), gamma.dtype)
    for rows in _blocks(*x.shape):
        xc = x[rows].astype(work, copy=False)  # (n, D)
        x_hat = y[rows] if y.dtype == work else np.empty_like(xc)  # (n, D)
        mean_lo, var = mean_and_variance(xc)  # (n,) each, in float64 as rstd is
        if not is_small(mean_lo, var, x.shape[1]).all():
            statistics[0, rows] = mean_lo
            xc = np.subtract(xc, statistics[0, rows, None], out=x_hat)
            mean_lo, var = mean_and_variance(xc)
        rstd = 1 / np.sqrt(var + eps)
        statistics[1:, rows] = mean_lo, rstd
        np.multiply(xc, statistics[2, rows, None], out=x_hat)
        x_hat -= (mean_lo * rstd).astype(work)[:, None]
        x_hat *= gamma
        np.add(x_hat, beta, out=y[rows])
    return statistics


def _write_g(dy, xc, gamma, dy_xc, g):
    """Write g = gamma * dy, less its mean where needed; return means of g and of g * xc, (n,).

    dy_xc is dy * xc, and may be overwritten.
    """
    np.multiply(dy, gamma, out=g)
    mean, square = _row_means(dy, gamma), np.vecdot(g, g) / np.float64(len(gamma))  # (n,) each
    in_range = (square > 1e-35) & (square < np.inf)
    if (in_range & is_small(mean, square - mean * mean, len(gamma))).all():
        return mean, _row_means(dy_xc, gamma)
    reference.centred_product(gamma, dy, out=g)
    return np.zeros_like(mean), _row_means(np.multiply(g, xc, out=dy_xc), np.ones_like(gamma))


def _write_dx(g, xc, mean_lo, rstd, mean_g, mean_g_xc, buffer, dx):
    """Write dx from g and xc, (n, D), and numbers per row; g and buffer are overwritten."""
    slope = rstd * (rstd * (rstd * (mean_g_xc - mean_lo * mean_g)))  # (n,), in float64
    numbers = np.array([rstd, slope, slope * mean_lo - rstd * mean_g], g.dtype)[..., None]
    factor_of_g, factor_of_xc, shift = numbers  # (n, 1) each
    g *= factor_of_g
    g -= np.multiply(xc, factor_of_xc, out=buffer)
    np.add(g, shift, out=dx)


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


def check_out(out, like, dtype, *inputs):
    """Return out, or a new array with the shape of like and that dtype if out is None.

    Raises
    ------
    TypeError, ValueError
        If dtype is complex, or out is not an array of that dtype and shape, C-contiguous and
        writeable, or overlaps one of the inputs.
    """
    if dtype.kind == "c":
        raise TypeError("x, gamma, beta and dy must be real here, got complex")
    if out is None:
        return _new_array(like.shape, dtype)
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        got = getattr(out, "dtype", type(out).__name__)
        raise TypeError(f"out must be an ndarray of dtype {dtype}, got {got}")
    if out.shape != like.shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(
            f"out must be writable and C-contiguous with shape {like.shape}, got shape {out.shape}"
        )
    if any(np.may_share_memory(out, a) for a in inputs):
        raise ValueError("out must not overlap x, dy or the cache")
    return out


def _new_array(shape, dtype):
    """Return a new array; a large one begins where a huge page may.

    For large arrays NumPy asks Linux for pages of 2 MiB. Where an array begins or ends between two
    of them, up to 512 pages of 4 KiB are handed out one by one, which can take a millisecond.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_ARRAY:
        return np.empty(shape, dtype)
    memory = np.empty(size + HUGE_PAGE, np.uint8)
    start = -memory.__array_interface__["data"][0] % HUGE_PAGE
    return memory[start : start + size].view(dtype).reshape(shape)


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


def mean_and_variance(rows):
    """Return the mean and the variance of each row, (n, D), by BLAS: (n,) each, in float64.

    The variance is that of the naive formula: right only where the mean is small beside the spread.
    """
    square, mean = _row_means(rows), _row_means(rows, np.ones(rows.shape[1], rows.dtype))
    return mean, square - mean * mean


def _row_means(rows, weights=None):
    """Return the means of rows * weights, (n, D) by (D,), or of rows * rows: (n,), in float64."""
    n, D = rows.shape
    length = 2 * STRIP if weights is None else STRIP  # BLAS adds up squares in more lanes
    whole = D - D % length
    strips, rest = rows[:, :whole].reshape(n, -1, length), rows[:, whole:]
    if weights is None:
        sums = np.vecdot(strips, strips).T
    else:
        sums = (strips.swapaxes(0, 1) @ weights[:whole].reshape(-1, length, 1))[..., 0]
    total = sums.astype(np.result_type(rows, np.float64)).sum(axis=0)
    if whole < D:
        total += np.vecdot(rest, rest) if weights is None else rest @ weights[whole:]
    return total / D


def _column_sums(weights, rows):
    """Return weights @ rows, (k, n) by (n, D), in float64: (k, D)."""
    whole, D = len(rows) - len(rows) % RUN, rows.shape[1]
    per_run = weights[:, :whole].reshape(len(weights), -1, RUN).swapaxes(0, 1)
    runs = per_run @ rows[:whole].reshape(-1, RUN, D)
    total = runs.astype(np.result_type(rows, np.float64)).sum(axis=0)
    return total + weights[:, whole:] @ rows[whole:] if whole < len(rows) else total
