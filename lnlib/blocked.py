"""The same layer, a block of rows at a time: fusion, on a CPU.

NumPy runs one operation over the whole array, then the next, and each of them moves everything
through memory. Here all operations run on a block of rows that stays in the processor's cache.
What broadcasting does slowly, BLAS does: sums along rows and columns are products with a vector,
and numbers that differ per row are spread over the columns by a product of rank two.
"""

from typing import NamedTuple

import numpy as np

from . import layernorm as reference
from .checks import check_backward, check_forward

BLOCK_BYTES = 288 * 1024  # of x: with dy, dx and two buffers beside it, 1.4 MiB of L2 cache
BLOCK_ROWS = 96  # that are added up in float32: runs of 16, then up to 6 runs; float64 beyond
RUN = 16
STRIP = 768  # BLAS does not sum pairwise: longer rows are added up in strips,
SHORT_STRIP = 192  # shorter ones where one large product could swallow many small ones


class BlockedCache(NamedTuple):
    """What the backward pass needs: three numbers per row beside x, which is not copied.

    Attributes
    ----------
    x : ndarray, shape (..., D)
        The input itself if it is C-contiguous: it must not change before the backward pass.
    mean, rest : ndarray, shape (..., 1)
        The mean, and the mean of x - mean: what rounding left of it.
    rstd : ndarray, shape (..., 1)
        1 / sqrt(var + eps); NaN marks a row that is left to the reference.
    gamma : ndarray, shape (D,)
        A copy of the gain.
    eps : float
        For the rows that are left to the reference.
    """

    x: np.ndarray
    mean: np.ndarray
    rest: np.ndarray
    rstd: np.ndarray
    gamma: np.ndarray
    eps: float


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

    Raises
    ------
    TypeError, ValueError
        As the reference, and if out does not fit.

    Notes
    -----
    y = xc * (rstd * gamma) + (beta - rest * rstd * gamma) with xc = x - mean: the second centring
    of the reference costs no pass of its own. Rows with rstd below 1e-3 or above 1e4 are left to
    the reference, which scales them. With those in between, gamma and dy may be as small as 1e-30
    and as large as 1e30.
    """
    x, gamma, beta, eps, dtype = check_forward(x, gamma, beta, eps)
    y = _output(out, x, dtype, x)
    work, D = gamma.dtype, len(gamma)
    eps = work.type(eps)
    flat_x, flat_y = x.reshape(-1, D), y.reshape(-1, D)  # (N, D)
    mean, rest, rstd = np.empty((3, len(flat_x)), work)  # (N,) each
    size = rows_per_block(len(flat_x), D, work.itemsize)
    xc, gain = np.empty((2, size, D), work)  # buffers for the rows of a block, (n, D) each
    ones, zeros = np.ones(D, work), np.zeros(D, work)
    to_gain, to_shift = np.stack((gamma, zeros)), np.stack((beta, -gamma))  # (2, D) each
    with np.errstate(all="ignore"):  # rows that go out of range are done again
        for b in _slices(len(flat_x), size):
            x_b = flat_x[b]  # (n, D)
            if len(x_b) < size:  # the last block
                xc, gain = xc[: len(x_b)], gain[: len(x_b)]
            m = _dot(x_b, ones) / D  # (n,)
            xc[...] = -m[:, None]
            xc += x_b  # in two steps: faster than to subtract with broadcasting
            rest_b = _dot(xc, ones) / D  # (n,)
            var = _dot(xc, xc, SHORT_STRIP) / D - rest_b * rest_b  # (n,), corrected two-pass
            r = 1 / np.sqrt(var + eps)
            mean[b], rest[b], rstd[b] = m, rest_b, r
            xc *= _spread(r, 0, to_gain, out=gain)
            shift = _spread(1, rest_b * r, to_shift, out=gain)
            np.add(xc, shift, out=flat_y[b])  # the only write that goes to memory
        in_range = (np.abs(rest) * rstd <= 1) & (rstd > 1e-3) & (rstd < 1e4)  # (N,)
    again = np.flatnonzero(~in_range)
    if len(again):
        flat_y[again], _ = reference.layer_norm_forward(flat_x[again], gamma, beta, eps)
        rstd[again] = np.nan
    per_row = (a.reshape(*x.shape[:-1], 1) for a in (mean, rest, rstd))
    return y, BlockedCache(x, *per_row, gamma, eps)


def layer_norm_backward(dy, cache, *, out=None):
    """Gradients, as `lnlib.layer_norm_backward` gives them and as accurately.

    Parameters
    ----------
    dy : array_like, shape (..., D)
    cache : BlockedCache
    out : ndarray, shape of dy, optional
        Where to write dx: C-contiguous, of the dtype of dy, not overlapping x or dy.

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
    With x_hat = rstd * (xc - rest), the formula of the reference is a row-wise combination of two
    arrays and a number: dx = (rstd * gamma) * dy - a * xc + (a * rest - b), where
    a = rstd ** 2 * mean(g * x_hat) and b = rstd * mean(g).
    """
    dy, dtype = check_backward(dy, cache, BlockedCache)
    dx = _output(out, dy, dtype, dy, cache.x)
    work, D = np.result_type(dy, cache.gamma), len(cache.gamma)
    flat_dy, flat_dx, x = (a.reshape(-1, D) for a in (dy, dx, cache.x))  # (N, D)
    mean, rest, rstd = (a.ravel().astype(work) for a in cache[1:4])  # (N,) each
    gamma = cache.gamma.astype(work, copy=False)
    to_gain = np.stack((gamma, np.zeros(D, work)))  # (2, D)
    average = gamma / D  # a product with it is the mean of gamma times something
    size = rows_per_block(len(x), D, work.itemsize)
    xc, terms = np.empty((2, size, D), work)  # buffers for the rows of a block, (n, D) each
    weights = np.empty((3, len(x)), work)  # (3, N)
    weights[0], weights[1], weights[2] = rstd, 1, rest * rstd
    sums = np.zeros((3, D), np.result_type(work, np.float64))  # dgamma, dbeta, and a surplus
    left = np.isnan(rstd)  # (N,)
    for b in _slices(len(x), size):
        if left[b].any():
            _, exact = reference.layer_norm_forward(x[b], gamma, gamma, cache.eps)
            flat_dx[b], dgamma_b, dbeta_b = reference.layer_norm_backward(
                flat_dy[b].astype(np.float64), exact
            )
            sums[:2] += dgamma_b, dbeta_b
            continue
        dy_b = flat_dy[b].astype(work, copy=False)  # (n, D)
        r, rest_b, weights_b = rstd[b], rest[b], weights[:, b]  # (n,), (n,), (3, n)
        q = weights_b[2]
        if len(dy_b) < size:  # the last block
            xc, terms = xc[: len(dy_b)], terms[: len(dy_b)]
        xc[...] = -mean[b][:, None]
        xc += x[b]
        if not q @ q < 0.01:  # far from zero a large rest would cost dgamma its digits
            xc -= rest_b[:, None]
            rest_b[:], q[:] = 0, 0
        np.multiply(dy_b, xc, out=terms)
        sums[:1] += _column_sums(weights_b[:1], terms)  # (1, D), of dy * rstd * xc
        sums[1:] += _column_sums(weights_b[1:], dy_b)  # (2, D), of dy and of dy * rstd * rest
        mean_g = _dot(dy_b, average)  # (n,)
        along = r * (_dot(terms, average, SHORT_STRIP) - rest_b * mean_g)  # (n,), mean(g * x_hat)
        a = r * r * along
        terms[...] = -a[:, None]
        xc *= terms
        g = _spread(r, 0, to_gain, out=terms)
        g *= dy_b  # (n, D), rstd * gamma * dy
        g += xc
        xc[...] = (a * rest_b - r * mean_g)[:, None]
        np.add(g, xc, out=flat_dx[b])  # the only write that goes to memory
    return dx, (sums[0] - sums[2]).astype(dtype), sums[1].astype(dtype)


def rows_per_block(N, D, itemsize):
    """Rows of D numbers of itemsize bytes that are worked on at a time, of N."""
    rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // (D * itemsize)))
    return max(1, min(N, rows // RUN * RUN or rows))


def _slices(total, size):
    return [slice(start, start + size) for start in range(0, total, size)]


def _dot(a, b, strip=STRIP):
    """Return the products of the rows of a, (n, D), with b, (D,) or (n, D): (n,)."""
    D = a.shape[1]
    if D <= strip:
        return a @ b if b.ndim == 1 else np.vecdot(a, b)
    if D % strip:
        whole = D // strip * strip
        head, tail = a[:, :whole], a[:, whole:]
        return _dot(head, b[..., :whole], strip) + _dot(tail, b[..., whole:], strip)
    strips = (-1, D // strip, strip)  # of b: one row if it is (D,)
    return np.add.reduce(np.vecdot(a.reshape(strips), b.reshape(strips)), axis=-1)  # pairwise


def _column_sums(weights, a):
    """Return weights @ a, (m, n) by (n, D), added up in runs of rows first: (m, D)."""
    whole = len(a) // RUN * RUN
    if not whole:
        return weights @ a
    by_run = weights[:, :whole].reshape(len(weights), -1, RUN).swapaxes(0, 1)  # (runs, m, RUN)
    runs = by_run @ a[:whole].reshape(-1, RUN, a.shape[1])  # (runs, m, D)
    total = (np.ones(len(runs), a.dtype) @ runs.reshape(len(runs), -1)).reshape(runs.shape[1:])
    if whole < len(a):
        total += weights[:, whole:] @ a[whole:]
    return total


def _spread(first, second, rows, out):
    """Write first * rows[0] + second * rows[1], columns times rows, to out, (n, D).

    As a matrix product: faster than broadcasting, and than a product of rank one.
    """
    columns = np.empty((len(out), 2), out.dtype)
    columns[:, 0] = first
    columns[:, 1] = second
    return np.matmul(columns, rows, out=out)


def _output(out, like, dtype, *inputs):
    if dtype.kind == "c":
        raise TypeError("x, gamma, beta and dy must be real here, got complex")
    if out is None:
        new = np.empty(like.shape, dtype)
        # touch every page: the system clears it now, and not later, when that would empty the cache
        new.reshape(-1)[:: 4096 // dtype.itemsize] = 0
        return new
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        got = getattr(out, "dtype", type(out).__name__)
        raise TypeError(f"out must be an ndarray of dtype {dtype}, got {got}")
    if out.shape != like.shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(
            f"out must be writable and C-contiguous with shape {like.shape}, got shape {out.shape}"
        )
    if any(np.may_share_memory(out, a) for a in inputs):
        raise ValueError("out must not overlap x or dy")
    return out
