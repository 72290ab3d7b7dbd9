"""Lesson 07, section 8: a residual addition and RMSNorm as one layer."""

import numpy as np

from .checker import Score, exercise, mistakes
from .compare import BadResult
from .data import layer
from .edits import edited, edits


def _cases():
    for label, seed, shape, size, eps in (
        ("x of shape (B, T, D)", 80, (2, 3, 5), 1.0, 1e-3),
        ("x of shape (N, D), and a gamma that is zero", 82, (4, 3), 1.0, 1e-3),
        ("rows so small that eps counts", 84, (3, 2, 4), 0.004, 1e-5),
    ):
        a, b = layer(seed, *shape), layer(seed + 1, *shape)
        gamma = a.gamma * (np.arange(shape[-1]) != 1) if "zero" in label else a.gamma  # (D,)
        yield label, (size * a.x, size * (b.x - 1), gamma, eps, a.dy, b.dy)


def _run(function, x, r, gamma, eps, dy, dz):
    """Call both functions of a pair; return y, z, dx, dr, dgamma."""
    pair = function()
    if pair is None:
        raise NotImplementedError
    several = isinstance(pair, tuple | list)
    if not (several and len(pair) == 2 and all(map(callable, pair))):
        came = f"{len(pair)} values" if several else f"a {type(pair).__name__}"
        raise BadResult(f"returns {came} where two functions are asked: forward and backward")
    forward, backward = pair
    given = x, r, gamma, dy, dz
    before = [a.copy() for a in given]
    y, z, cache = _three(forward(x, r, gamma, eps), "forward", "y, z and the cache")
    y, z = np.array(y), np.array(z)  # copies: what backward does to its cache must not show
    dx, dr, dgamma = _three(backward(dy, dz, cache), "backward", "dx, dr and dgamma")
    for name, a, b in zip(("x", "r", "gamma", "dy", "dz"), given, before):
        if not np.array_equal(a, b):
            raise BadResult(f"changes {name} in place; the caller still needs the old values")
    return y, z, dx, dr, dgamma


def _three(result, name, asked):
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise BadResult(f"has a {name} that does not return three values: {asked}")
    return result


def _prepare(function):
    return lambda *arguments: _run(function, *arguments)


def _arrays(value):
    """Yield the arrays in a cache: a tuple, a list, a dict, or an array itself."""
    if isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _arrays(each)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield value
    elif not (value is None or np.isscalar(value)):
        kind = type(value).__name__
        raise BadResult(f"has a {kind} in its cache, which is a tuple, list or dict of arrays")


def _weigh(function):
    a, b = layer(86, 8, 64), layer(87, 8, 64)
    forward, backward = function()
    _, z, cache = forward(a.x, b.x, a.gamma, 1e-5)
    gradients = [np.array(gradient) for gradient in backward(a.dy, b.dy, cache)]
    forward(b.x, a.x, b.gamma, 1e-5)  # another layer's: what is kept outside the cache is lost
    if not all(map(np.array_equal, gradients, backward(a.dy, b.dy, cache))):
        return (
            "The numbers are right, but backward changes its cache, or needs more than that: after "
            "another forward pass the same cache gives other gradients."
        )
    kept = {id(array): array for array in _arrays(cache)}
    kept = [k for k in kept.values() if k is not a.gamma and not np.may_share_memory(k, z)]
    extra = sum(k.nbytes for k in kept) / a.x.nbytes
    if extra > 1.5:
        return (
            f"The numbers are right, but beside z, which lives on in the stream, the cache holds "
            f"{extra:.1f} values per element. One, or none, is enough."
        )
    return Score(
        f"Beside z, which lives on in the stream, it keeps {extra:.2f} values per element."
    )


def _mistake(edit):
    return lambda *arguments: _run(edited(add_rms_norm, edit), *arguments)


MISTAKES = edits("""
    through_norm + dz => through_norm  # dz is missing: the stream's gradient comes back too.
    dx = through_norm + dz => dx = dz  # the gradient through the norm is missing.
    return dx, dx => return dx, dz  # r is a part of z as x is, so both have the same gradient.
    return dx, dx => return dx, through_norm  # dz is missing here: x and r both reach z.
    z = x + r => z = x  # r is missing: z = x + r, and the norm is that of z.
    (z * rstd), z => (z * rstd), x  # the stream goes on with x + r, not with x.
    np.mean(z * z => np.mean(x * x  # rstd belongs to z, not to x.
    (g - z_hat => (g + dz - z_hat
    through_norm + dz => through_norm  # dz goes past the norm: z itself is an output.
    gamma * dy => gamma * dy + dz
    through_norm + dz => through_norm  # dz goes past the norm: z itself is an output.
    gamma * dy => gamma * (dy + dz)
    through_norm + dz => through_norm  # dz goes past the norm: z itself is an output.
    z, (z, rstd, gamma) => z, (gamma * (z * rstd), rstd, gamma)
    z_hat, g = z * rstd => z_hat, g = z / gamma
        z_hat is y / gamma only where gamma is not zero. Keep z in the cache, and rstd.
    + eps => + 1e-5  # eps is not the argument but fixed at 1e-5.
    - z_hat * np.mean(g * z_hat, axis=-1, keepdims=True) =>  # only the straight route is there.
    (dy * z_hat) => ((dy + dz) * z_hat)  # gamma reaches y only, so only dy belongs here.
""")


@exercise(
    "y z dx dr dgamma",
    lambda: dict(_cases()),
    prepare=_prepare,
    judge=_weigh,
    expected=lambda *arguments: _run(add_rms_norm, *arguments),
)
@mistakes({words: [_mistake(edit) for edit in several] for words, several in MISTAKES.items()})
def add_rms_norm():
    """Return forward(x, r, gamma, eps) and backward(dy, dz, cache)."""

    def forward(x, r, gamma, eps):
        z = x + r  # (..., D)
        rstd = 1 / np.sqrt(np.mean(z * z, axis=-1, keepdims=True) + eps)  # (..., 1)
        return gamma * (z * rstd), z, (z, rstd, gamma)

    def backward(dy, dz, cache):
        z, rstd, gamma = cache
        z_hat, g = z * rstd, gamma * dy  # (..., D) each
        through_norm = rstd * (g - z_hat * np.mean(g * z_hat, axis=-1, keepdims=True))  # (..., D)
        dx = through_norm + dz  # (..., D)
        return dx, dx, (dy * z_hat).sum(axis=tuple(range(dy.ndim - 1)))

    return forward, backward
