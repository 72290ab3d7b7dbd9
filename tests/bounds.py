"""A bound for the errors of y and dx in float32, from the theorem of lesson 05, to first order.

The names are those of its table, which counts roundings. The page proves it for the reference. The
blocked layer and the kernels need more terms: their sums are in float32, of a depth that is known
(the largest number of additions that a term goes through), and a small mean stays in its row.
"""

import re
from typing import NamedTuple

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


class Roundings(NamedTuple):
    """How many roundings a term goes through at most."""

    depth: int  # in a sum
    after: int  # between a sum and the mean that is used
    mean: int  # in a mean
    product: int  # in a mean of products


def roundings_of(layer, D, blas):
    """Return the `Roundings` of a layer."""
    if layer == "kernel":
        n = kernel_depth(D)
        return Roundings(n, after=2, mean=n + 2, product=n + 3)
    if layer == "blocked":
        return Roundings(blas, after=1, mean=blas + 1, product=blas + 2)
    return Roundings(PAIRWISE, after=1, mean=PAIRWISE + 1, product=2)  # products are in float64


class Bounds(NamedTuple):
    """Bounds for the errors of each row, (N,), in units of the promise's scales."""

    y: np.ndarray
    dx: np.ndarray


class Exact:
    """The exact layer's numbers: E as on the page, r is rstd, and h is |gc|.

    C is the mean of |xc|, M the largest |x_hat|.

    var and g_var are the squares of the spreads of x and g, mu and g_mean the sizes of their means,
    g_size the mean of |g|. h and x_hat are sizes, (N, D), the others (N, 1).
    """

    def __init__(self, dy, x, gamma, eps):
        c, g = x - x[:, :1], gamma * dy
        c = np.abs(c - mean(c))
        self.D, self.mu, self.var = x.shape[-1], np.abs(mean(x)), mean(c * c)
        self.r = 1 / np.sqrt(self.var + float(np.float32(eps)))
        self.x_hat, self.C, self.M = c * self.r, mean(c), largest(c) * self.r
        self.g_mean, self.g_size, self.h = np.abs(mean(g)), mean(np.abs(g)), np.abs(g - mean(g))
        self.g_var, self.E = mean(self.h * self.h), mean(self.h * self.x_hat)


def mean(a):
    return a.mean(axis=-1, keepdims=True)


def largest(a):
    return np.abs(a).max(axis=-1, keepdims=True)


def centred_twice(layer, row, n):
    """x - mean - rest is c, but for 2u of itself and a shift that all entries share.

    Return the shift, and the offset: what is left of the mean where products are added up. Both
    are times r.
    """
    first = n.mean * U * (row.mu + row.C)
    if layer == "reference":  # the second mean is added up in float64
        return row.r * U * row.C, np.zeros_like(row.mu)
    # far from zero, x - mean is exact, and so is the sum of these multiples of one ulp
    exact = (row.mu >= 4 * row.D * row.C) & (row.D * n.mean <= 2**22)
    second = np.where(exact, n.after * U * first, n.mean * U * (row.C + first))
    shift = row.r * (second + U * row.C)
    if layer == "kernel":
        return shift, np.zeros_like(row.mu)
    plain = blocked.is_small(row.mu, row.var, row.D)
    shift = np.where(plain, row.r * n.mean * U * (row.C + row.mu), shift)
    return shift, row.r * np.where(plain, row.mu, np.minimum(first, 1 / row.r))


def off_rstd(layer, n, shift, offset):
    """How far rstd is off, as a part of itself."""
    if layer == "blocked":
        of_squares = n.product * (1 + offset**2) + 2 * offset * n.mean * (1 + offset) + 4
        rho = U * of_squares / 2 + U
    else:
        rho = U * (4 + n.product + (layer == "kernel")) / 2 + U * n.after
    return rho + shift**2 / 2


def centred_g(layer, row, n):
    """g centred, how far it is off, and a constant k that may be left in it when it meets x_hat.

    Return k, how often a product is rounded, and how far the mean is off.
    """
    off_mean = (n.depth + 2) * U**2 / 32 * row.g_size  # added up in float64
    if layer == "reference":
        return 0, 1, off_mean
    plain = blocked.is_small(row.g_mean, row.g_var, row.D)
    off_plain = n.mean * U * (mean(row.h) + row.g_mean)
    if layer == "blocked":
        return np.where(plain, row.g_mean, 0), 1, np.where(plain, off_plain, off_mean)
    k = np.where(plain, row.g_mean, (n.mean + 1) * U * row.g_size)
    return k, 2, np.where(plain, off_plain, n.mean * U * (mean(row.h) + k))


def centred_g_and_coefficient(layer, row, n, rho, shift, offset):
    """Return k and how far g is off, and how far mean(g * x_hat) is off."""
    x_hat, h, E = row.x_hat, row.h, row.E
    k, roundings, off_mean = centred_g(layer, row, n)
    off_g = U * (roundings * h + k) + off_mean
    rough = 2 * U * offset
    off_c = roundings * U * E + U * k * mean(x_hat) + (rho + 3 * U) * E + rough * mean(h)
    off_c = off_c + n.product * U * mean((h + k) * (x_hat + offset))
    off_c = off_c + k * (shift + 3 * U * mean(x_hat) + rough)
    if layer == "blocked":
        off_c = off_c + offset * off_mean
    return k, off_g, off_c


def bound(layer, dy, x, gamma, beta, eps=1e-5, blas=BLAS):
    """Return the `Bounds` of a layer.

    blas is the depth of BLAS's sums in the blocked layer, and depends on the processor.
    There a row counts as alone in its block: rows that make its block centre it add about 1 %.
    """
    dy, x, gamma, beta = (a.astype(np.float64) for a in (dy, x, gamma, beta))
    row, n = Exact(dy, x, gamma, eps), roundings_of(layer, len(gamma), blas)
    shift, offset = centred_twice(layer, row, n)
    rough = 2 * U * offset
    rho = off_rstd(layer, n, shift, offset)
    x_hat, h, E = row.x_hat, row.h, row.E
    # Theorem, y
    top = largest(gamma)
    scale_y = top * row.M + largest(beta)
    y = top * (row.M * (rho + 4 * U) + shift + rough) + U * scale_y
    # Theorem, dx
    k, off_g, off_c = centred_g_and_coefficient(layer, row, n, rho, shift, offset)
    b = h + x_hat * E
    dx = off_g + ((rho + 3 * U) * x_hat + shift + rough) * E + x_hat * (off_c + U * E)
    dx = dx + (2 * U + rho) * b
    if layer == "blocked":
        dx = dx + 3 * U * (k + offset * E)
    with np.errstate(divide="ignore", invalid="ignore"):  # a constant dy has no scale
        off = [SECOND_ORDER * (e / s).max(axis=-1) for e, s in ((y, scale_y), (dx, largest(b)))]
    return Bounds(*off)
