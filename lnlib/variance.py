"""Four ways to the variance of each row, over the last axis, dividing by D.

Every result of an operation is rounded to the dtype of x, float16 included: these functions are
here to be compared. (Inside one sum NumPy accumulates float16 numbers in float32.) They return
shape (...,) for x of shape (..., D), and raise TypeError if x is not real and floating-point,
ValueError if D is 0 or more than the dtype can hold (65504 in float16).

In the error laws u is the rounding unit, and s * u the relative error of a sum of D numbers of one
sign: s stays below 10 where NumPy adds pairwise, along contiguous rows, and grows to D at worst
where it adds sequentially, as along the rows of a Fortran-ordered array.
"""

import numpy as np

from .checks import check_floating, check_rows


def naive(x):
    """Mean of the squares minus square of the mean. One pass, and cancellation.

    Relative error about s * u * (1 + (mean / std)**2). The result can be negative [1]_.

    References
    ----------
    .. [1] N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002,
       section 1.9, doi:10.1137/1.9780898718027.
    """
    x = _checked(x)
    return _mean(x * x) - _mean(x) ** 2


def two_pass(x):
    """Subtract the mean, then average the squares. Reads x twice.

    The rounding of the mean enters squared: relative error about s * u + (s * u * mean / std)**2
    [1]_.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance",
       The American Statistician 37 (1983) 242-247, doi:10.1080/00031305.1983.10483115.
    """
    x = _checked(x)
    xc = x - _mean(x)[..., None]  # (..., D)
    return _mean(xc * xc)


def corrected_two_pass(x):
    """Two passes, less the square of what rounding left of the mean.

    Relative error about s * u while s * u * mean / std is below 1; beyond, the correction cancels
    too. Chan, Golub and LeVeque 1983 [1]_ ascribe it to A. Bjorck.

    References
    ----------
    .. [1] See `two_pass`.
    """
    x = _checked(x)
    xc = x - _mean(x)[..., None]  # (..., D)
    return _mean(xc * xc) - _mean(xc) ** 2


def welford(x):
    """Update mean and sum of squares entry by entry. One pass, without naive's cancellation [1]_.

    A loop over D, vectorised over the rows. Each entry adds a rounding to both: relative error at
    worst about u * D * (1 + mean / std); while that is below 1/4, in random order about
    u * (sqrt(D) + mean / std). Skewed rows leave this line first, at about 1.

    References
    ----------
    .. [1] B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
       Technometrics 4 (1962) 419-420, doi:10.1080/00401706.1962.10490022.
    """
    x = _checked(x)
    mean = np.zeros_like(x[..., 0])  # (...,)
    squares = np.zeros_like(mean)  # (...,), the sum of squares about the mean so far
    for k in range(x.shape[-1]):
        delta = x[..., k] - mean
        mean += delta / (k + 1)
        squares += delta * (x[..., k] - mean)
    return squares / x.shape[-1]


def _checked(x):
    x = check_floating("x", x)
    if np.iscomplexobj(x):
        raise TypeError(f"x must be real, got dtype {x.dtype}")
    check_rows(x)
    if x.shape[-1] > float(np.finfo(x.dtype).max):
        raise ValueError(f"D = {x.shape[-1]} is more than {x.dtype} can hold: no dividing by it")
    return x


def _mean(x):
    return x.sum(axis=-1) / x.shape[-1]  # (...,)
