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


def pairwise_depth(D):
    """Return the depth of NumPy's sum of D contiguous numbers: eight lanes, blocks of 128."""
    if D < 8:
        return D
    if D <= 128:
        return D // 8 - 1 + 3 + D % 8
    half = D // 2 - D // 2 % 8
    return 1 + max(pairwise_depth(half), pairwise_depth(D - half))


def kernel_depth(D):
    """Return the depth of the kernels' sums: a thread's vectors, a vector, a warp, a block."""
    depths = []
    for kernel in ("forward", "backward"):
        name = dispatch.choose(kernel, D, 4 if D % 4 == 0 else 1).expression
        held = "looping" not in name and "columns" not in name
        numbers = map(int, re.findall(r"\d+", name.split("<")[1])[: 2 + held])
        threads, *more, width = numbers
        vectors = more[0] if more else -(-D // (width * threads))
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
    m = mean(dy)
    p, q = gamma * (dy - m), m * (gamma - mean(gamma))
    a = np.abs(p) + np.abs(q)
    rest = np.abs(mean(p + q))
    E = mean((a + rest) * x_hat)

    # the layer's own numbers
    if layer == "kernel":
        n = kernel_depth(D)
        after, N, products = 2, n + 2, n + 3  # roundings after a sum, of a mean, of one of products
    elif layer == "blocked":
        n = blas
        after, N, products = 1, n + 1, n + 2
    else:
        n = pairwise_depth(D)
        after, N, products = 1, n + 1, 2
    # Lemma 2: x - mean - rest is c, but for 2u of itself and a shift that all entries share
    first = N * U * (mu + C)
    exact = (mu >= 4 * D * C) & (D * N <= 2**22)
    shift = r * (np.where(exact, after * U * first, N * U * (C + first)) + U * C)
    offset = np.zeros_like(mu)  # what is left of the mean where products are added up, times r
    if layer == "blocked":
        plain = 2 * mu * mu <= mean(c * c)
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
    # Lemma 4: g, which is off by a constant k where it meets x_hat
    m_size, size = np.abs(m), mean(np.abs(dy))
    e_m = np.where(m_size < size / 99, m_size, N * U * size)  # a small m stays in dy
    e_gamma = N * U * mean(np.abs(gamma))
    k = e_m * mean(np.abs(gamma)) + m_size * e_gamma
    own, uneven = 3, 7 * U * (top * e_m + m_size * e_gamma)
    if layer == "kernel":
        k = k + 2 * U * m_size * mean(np.abs(gamma))
        own, uneven = 1, U * k
    elif layer == "blocked":
        k = k + np.where(
            3 * mean(gamma * dy) ** 2 <= mean((gamma * dy) ** 2), np.abs(mean(gamma * dy)), 0
        )
        uneven = uneven + U * k
    off_g = own * U * mean(a) + uneven + N * U * (mean(a) + k)  # a shift again
    # Lemma 5: the coefficient mean(g * x_hat)
    left = 0 if layer == "reference" else k  # what stands in g when it is projected
    off_c = (own + 1) * U * E + uneven * mean(x_hat)
    off_c = off_c + (rho + 3 * U) * E + rough * (mean(a) + rest)
    off_c = off_c + products * U * mean((a + rest + left) * (x_hat + offset))
    if layer != "reference":  # whose g is centred before it is projected
        off_c = off_c + (left + rest) * (shift + 3 * U * mean(x_hat) + rough)
    if layer == "blocked":
        off_c = off_c + offset * N * U * (mean(a) + k)
    # Theorem, dx
    b = a + mean(a) + x_hat * E
    dx = (own + 1) * U * a + uneven + U * rest + off_g
    dx = dx + ((rho + 3 * U) * x_hat + shift + rough) * E + x_hat * (off_c + U * E)
    dx = dx + (2 * U + rho) * b
    if layer == "blocked":
        dx = dx + 3 * U * (k + offset * E)
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant dy has no scale
        return [SECOND_ORDER * (e / s).max(axis=-1) for e, s in ((y, scale_y), (dx, largest(b)))]
