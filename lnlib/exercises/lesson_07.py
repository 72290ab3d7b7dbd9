"""Lesson 07, sections 1 to 3: RMSNorm, y = gamma * x / sqrt(mean(x**2) + eps), and its gradient."""

import numpy as np

from .checker import exercise
from .data import layer


def _rows(*shape):
    """Return {what is special: Layer}: two shapes, and rows in which eps is a part of ms + eps."""
    small = layer(72, *shape)
    return {
        "ordinary rows": layer(71, *shape),
        "rows so small that eps counts": small._replace(x=small.x / 200),
        "longer rows": layer(73, *shape[:-1], shape[-1] + 3),
    }


def _mean(a, axis=-1):
    return a.mean(axis=axis, keepdims=True)  # (..., 1)


# ---- 7.1 -----------------------------------------------------------------------------------------


def _forward(
    x, gamma, eps, axis=-1, centre=lambda x: 0, rstd=lambda ms, eps: 1 / np.sqrt(ms + eps)
):
    r = rstd(_mean((x - centre(x)) ** 2, axis), eps)
    return gamma * (x - centre(x)) * r, (x - centre(x)) * r, r


def _varied(**options):
    return lambda x, gamma, eps: _forward(x, gamma, eps, **options)


def _other_y(y_of):
    """Only y is wrong: y_of(x_hat, gamma)."""

    def mistake(x, gamma, eps):
        _, x_hat, rstd = rms_forward(x, gamma, eps)
        return y_of(x_hat, gamma), x_hat, rstd

    return mistake


def _variance(x, gamma, eps):
    r = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    return gamma * x * r, x * r, r


def _centred_afterwards(x, gamma, eps):
    _, x_hat, r = rms_forward(x, gamma, eps)
    return gamma * (x_hat - _mean(x_hat)), x_hat - _mean(x_hat), r


def _returned(change):
    """Only what is returned is wrong: change(y, x_hat, rstd, gamma)."""
    return lambda x, gamma, eps: change(*rms_forward(x, gamma, eps), gamma)


@exercise(
    "y x_hat rstd",
    lambda: (
        {k: (a.x, a.gamma, 1e-5) for k, a in _rows(2, 3, 5).items()}
        | {"eps = 0.1": (*_rows(2, 4, 3)["longer rows"][1:3], 0.1)}
    ),
    {
        "this is LayerNorm: RMSNorm subtracts no mean.": _varied(centre=_mean),
        "the variance is in it. Nothing is centred here: it is the mean of x**2.": _variance,
        "the mean is subtracted in x_hat. Nothing is centred here.": _centred_afterwards,
        "a sum where the mean of x**2 belongs: not divided by D.": (
            lambda x, gamma, eps: _forward(
                x, gamma, eps, rstd=lambda ms, eps: 1 / np.sqrt(ms * x.shape[-1] + eps)
            )
        ),
        "eps is added outside the root: sqrt(ms) + eps, not sqrt(ms + eps).": _varied(
            rstd=lambda ms, eps: 1 / (np.sqrt(ms) + eps)
        ),
        "eps is added to 1 / sqrt(ms); it belongs to ms, inside the root.": _varied(
            rstd=lambda ms, eps: 1 / np.sqrt(ms) + eps
        ),
        "eps is missing.": _varied(rstd=lambda ms, eps: 1 / np.sqrt(ms)),
        "eps is not the argument but fixed at 1e-5.": _varied(
            rstd=lambda ms, eps: 1 / np.sqrt(ms + 1e-5)
        ),
        "the root is missing: divided by the mean of the squares.": _varied(
            rstd=lambda ms, eps: 1 / (ms + eps)
        ),
        "multiplied by the root, where x_hat is divided by it.": _varied(
            rstd=lambda ms, eps: np.sqrt(ms + eps)
        ),
        "this is the root of the mean square; rstd is its reciprocal.": _returned(
            lambda y, x_hat, rstd, gamma: (y, x_hat, 1 / rstd)
        ),
        "one mean over the sequences (axis 0); each row has its own.": _varied(axis=0),
        "one mean over the tokens (axis 1); each row has its own.": _varied(axis=1),
        "one mean of the whole array; each row has its own.": _varied(axis=(0, 1, 2)),
        "gamma is missing.": _other_y(lambda x_hat, gamma: x_hat),
        "it is multiplied by 1 + gamma, as in Gemma; here y = gamma * x_hat.": _other_y(
            lambda x_hat, gamma: (1 + gamma) * x_hat
        ),
        "gamma is in it already; x_hat is what gamma multiplies.": _returned(
            lambda y, x_hat, rstd, gamma: (y, y, rstd)
        ),
    },
)
def rms_forward(x, gamma, eps):
    """Return y (B, T, D), x_hat (B, T, D) and rstd (B, T, 1)."""
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)  # (..., 1)
    x_hat = x * rstd  # (..., D)
    return gamma * x_hat, x_hat, rstd


# ---- 7.2 -----------------------------------------------------------------------------------------


def _jacobian(x_hat, rstd, factor=1.0, mean_term=0.0):
    D = x_hat.size
    return rstd * (np.eye(D) - mean_term / D - factor * np.outer(x_hat, x_hat) / D)


def _one_row(shape):
    for label, a in _rows(shape).items():
        _, x_hat, rstd = rms_forward(a.x, a.gamma, 1e-5)
        yield label, (x_hat, rstd[0])


@exercise(
    "jacobian",
    lambda: dict(_one_row(5)),
    {
        "LayerNorm's term through the mean is still there; here is no mean to go through.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, mean_term=1)
        ),
        "only the straight route is there: rstd depends on every x too.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, 0)
        ),
        "the route through rstd has the wrong sign: d(ms**-0.5) = -0.5 ms**-1.5.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, -1)
        ),
        "the route through rstd is not divided by D, as the mean of the squares is.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, x_hat.size)
        ),
        "twice the route through rstd: the 1/2 of the root's derivative is missing.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, 2)
        ),
        "half the route through rstd: the 2 of the square's derivative is missing.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, 0.5)
        ),
        "rstd is missing in front.": lambda x_hat, rstd: _jacobian(x_hat, 1.0),
        "rstd is missing in the straight route.": lambda x_hat, rstd: (
            np.eye(x_hat.size) - rstd * np.outer(x_hat, x_hat) / x_hat.size
        ),
        "rstd is missing in the route through rstd.": lambda x_hat, rstd: (
            rstd * np.eye(x_hat.size) - np.outer(x_hat, x_hat) / x_hat.size
        ),
        "rstd**3 goes with x_i x_j. With x_hat, two of the three are in it already.": (
            lambda x_hat, rstd: _jacobian(x_hat, rstd, rstd**2)
        ),
        "x_hat * x_hat is one row of squares; the term needs all products x_hat_i x_hat_j: "
        "np.outer(x_hat, x_hat).": lambda x_hat, rstd: (
            rstd * (np.eye(x_hat.size) - x_hat * x_hat / x_hat.size)
        ),
        "x_hat @ x_hat is one number; the term needs all products x_hat_i x_hat_j: "
        "np.outer(x_hat, x_hat).": lambda x_hat, rstd: (
            rstd * (np.eye(x_hat.size) - x_hat @ x_hat / x_hat.size)
        ),
    },
)
def rms_jacobian(x_hat, rstd):
    """Return all dx_hat_i/dx_j of one row, (D, D)."""
    return _jacobian(x_hat, rstd)


# ---- 7.3 -----------------------------------------------------------------------------------------


def _dgamma(dy, x_hat):
    return (dy * x_hat).sum(axis=tuple(range(dy.ndim - 1)))  # (D,)


def _other_dx(dx_of):
    """Only dx is wrong: dx_of(g, x_hat, rstd, gamma) with g = gamma * dy."""
    return lambda dy, x_hat, rstd, gamma: (
        dx_of(gamma * dy, x_hat, rstd, gamma),
        _dgamma(dy, x_hat),
    )


def _other_dgamma(dgamma_of):
    """Only dgamma is wrong: dgamma_of(dy, x_hat, gamma)."""
    return lambda dy, x_hat, rstd, gamma: (
        rms_backward(dy, x_hat, rstd, gamma)[0],
        dgamma_of(dy, x_hat, gamma),
    )


def _with_mean_term(g, x_hat, rstd, gamma):
    return rstd * (g - _mean(g) - x_hat * _mean(g * x_hat))


def _no_projection(g, x_hat, rstd, gamma):
    return rstd * g


def _gamma_in_front(g, x_hat, rstd, gamma):
    return rstd * (g - gamma * x_hat * _mean(g / gamma * x_hat))


def _no_gamma(g, x_hat, rstd, gamma):
    return rstd * (g / gamma - x_hat * _mean(g / gamma * x_hat))


def _eps_outside_root(g, x_hat, rstd, gamma, eps=1e-5):
    rms = np.sqrt(np.maximum(1 / rstd**2 - eps, 0))
    return (g - x_hat * _mean(g * x_hat)) / (rms + eps)


def _not_divided(g, x_hat, rstd, gamma):
    return rstd * (g - x_hat * np.sum(g * x_hat, axis=-1, keepdims=True))


WRONG_DX = {
    "LayerNorm's mean term is still there; without a mean in the layer there is none.": (
        _with_mean_term
    ),
    "only the straight route is there: rstd depends on every x too.": _no_projection,
    "gamma stands in front of the mean; it differs from entry to entry, so it belongs inside.": (
        _gamma_in_front
    ),
    "gamma is missing.": _no_gamma,
    "gamma is missing inside the mean, where the row's g is averaged.": (
        lambda g, x_hat, rstd, gamma: rstd * (g - x_hat * _mean(g / gamma * x_hat))
    ),
    "the term through rstd has the wrong sign.": lambda g, x_hat, rstd, gamma: (
        rstd * (g + x_hat * _mean(g * x_hat))
    ),
    "twice the term through rstd: the 1/2 of the root's derivative is missing.": (
        lambda g, x_hat, rstd, gamma: rstd * (g - 2 * x_hat * _mean(g * x_hat))
    ),
    "a sum where the mean of g * x_hat belongs: not divided by D.": _not_divided,
    "the mean of g * x_hat is taken over D - 1.": lambda g, x_hat, rstd, gamma: (
        rstd * (g - x_hat * _mean(g * x_hat) * g.shape[-1] / (g.shape[-1] - 1))
    ),
    "it holds for sqrt(ms) + eps, with eps outside the root.": _eps_outside_root,
    "rstd squared: rstd enters once.": lambda g, x_hat, rstd, gamma: (
        rstd**2 * (g - x_hat * _mean(g * x_hat))
    ),
    "rstd is missing.": lambda g, x_hat, rstd, gamma: g - x_hat * _mean(g * x_hat),
    "rstd is missing in the straight route.": lambda g, x_hat, rstd, gamma: (
        g - rstd * x_hat * _mean(g * x_hat)
    ),
    "rstd is missing in the term through rstd.": lambda g, x_hat, rstd, gamma: (
        rstd * g - x_hat * _mean(g * x_hat)
    ),
    "rstd**3 goes with x. With x_hat, two of the three are in it already.": (
        lambda g, x_hat, rstd, gamma: rstd * g - rstd**3 * x_hat * _mean(g * x_hat)
    ),
    "the mean over the rows, where each row has its own.": lambda g, x_hat, rstd, gamma: (
        rstd * (g - x_hat * _mean(g * x_hat, axis=tuple(range(g.ndim - 1))))
    ),
    "one mean of the whole array, where each row has its own.": lambda g, x_hat, rstd, gamma: (
        rstd * (g - x_hat * np.mean(g * x_hat))
    ),
    "mean(g) * mean(x_hat), where the mean of the products belongs.": (
        lambda g, x_hat, rstd, gamma: rstd * (g - x_hat * _mean(g) * _mean(x_hat))
    ),
}
WRONG_DGAMMA = {
    "not summed: every row uses the same gamma, so the gradients of the rows add up.": (
        lambda dy, x_hat, gamma: dy * x_hat
    ),
    "x_hat is missing: gamma multiplies it.": lambda dy, x_hat, gamma: dy.sum(axis=(0, 1)),
    "gamma is in it: y = gamma * x_hat is linear in gamma, its derivative is x_hat.": (
        lambda dy, x_hat, gamma: _dgamma(gamma * dy, x_hat)
    ),
    "averaged over the rows, where they are added up.": lambda dy, x_hat, gamma: (dy * x_hat).mean(
        axis=(0, 1)
    ),
    "a sum along each row; gamma is shared by the rows, so add up the rows.": (
        lambda dy, x_hat, gamma: (dy * x_hat).sum(axis=-1)
    ),
}


def _backward_cases():
    for label, a in _rows(2, 3, 5).items():
        _, x_hat, rstd = rms_forward(a.x, a.gamma, 1e-5)
        yield label, (a.dy, x_hat, rstd, a.gamma)


@exercise(
    "dx dgamma",
    lambda: dict(_backward_cases()),
    {text: _other_dx(dx_of) for text, dx_of in WRONG_DX.items()}
    | {text: _other_dgamma(dgamma_of) for text, dgamma_of in WRONG_DGAMMA.items()},
)
def rms_backward(dy, x_hat, rstd, gamma):
    """Return dx (B, T, D) and dgamma (D,)."""
    dgamma = (dy * x_hat).sum(axis=tuple(range(dy.ndim - 1)))  # (D,)
    g = dy * gamma  # (..., D)
    along = (g * x_hat).mean(axis=-1, keepdims=True)  # (..., 1)
    return rstd * (g - x_hat * along), dgamma
