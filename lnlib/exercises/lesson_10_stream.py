"""Lesson 10, section 10: a residual addition and RMSNorm as one layer."""

import numpy as np

from ..checker import BadResult, Score, mistakes
from .data import layer, zero_at_1
from .registry import exercise


def _stream_cases():
    for label, seed, shape, size, eps in (
        ("x of shape (B, T, D)", 80, (2, 3, 5), 1.0, 1e-3),
        ("x of shape (N, D), and a gamma that is zero", 82, (4, 3), 1.0, 1e-3),
        ("rows so small that eps counts", 84, (3, 2, 4), 0.004, 1e-5),
    ):
        a, b = layer(seed, *shape), layer(seed + 1, *shape)
        gamma = zero_at_1(a.gamma) if "zero" in label else a.gamma  # (D,)
        yield label, (size * a.x, size * (b.x - 1), gamma, eps, a.dy, b.dy)


def _as_many(values, name, asked):
    """Return what a function returned, or say that it should have been so many values."""
    if not isinstance(values, tuple | list) or len(values) != len(asked.split()):
        raise BadResult(f"has a function {name} that does not return {asked}")
    return values


def _run_pair(function, x, r, gamma, eps, dy, dz):
    """Call both functions of a pair; return y, z, dx, dr, dgamma."""
    pair = function()
    if pair is None:
        raise NotImplementedError
    forward, backward = _as_many(pair, "add_rms_norm", "forward, backward")
    y, z, cache = _as_many(forward(x, r, gamma, eps), "forward", "y, z, cache")
    y, z = np.array(y), np.array(z)  # copies: what backward does to its cache must not show
    dx, dr, dgamma = _as_many(backward(dy, dz, cache), "backward", "dx, dr, dgamma")
    return y, z, dx, dr, dgamma


def _arrays_in_cache(cache):
    """Yield the arrays in a cache: a tuple, a list, a dict, or an array itself."""
    if isinstance(cache, np.ndarray):
        yield cache
    elif isinstance(cache, tuple | list | dict):
        for each in cache.values() if isinstance(cache, dict) else cache:
            yield from _arrays_in_cache(each)
    elif not (cache is None or np.isscalar(cache)):
        raise TypeError("the cache holds something that is no array, tuple, list or dict")


def _judge_cache(function):
    a, b = layer(86, 8, 64), layer(87, 8, 64)
    forward, backward = function()
    _, z, cache = forward(a.x, b.x, a.gamma, 1e-5)
    gradients = [np.array(gradient) for gradient in backward(a.dy, b.dy, cache)]
    forward(b.x, a.x, b.gamma, 1e-5)  # another layer's: what is kept outside the cache is lost
    if not all(map(np.array_equal, gradients, backward(a.dy, b.dy, cache))):
        return "The numbers are right, but after other calls the same cache gives other gradients."
    kept = {id(k): k.nbytes for k in _arrays_in_cache(cache) if not np.may_share_memory(k, z)}
    extra = (sum(kept.values()) - kept.get(id(a.gamma), 0)) / a.x.nbytes
    if extra > 1.5:
        return f"Right numbers, but beside z the cache holds {extra:.1f} values per element."
    advice = " Fewer will do." if extra > 0.5 else ""
    said = f"Beside z, which is in use anyway, it keeps {extra:.2f} values per element."
    return Score(said + advice)


@exercise(
    "y z dx dr dgamma",
    _stream_cases,
    prepare=lambda function: lambda *arguments: _run_pair(function, *arguments),
    judge=_judge_cache,
    expected=lambda *arguments: _run_pair(add_rms_norm, *arguments),
)
@mistakes(
    """
    through_norm + dz => through_norm  # dz is missing: the stream's gradient comes back too.
    through_norm + dz => through_norm + dz / 2
        half of dz: x and r do not share it. dz reaches each of them whole.
    gamma * dy => gamma * dy + dz  # dz comes back twice: it goes past the norm, not through it.
    return dx, dx => return dx, dz  # r is a part of z as x is, so both have the same gradient.
    gamma = cache => gamma = cache; dy, dz = dz, dy  # dy and dz have changed places.
    return dx, dx => return dx, dy  # this is dy: r is a part of z, so it has the gradient of z.
    return dx, dx => return dx, through_norm  # dz is missing here: x and r both reach z.
    z = x + r => z = x  # r is missing: z = x + r, and the norm is that of z.
    (z * rstd), z => (z * rstd), x  # the stream goes on with x + r, not with x.
    np.mean(z * z => np.mean(x * x  # rstd belongs to z, not to x.
    gamma * dy => gamma * dy + dz
    through_norm + dz => through_norm  # dz goes past the norm: z itself is an output.
    gamma * dy => gamma * (dy + dz)
    through_norm + dz => through_norm  # dz goes past the norm: z itself is an output.
    z, (z, rstd, gamma) => z, (gamma * (z * rstd), rstd, gamma)
    z_hat, g = z * rstd => z_hat, g = z / gamma
        z_hat is y / gamma only where gamma is not zero. Keep z in the cache, and rstd.
    + eps => + NUMBER  # eps is not the argument but fixed at {}.
    (dy * z_hat) => ((dy + dz) * z_hat)  # gamma reaches y only, so only dy belongs here.
""",
    run=_run_pair,
)
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
