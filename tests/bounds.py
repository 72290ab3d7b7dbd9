"""A bound for the errors of y and dx in float32, from the theorem of lesson 05, to first order.

The names are the theorem's. Each layer is known by the depth of its sums: the largest number of
additions that a term goes through.
"""

import re

import numpy as np

from lnlib import blocked
from lnlib.gpu import dispatch

U = 2.0**-24  # a float32 operation is off by at most U of its result
SECOND_ORDER = 1.01  # covers products of two small numbers
# OpenBLAS with AVX2 adds up squares in 32 lanes, and what is left of the last 32 one after the
# other. It adds up several rows in 8 lanes, in strips of half the length, which is less deep.
BLAS = 2 * blocked.STRIP // 32 + 5 + 31
PAIRWISE = 48  # NumPy's sums of up to 1e5 numbers: pairwise, or so in blocks of 8192


def kernel_depth(D):
    """Return the depth of the kernels' sums: a thread's vectors, a vector, a warp, a block."""
    depths = []
    for kernel in ("forward", "backward"):
        name = dispatch.choose(kernel, D, 4 if D % 4 == 0 else 1).expression
        held = "looping" not in name and "columns" not in name
        numbers = map(int, re.findall(r"\d+", name.split("<")[1])[: 2 + held])
        threads, *more, width = numbers
        vectors = more[0] if more else 2  # Kahan: two roundings, however many terms
        depths.append(vectors + width.bit_length() - 1 + threads.bit_length() - 1)
    return max(depths)


def bound(layer, dy, x, gamma, beta, eps=1e-5, blas=BLAS):
    """Return bounds for y and dx of each row, (N,), in units of the promise's scales.

    blas is the depth of BLAS's sums in the blocked layer, and depends on the processor.
    """
    dy, x, gamma, beta = (a.astype(np.float64) for a in (dy, x, gamma, beta))
    D = len(gamma)

    def mean(a):
        return a.mean(axis=-1, keepdims=True)

    def largest(a):
        return np.abs(a).max(axis=-1, keepdims=True)

    # the exact layer
    c = x - x[:, :1]
    c = c - mean(c)
    r = 1 / np.sqrt(mean(c * c) + float(np.float32(eps)))
    x_hat, mu = np.abs(c) * r, np.abs(mean(x))
    C, M = mean(np.abs(c)), largest(c) * r
    g = gamma * dy
    g_mean, h = np.abs(mean(g)), np.abs(g - mean(g))
    E = mean(h * x_hat)

    # the layer's own numbers
    if layer == "kernel":
        n = kernel_depth(D)
        after, N, products = 2, n + 2, n + 3  # roundings after a sum, of a mean, of one of products
    elif layer == "blocked":
        n = blas
        after, N, products = 1, n + 1, n + 2
    else:
        n = PAIRWISE
        after, N, products = 1, n + 1, 2
    # Lemma 2: x - mean - rest is c, but for 2u of itself and a shift that all entries share
    first = N * U * (mu + C)
    exact = (mu >= 4 * D * C) & (D * N <= 2**22)
    shift = r * (np.where(exact, after * U * first, N * U * (C + first)) + U * C)
    if layer == "reference":  # the second mean is added up in float64
        shift = r * U * C
    offset = np.zeros_like(mu)  # what is left of the mean where products are added up, times r
    if layer == "blocked":
        plain = blocked.is_small(mu, mean(c * c), D)
        shift = np.where(plain, r * N * U * (C + mu), shift)
        offset = r * np.where(plain, mu, np.minimum(first, 1 / r))
    rough = 2 * U * offset
    # Lemma 3: rstd
    if layer == "blocked":
        rho = U * (products * (1 + offset**2) + 2 * offset * N * (1 + offset) + 4) / 2 + U
    else:
        rho = U * (4 + products + (layer == "kernel")) / 2 + U * after
    rho = rho + shift**2 / 2
    # Theorem, y
    top = largest(gamma)
    scale_y = top * M + largest(beta)
    y = top * (M * (rho + 4 * U) + shift + rough) + U * scale_y
    # Lemma 4: g, and a constant k that may be left in it when it meets x_hat
    k, roundings, off_mean = 0, 1, (n + 2) * U**2 / 32 * mean(np.abs(g))  # summed in float64
    if layer != "reference":
        plain = blocked.is_small(g_mean, mean(h * h), D)
        off_plain = N * U * (mean(h) + g_mean)
    if layer == "kernel":
        k = np.where(plain, g_mean, (N + 1) * U * mean(np.abs(g)))
        roundings, off_mean = 2, np.where(plain, off_plain, N * U * (mean(h) + k))
    elif layer == "blocked":
        k, off_mean = np.where(plain, g_mean, 0), np.where(plain, off_plain, off_mean)
    off_g = U * (roundings * h + k) + off_mean
    # Lemma 5: the coefficient mean(g * x_hat)
    off_c = roundings * U * E + U * k * mean(x_hat) + (rho + 3 * U) * E + rough * mean(h)
    off_c = off_c + products * U * mean((h + k) * (x_hat + offset))
    off_c = off_c + k * (shift + 3 * U * mean(x_hat) + rough)
    if layer == "blocked":
        off_c = off_c + offset * off_mean
    # Theorem, dx
    b = h + x_hat * E
    dx = off_g + ((rho + 3 * U) * x_hat + shift + rough) * E + x_hat * (off_c + U * E)
    dx = dx + (2 * U + rho) * b
    if layer == "blocked":
        dx = dx + 3 * U * (k + offset * E)
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant dy has no scale
        return [SECOND_ORDER * (e / s).max(axis=-1) for e, s in ((y, scale_y), (dx, largest(b)))]
