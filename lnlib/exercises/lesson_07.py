"""Lesson 07, sections 1 to 3: RMSNorm, y = gamma * x / sqrt(mean(x**2) + eps), and its gradient."""

from types import SimpleNamespace

import numpy as np

from ..checks import row_mean
from .checker import exercise
from .data import dx_terms, layer, layers, wrong_rstd


def _rows(*shape):
    """Return `layers`, with rows so small that eps is a part of ms + eps in place of flat ones."""
    ordinary, flat, other = layers(*shape).items()
    small = flat[1]._replace(x=layer(72, *flat[1].x.shape).x / 200)
    matrix = ("rows of shape (N, D)", layer(73, *shape[-2:]))
    return dict(
        [ordinary, ("rows so small that eps counts", small), other] + [matrix] * (len(shape) > 1)
    )


# ---- 7.1 -----------------------------------------------------------------------------------------


def _varied(axis=-1, centre=lambda x: 0, rstd=lambda ms, eps: 1 / np.sqrt(ms + eps)):
    """Return a forward pass that is wrong in one place."""

    def mistake(x, gamma, eps):
        z = x - centre(x)  # (B, T, D)
        r = rstd(np.mean(z * z, axis=axis, keepdims=True), eps)  # (B, T, 1)
        return gamma * z * r, z * r, r

    return mistake


def _returned(change):
    """Only what is returned is wrong: change(x_hat, rstd, gamma)."""
    return lambda x, gamma, eps: change(*rms_forward(x, gamma, eps)[1:], gamma)


def _variance(x, gamma, eps):
    r = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    return gamma * x * r, x * r, r


def _centred_afterwards(x_hat, rstd, gamma):
    z = x_hat - row_mean(x_hat)
    return gamma * z, z, rstd


def _sum_of_squares(x, gamma, eps):
    return _varied(rstd=lambda ms, eps: 1 / np.sqrt(ms * x.shape[-1] + eps))(x, gamma, eps)


@exercise(
    "y x_hat rstd",
    lambda: (
        {k: (a.x, a.gamma, 1e-5) for k, a in _rows(2, 3, 5).items()}
        | {"eps = 0.1": (*_rows(3, 4, 2)["another shape"][1:3], 0.1)}
    ),
    {
        "this is LayerNorm: RMSNorm subtracts no mean.": _varied(centre=row_mean),
        "the variance is in it. Nothing is centred here: it is the mean of x**2.": _variance,
        "the mean is subtracted in x_hat. Nothing is centred here.": _returned(_centred_afterwards),
        "a sum where the mean of x**2 belongs: not divided by D.": _sum_of_squares,
        "eps is added to 1 / sqrt(ms); it belongs to ms, inside the root.": _varied(
            rstd=lambda ms, eps: 1 / np.sqrt(ms) + eps
        ),
        **{
            text: _varied(rstd=rstd)
            for text, rstd in wrong_rstd("root", "the mean of the squares", "ms").items()
        },
        "this is the root of the mean square; rstd is its reciprocal.": _returned(
            lambda x_hat, rstd, gamma: (gamma * x_hat, x_hat, 1 / rstd)
        ),
        "one mean over the sequences (axis 0); each row has its own.": _varied(axis=0),
        "one mean over the tokens (axis 1); each row has its own.": _varied(axis=1),
        "one mean of the whole array; each row has its own.": _varied(axis=None),
        "gamma is missing.": _returned(lambda x_hat, rstd, gamma: (x_hat, x_hat, rstd)),
        "it is multiplied by 1 + gamma, as in Gemma; here y = gamma * x_hat.": _returned(
            lambda x_hat, rstd, gamma: ((1 + gamma) * x_hat, x_hat, rstd)
        ),
        "gamma is in it already; x_hat is what gamma multiplies.": _returned(
            lambda x_hat, rstd, gamma: (gamma * x_hat, gamma * x_hat, rstd)
        ),
    },
)
def rms_forward(x, gamma, eps):
    """Return y (B, T, D), x_hat (B, T, D) and rstd (B, T, 1)."""
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)  # (..., 1)
    x_hat = x * rstd  # (..., D)
    return gamma * x_hat, x_hat, rstd


# ---- 7.2 -----------------------------------------------------------------------------------------


def _jacobian(of):
    """Return of(a), where a has x_hat, rstd, D, the identity and all products over D."""

    def jacobian(x_hat, rstd):
        D = x_hat.size
        products = np.outer(x_hat, x_hat) / D  # (D, D)
        return of(SimpleNamespace(x_hat=x_hat, rstd=rstd, D=D, eye=np.eye(D), products=products))

    return jacobian


def _one_row():
    for label, a in _rows(5).items():
        _, x_hat, rstd = rms_forward(a.x, a.gamma, 1e-5)
        yield label, (x_hat, rstd)


WRONG_JACOBIANS = {
    "LayerNorm's term through the mean is still there; here is no mean to go through.": (
        lambda a: a.rstd * (a.eye - 1 / a.D - a.products)
    ),
    "only the straight route is there: rstd depends on every x too.": lambda a: a.rstd * a.eye,
    "the route through rstd has the wrong sign: d(ms**-0.5) = -0.5 ms**-1.5.": (
        lambda a: a.rstd * (a.eye + a.products)
    ),
    "the route through rstd is not divided by D, as the mean of the squares is.": (
        lambda a: a.rstd * (a.eye - a.D * a.products)
    ),
    "twice the route through rstd: the 1/2 of the root's derivative is missing.": (
        lambda a: a.rstd * (a.eye - 2 * a.products)
    ),
    "half the route through rstd: the 2 of the square's derivative is missing.": (
        lambda a: a.rstd * (a.eye - a.products / 2)
    ),
    "rstd is missing in front.": lambda a: a.eye - a.products,
    "rstd is missing in the straight route.": lambda a: a.eye - a.rstd * a.products,
    "rstd is missing in the route through rstd.": lambda a: a.rstd * a.eye - a.products,
    "rstd**3 goes with x_i x_j. With x_hat, two of the three are in it already.": (
        lambda a: a.rstd * a.eye - a.rstd**3 * a.products
    ),
    "x_hat * x_hat is one row of squares; the term needs all products x_hat_i x_hat_j: "
    "np.outer(x_hat, x_hat).": lambda a: a.rstd * (a.eye - a.x_hat**2 / a.D),
    "x_hat @ x_hat is one number; the term needs all products x_hat_i x_hat_j: "
    "np.outer(x_hat, x_hat).": lambda a: a.rstd * (a.eye - a.x_hat @ a.x_hat / a.D),
}


@exercise(
    "jacobian",
    lambda: dict(_one_row()),
    {text: _jacobian(of) for text, of in WRONG_JACOBIANS.items()},
)
def rms_jacobian(x_hat, rstd):
    """Return all dx_hat_i/dx_j of one row, (D, D), from x_hat (D,) and rstd (1,)."""
    return _jacobian(lambda a: a.rstd * (a.eye - a.products))(x_hat, rstd)


# ---- 7.3 -----------------------------------------------------------------------------------------


def wrong_dx(dx_of):
    """Return a backward pass with dx_of(a) for dx; a has dy, x_hat, rstd, gamma, g and along."""

    def backward(dy, x_hat, rstd, gamma):
        a = SimpleNamespace(dy=dy, x_hat=x_hat, rstd=rstd, gamma=gamma, g=gamma * dy)
        a.along = row_mean(a.g * x_hat)  # (..., 1)
        return dx_of(a), rms_backward(dy, x_hat, rstd, gamma)[1]

    return backward


def wrong_dgamma(dgamma_of):
    """Return a backward pass with dgamma_of(dy, x_hat, gamma) for dgamma."""
    return lambda dy, x_hat, rstd, gamma: (
        rms_backward(dy, x_hat, rstd, gamma)[0],
        dgamma_of(dy, x_hat, gamma),
    )


def _rows_of(dy):
    return tuple(range(dy.ndim - 1))


WRONG_DX = {
    "LayerNorm's mean term is still there; without a mean in the layer there is none.": (
        lambda a: a.rstd * (a.g - row_mean(a.g) - a.x_hat * a.along)
    ),
    "only the straight route is there: rstd depends on every x too.": lambda a: a.rstd * a.g,
    "gamma stands in front of the mean; it differs from entry to entry, so it belongs inside.": (
        lambda a: a.rstd * a.gamma * (a.dy - a.x_hat * row_mean(a.dy * a.x_hat))
    ),
    "gamma is missing.": lambda a: a.rstd * (a.dy - a.x_hat * row_mean(a.dy * a.x_hat)),
    "gamma is missing inside the mean, where the row's g is averaged.": (
        lambda a: a.rstd * (a.g - a.x_hat * row_mean(a.dy * a.x_hat))
    ),
    "the term through rstd has the wrong sign.": lambda a: a.rstd * (a.g + a.x_hat * a.along),
    "twice the term through rstd: the 1/2 of the root's derivative is missing.": (
        lambda a: a.rstd * (a.g - 2 * a.x_hat * a.along)
    ),
    "a sum where the mean of g * x_hat belongs: not divided by D.": (
        lambda a: a.rstd * (a.g - a.x_hat * a.along * a.g.shape[-1])
    ),
    "the mean of g * x_hat is taken over D - 1.": lambda a: (
        a.rstd * (a.g - a.x_hat * a.along * a.g.shape[-1] / (a.g.shape[-1] - 1))
    ),
    "it holds for sqrt(ms) + eps, with eps outside the root.": lambda a: (
        (a.g - a.x_hat * a.along) / (np.sqrt(np.maximum(1 / a.rstd**2 - 1e-5, 0)) + 1e-5)
    ),
    "rstd squared: rstd enters once.": lambda a: a.rstd**2 * (a.g - a.x_hat * a.along),
    "rstd is missing.": lambda a: a.g - a.x_hat * a.along,
    "rstd is missing in the straight route.": lambda a: a.g - a.rstd * a.x_hat * a.along,
    "rstd is missing in the term through rstd.": lambda a: a.rstd * a.g - a.x_hat * a.along,
    "rstd**3 goes with x. With x_hat, two of the three are in it already.": (
        lambda a: a.rstd * a.g - a.rstd**3 * a.x_hat * a.along
    ),
    "the mean over the rows, where each row has its own.": (
        lambda a: a.rstd * (a.g - a.x_hat * np.mean(a.g * a.x_hat, axis=_rows_of(a.g)))
    ),
    "one mean of the whole array, where each row has its own.": (
        lambda a: a.rstd * (a.g - a.x_hat * np.mean(a.g * a.x_hat))
    ),
    "mean(g) * mean(x_hat), where the mean of the products belongs.": (
        lambda a: a.rstd * (a.g - a.x_hat * row_mean(a.g) * row_mean(a.x_hat))
    ),
}
WRONG_DGAMMA = {
    "not summed: every row uses the same gamma, so the gradients of the rows add up.": (
        lambda dy, x_hat, gamma: dy * x_hat
    ),
    "x_hat is missing: gamma multiplies it.": lambda dy, x_hat, gamma: dy.sum(axis=_rows_of(dy)),
    "gamma is in it: y = gamma * x_hat is linear in gamma, its derivative is x_hat.": (
        lambda dy, x_hat, gamma: (gamma * dy * x_hat).sum(axis=_rows_of(dy))
    ),
    "averaged over the rows, where they are added up.": (
        lambda dy, x_hat, gamma: (dy * x_hat).mean(axis=_rows_of(dy))
    ),
    "a sum along each row; gamma is shared by the rows, so add up the rows.": (
        lambda dy, x_hat, gamma: (dy * x_hat).sum(axis=-1)
    ),
}
WRONG_BACKWARD = {text: wrong_dx(dx_of) for text, dx_of in WRONG_DX.items()}
WRONG_BACKWARD |= {text: wrong_dgamma(of) for text, of in WRONG_DGAMMA.items()}


def _backward_cases():
    for label, a in _rows(2, 3, 5).items():
        _, x_hat, rstd = rms_forward(a.x, a.gamma, 1e-5)
        yield label, (a.dy, x_hat, rstd, a.gamma)


@exercise("dx dgamma", lambda: dict(_backward_cases()), WRONG_BACKWARD, terms={"dx": dx_terms})
def rms_backward(dy, x_hat, rstd, gamma):
    """Return dx, of the shape of dy, and dgamma (D,)."""
    dgamma = (dy * x_hat).sum(axis=tuple(range(dy.ndim - 1)))  # (D,)
    g = dy * gamma  # (..., D)
    along = (g * x_hat).mean(axis=-1, keepdims=True)  # (..., 1)
    return rstd * (g - x_hat * along), dgamma
