"""The checks of arguments that several modules share."""

from numbers import Real

import numpy as np


def check_floating(name, value):
    """Return value as a C-contiguous array; TypeError if it is not floating-point or complex."""
    array = np.asarray(value, order="C")  # rows contiguous: NumPy sums those pairwise
    if array.dtype.kind not in "fc":
        raise TypeError(f"{name} must be floating-point or complex, got dtype {array.dtype}")
    return array


def check_rows(x):
    """Raise ValueError if x does not have shape (..., D) with D >= 1."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (..., D) with D >= 1, got shape {x.shape}")


def check_eps(eps):
    """Return eps as a float; TypeError if it is not a real number, ValueError if negative."""
    if not isinstance(eps, Real) or isinstance(eps, bool):
        raise TypeError(f"eps must be a real number, got {type(eps).__name__}")
    if not 0 <= eps <= float(np.finfo(np.float64).max):
        raise ValueError(f"eps must be finite and not negative, got {str(eps):.20}")
    return float(eps)


def check_forward(x, gamma, beta, eps):
    """Check the arguments of a forward pass.

    Returns
    -------
    x : ndarray, shape (..., D)
    gamma, beta : ndarray, shape (D,)
        Copies in the dtype of the computation: float32 for float16.
    eps : float
    dtype : numpy.dtype
        Of the result: to which NumPy promotes x, gamma and beta together.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what came and what was expected.
    """
    x, gamma, beta = map(check_floating, ("x", "gamma", "beta"), (x, gamma, beta))
    check_rows(x)
    for name, array in (("gamma", gamma), ("beta", beta)):
        if array.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape {x.shape[-1:]}, the last axis of x with shape {x.shape}, "
                f"got shape {array.shape}"
            )
    eps = check_eps(eps)
    dtype = np.result_type(x, gamma, beta)
    work = np.result_type(dtype, np.float32)  # float16 is computed in float32
    return x, gamma.astype(work), beta.astype(work), eps, dtype


def check_backward(dy, cache, kind, like):
    """Check the arguments of a backward pass.

    Parameters
    ----------
    dy : array_like
    cache : object
        Should be a cache of that kind.
    kind : type
        A NamedTuple.
    like : str
        The name of its field that has the shape of dy.

    Returns
    -------
    dy : ndarray, shape (..., D)
    dtype : numpy.dtype
        Of the gradients: that of dy, or its complex counterpart.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what came and what was expected.
    """
    if not isinstance(cache, kind):
        raise TypeError(f"cache must be a {kind.__name__}, got {type(cache).__name__}")
    dy = check_floating("dy", dy)
    kept = getattr(cache, like)
    if dy.shape != kept.shape:
        raise ValueError(
            f"dy must have the shape of x in the forward pass, {kept.shape}, got {dy.shape}"
        )
    dtype = np.result_type(dy, np.complex64) if np.iscomplexobj(kept) else dy.dtype
    return dy, dtype
