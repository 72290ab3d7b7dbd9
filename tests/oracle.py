"""The layer straight from its definition, in more digits than it has, and the promise's scales."""

import math
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

import numpy as np

AT_LARGE = 4e-7  # what `lnlib.layernorm` promises of its scales in float32, for data at large
DENORMAL = 2.0**-149 / AT_LARGE  # below this float32 has fewer digits than the promise


class Results(NamedTuple):
    """What both passes give; or something for each of these, such as its scale or its error."""

    y: Any
    dx: Any
    dgamma: Any
    dbeta: Any

    def largest(self):
        """Return the largest of all numbers."""
        return max(np.max(a) for a in self)


EVERY_ROW = Results(y=1e-6, dx=2e-6, dgamma=1e-6, dbeta=1e-6)  # what it promises for any


def oracle(dy, x, gamma, beta, eps=1e-5):
    """Return the results for x, (N, D), and the scales to which the promise is relative.

    In decimal arithmetic, with 60 digits; rounded to float64.
    """
    with localcontext() as context:
        context.prec = 60
        decimal = np.vectorize(lambda v: Decimal(float(v)), otypes=[object])
        eps = decimal(x.dtype.type(eps)).item()  # the eps that this dtype can hold
        root = np.vectorize(Decimal.sqrt, otypes=[object])
        both = _layer(*map(decimal, (dy, x, gamma, beta)), eps, root, sum)
        return [Results(*(np.asarray(a, np.float64) for a in one)) for one in both]


def promised(dy, x, gamma, beta, eps=1e-5):
    """Return what `oracle` does, of float32 input and in float64."""
    eps = float(x.dtype.type(eps))
    return _layer(*(a.astype(np.float64) for a in (dy, x, gamma, beta)), eps, np.sqrt, math.fsum)


def _layer(dy, x, gamma, beta, eps, root, exact_sum):
    def mean(a):
        return a.sum(axis=-1, keepdims=True) / a.shape[-1]

    def largest(a):
        return np.abs(a).max(axis=-1, keepdims=True)

    xc = x - x[:, :1]  # (N, D), with no offset, however large that of x
    xc = xc - mean(xc)
    rstd = 1 / root(mean(xc * xc) + eps)  # (N, 1)
    x_hat = xc * rstd
    g = gamma * dy  # exact, even in float64
    g = g - np.array([[exact_sum(row)] for row in g.tolist()]) / g.shape[-1]
    dx = rstd * (g - x_hat * mean(g * x_hat))
    results = Results(gamma * x_hat + beta, dx, (dy * x_hat).sum(axis=0), dy.sum(axis=0))
    size = np.abs(x_hat)
    scales = Results(
        largest(gamma) * largest(x_hat) + largest(beta),  # (N, 1)
        rstd * largest(np.abs(g) + size * mean(np.abs(g) * size)),  # (N, 1)
        (np.abs(dy) * (1 + size)).sum(axis=0).max(),
        np.abs(dy).sum(axis=0).max(),
    )
    return results, scales


def norm_wise(value, truth, scale=None):
    """Largest error relative to the largest truth (of the array) or to a given scale."""
    scale = np.abs(truth).max() if scale is None else scale
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(value - truth)
        return float(np.max(np.where(error == 0, 0, error / scale)))


def assert_promise(got, dy, x, gamma, beta, eps=1e-5, limit=AT_LARGE, sums=None):
    """Hold the results to a fraction of their scales; sums: another one for dgamma and dbeta."""
    y, dx, *of_all_rows = got
    y, dx, dy, x = (a.reshape(-1, len(gamma)) for a in (y, dx, dy, x))  # (N, D) each
    errors = fractions((y, dx, *of_all_rows), dy, x, gamma, beta, eps)
    errors = Results(*(e.max() for e in errors))
    assert max(errors.y, errors.dx) <= limit, errors
    assert max(errors.dgamma, errors.dbeta) <= (sums or limit), errors


def assert_y_and_dx(got, dy, x, gamma, beta, eps=1e-5, limit=AT_LARGE, least=0):
    """Hold y and dx to the oracle, dx relative to its scale and least; return what is right."""
    right, scales = oracle(dy, x, gamma, beta, eps)
    assert norm_wise(got.y, right.y) <= limit
    assert norm_wise(got.dx, right.dx, scales.dx + least) <= limit
    return right


def fractions(got, dy, x, gamma, beta, eps=1e-5):
    """Return the errors of the results in units of their scales; those of y and dx are (N,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = [
            np.where(value == truth, 0, np.abs(value - truth) / scale)
            for value, truth, scale in zip(got, *promised(dy, x, gamma, beta, eps))
        ]
    return Results(*(e.max(axis=-1) for e in errors))
