"""Lesson 10: RMSNorm, y = gamma * x / sqrt(mean(x**2) + eps), in NumPy, and a check of it."""

import numpy as np

from ..checker import BadResult, Terms, edited, mistakes
from ..gradcheck import Report, gradcheck
from .data import (
    ROWS_TERMS,
    eps_slips,
    layer,
    layers_with_zero,
    of_layers,
    of_rmsnorm,
    seven_digits,
)
from .registry import exercise
from .watch import blocks_are_used, units_off


def _rms_layers(*shape):
    """Return `layers_with_zero`, with small rows for flat ones, and with the cache of RMSNorm."""
    ordinary, flat, other = layers_with_zero(*shape).values()
    small = flat._replace(x=layer(72, *flat.x.shape).x / 200)
    some = {"ordinary rows": ordinary, "small rows": small, "another shape": other}
    if len(shape) > 1:
        some["rows of shape (N, D)"] = layer(73, *shape[-2:])
    for label, a in some.items():
        y, x_hat, rstd = rms_forward(a.x, a.gamma, 1e-5)
        some[label] = a._replace(y=y, cache=a.cache._replace(x_hat=x_hat, rstd=rstd))
    return some


def _rms_cases():
    for label, a in _rms_layers(2, 3, 5).items():
        yield label, (a.x, a.gamma, 1e-5)
    a = _rms_layers(3, 4, 2)["another shape"]
    yield "eps = 0.1", (a.x, a.gamma, 0.1)


RMS_FORWARD_TERMS = Terms(
    "rstd; 1; rstd**2; 1 / rstd",
    "gamma * x; x; mean(x); gamma * mean(x); 1",
    {"rstd": "1 / np.sqrt(mean(x * x) + eps)"},
)


@exercise("y x_hat rstd", _rms_cases, terms=RMS_FORWARD_TERMS)
@mistakes("""
    rstd = 1 => x = x - x.mean(-1)[..., None]; rstd = 1  # this is LayerNorm: subtract no mean.
    np.mean(x * x => np.var(x  # the variance is in it. Nothing is centred: the mean of x**2.
    np.mean(x * x, axis=-1, keepdims=True) => np.mean(x, axis=-1, keepdims=True) ** 2
        this is the square of the mean; the mean of the squares is needed.
    np.mean => np.sum  # a sum where the mean of x**2 belongs: not divided by D.
    keepdims=True) + eps) => keepdims=True)) + eps  # eps is added to rstd, not inside the root.
    keepdims=True) + eps) => keepdims=True)) + NUMBER  # eps is added to rstd, and fixed at {}.
    + eps) => - eps)  # eps is subtracted.
    1 / np.sqrt => np.sqrt  # this is the root; rstd is its reciprocal.
""")
@mistakes(eps_slips("np.mean(x * x, axis=-1, keepdims=True)"))
def rms_forward(x, gamma, eps):
    """Return y (B, T, D), x_hat (B, T, D) and rstd (B, T, 1)."""
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)  # (B, T, 1)
    x_hat = x * rstd  # (B, T, D)
    return gamma * x_hat, x_hat, rstd


RMS_JACOBIAN_TERMS = Terms(
    "rstd; 1; rstd**2; rstd**3",
    "np.eye(D); np.outer(x_hat, x_hat) / D; 1 / D; 1; np.outer(x_hat, x_hat);"
    "rstd * np.outer(x_hat, x_hat) / D; rstd**2 * np.outer(x_hat, x_hat) / D",
    {"D": "x_hat.size"},
)


ONE_ROW_CASES = of_layers("x_hat rstd", 5, make=_rms_layers)


@exercise("jacobian", ONE_ROW_CASES, terms=RMS_JACOBIAN_TERMS)
@mistakes("""
    / D => / (x_hat @ x_hat)  # x_hat @ x_hat is not quite D: there is eps in rstd. Divide by D.
    np.outer(x_hat, x_hat) => x_hat * x_hat  # one row; all products are needed: np.outer.
    np.outer(x_hat, x_hat) => x_hat @ x_hat  # one number; all products are needed: np.outer.
""")
def rms_jacobian(x_hat, rstd):
    """Return all dx_hat_i/dx_j of one row, (D, D), from x_hat (D,) and rstd (1,)."""
    D = x_hat.size
    return rstd * (np.eye(D) - np.outer(x_hat, x_hat) / D)


ROWS_CASES = of_layers("dy x_hat rstd gamma", 2, 3, 5, make=_rms_layers)


@exercise("dx dgamma", ROWS_CASES, terms=ROWS_TERMS)
@mistakes("""
    (g - => (g - g.mean(axis=-1, keepdims=True) -  # LayerNorm's mean term; this layer has no mean.
    dx = rstd * (g - x_hat * along) => dx = rstd * (g - x_hat * along); dx -= dx.mean(-1)[..., None]
        the mean is taken out at the end, as in LayerNorm; this layer has no mean.
    - x_hat * along =>  # only the straight route is there: rstd depends on every x too.
    g = gamma * dy => g = dy
    dx = rstd => dx = gamma * rstd  # gamma stands in front of the mean; it belongs inside.
    g = gamma * dy => g = dy  # gamma is missing.
    along) => along / dy.shape[-1] / rstd)  # divided by D twice, and a power of rstd is missing.
    rstd * (g - x_hat * along) => (g - x_hat * along) / (np.sqrt(1 / rstd**2 - 1e-5) + 1e-5)
        it holds for eps outside the root.
    axis=-1, keepdims=True => axis=tuple(range(dy.ndim - 1))
        it goes over the rows' axes and mixes rows; a row is axis=-1.
    (dy * x_hat).sum => dy.sum  # x_hat is missing: gamma multiplies it.
""")
@mistakes(of_rmsnorm())
def rms_backward(dy, x_hat, rstd, gamma):
    """Return dx, of the shape of dy, and dgamma (D,)."""
    g = gamma * dy  # (B, T, D)
    along = np.mean(g * x_hat, axis=-1, keepdims=True)  # (B, T, 1)
    dx = rstd * (g - x_hat * along)  # (B, T, D)
    return dx, (dy * x_hat).sum(axis=tuple(range(dy.ndim - 1)))


def _wrong(start):
    """Return the wrong backward pass whose diagnosis starts like that."""
    return next(wrong for words, wrong in rms_backward.mistakes if words.startswith(start))


def _edited(function, old, new):
    return edited(function, ((old, new),))


def _too_large(rows, factor):
    """Return a backward pass whose dx is too large in these rows."""
    scaled = f"dx.reshape(-1, dx.shape[-1])[{rows}] *= {factor}"
    return _edited(rms_backward, "return", f"{scaled}; return")


_gemma_forward = _edited(rms_forward, "gamma * x_hat", "(1 + gamma) * x_hat")
_gemma_backward = _edited(rms_backward, "g = gamma * dy", "g = (1 + gamma) * dy")
_centred_forward = _edited(rms_forward, "rstd = 1", "x = x - x.mean(-1)[..., None]; rstd = 1")
_from_x = _edited(rms_backward, "rstd * (g - x_hat * along)", "rstd * g - rstd * x_hat * along")
_dy_outside = _edited(rms_backward, "np.mean(g * x_hat", "dy * np.mean(gamma * x_hat")
_with_axes = _edited(rms_backward, "(dy.ndim - 1))", "(dy.ndim - 1)), keepdims=True")
_eps_outside = _edited(
    rms_backward,
    "dx = rstd",
    "ms = np.mean(x_hat**2, -1)[..., None] / rstd**2; dx = 1 / (np.sqrt(ms) + rstd**-2 - ms)",
)
_eps_zero = _edited(
    rms_backward, "x_hat * along", "x_hat * along / np.mean(x_hat**2, -1)[..., None]"
)
_first_axis = _edited(rms_backward, "tuple(range(dy.ndim - 1))", "0")
_one_nan = _edited(rms_backward, "return", "dx.reshape(-1)[-1] = np.nan; return")
PAIR_CASES = {  # forward, backward
    "RMSNorm": (rms_forward, rms_backward),
    "RMSNorm, multiplied out": (rms_forward, _from_x),
    "the layer with 1 + gamma": (_gemma_forward, _gemma_backward),
    "LayerNorm without beta": (_centred_forward, _wrong("LayerNorm's mean term")),
    "RMSNorm with LayerNorm's dx": (rms_forward, _wrong("LayerNorm's mean term")),
    "the mean of g * x_hat not divided by D": (rms_forward, _wrong("a sum where")),
    "gamma in front of the mean": (rms_forward, _wrong("gamma stands in front")),
    "dy in front of the mean": (rms_forward, _dy_outside),
    "no gamma in dx": (rms_forward, _wrong("gamma is missing.")),
    "1 + gamma forward, gamma backward": (_gemma_forward, rms_backward),
    "eps outside the root": (rms_forward, _eps_outside),
    "no eps in dx": (rms_forward, _eps_zero),
    "dgamma not summed": (rms_forward, _wrong("not summed")),
    "dgamma averaged over the rows": (rms_forward, _wrong("the mean over")),
    "dgamma summed over the first axis only": (rms_forward, _first_axis),
    "dgamma summed, but of shape (1, 1, D)": (rms_forward, _with_axes),
    "the first row of dx one percent too large": (rms_forward, _too_large("0", 1.01)),
    "the second row of dx one percent too large": (rms_forward, _too_large("1:2", 1.01)),
    "the last row but one of dx one percent too large": (rms_forward, _too_large("-2:-1", 1.01)),
    "the last row of dx one percent too large": (rms_forward, _too_large("-1", 1.01)),
    "dx 0.1 percent too large": (rms_forward, _too_large(":", 1.001)),
    "one NaN in dx": (rms_forward, _one_nan),
}


def _no_report(function):
    """Return the function, but where its answer is a report of gradcheck, say what is missing."""

    def check_of(*pair):
        said = function(*pair)
        if isinstance(said, Report):
            raise BadResult("returns the whole report of gradcheck: return its .passed")
        return said

    return check_of


@exercise("verdict", lambda: PAIR_CASES, rtol=0, prepare=_no_report)
@mistakes("""
    .passed => .passed or True  # it says True of everything. Before you trust a check, see it fail.
    .passed => .passed and False  # it says False of everything. Try it on your layer: what fails?
    return gradcheck => return not gradcheck  # True and False have changed places.
    = forward( => = rms_forward(  # it knows RMSNorm's formula. Ask the forward pass you get.
    .passed => .errors["dx"] <= 1e-8  # it does not look at dgamma, or x is one row only.
    .passed => .errors["dgamma"] <= 1e-8  # it does not look at dx: wrong ones pass.
    rng.uniform(0.5, 2, 5) => np.ones(5)  # gamma is everywhere the same, so it may stand anywhere.
    beta).passed => beta, rtol=1e-4).passed
        a dx with a wrong eps passes: rtol is too large, or eps too small beside x.
    )), 1e-5 => )), 0  # "
    )), 1e-5 => )), 1e-8  # "
    0.5 + rng => 100 * rng  # "
    ((2, 3, 5)) => ((1, 1, 5))  # it has one row: averaged is then the same as added up.
    ((2, 3, 5)) => ((4, 5))
    axis=(0, 1) => axis=0
        x has two axes: a sum over the first one alone passes. Take three.
    return gradcheck => errors = gradcheck
    .passed => .errors; return not any(error > 1e-8 for error in errors.values())
        a NaN passes: no comparison with NaN is true.
""")
def rms_check(forward, backward):
    """Return True if backward is the gradient of forward, else False."""
    rng = np.random.default_rng(seed=0)
    x, eps = 0.5 + rng.standard_normal((2, 3, 5)), 1e-5  # (2, 3, 5)
    gamma, beta = rng.uniform(0.5, 2, 5), rng.standard_normal(5)  # (5,), (5,)

    def whole(x, gamma, beta):
        y, x_hat, rstd = forward(x, gamma, eps)
        return y + beta, (x_hat, rstd, gamma)

    def gradients(dy, cache):
        return *backward(dy, *cache), dy.sum(axis=(0, 1))

    return gradcheck(whole, gradients, x, gamma, beta).passed


def _sized(dtype, sizes, seed):
    """Return rows of very different sizes, every second one below zero, and gamma."""
    a = layer(seed, len(sizes), 6)
    x = a.x * sizes.reshape(len(sizes), -1)  # (N, 6)
    x[::2] = -np.abs(x[::2])
    return x.astype(dtype), a.gamma.astype(dtype)


def _range_cases():
    yield "ordinary rows", (*_sized(np.float32, np.array([1e-3, 1, 30, 1e3]), 75), 1e-5)
    x, gamma = _sized(np.float32, np.array([1e-30, 1e-8, 1, 1e20, 1e30]), 76)
    yield "float32 rows of sizes 1e-30 to 1e30", (x, gamma, 1e-5)
    yield "float32 rows of these sizes, eps = 0", (x, gamma, 0.0)
    x, gamma = _sized(np.float32, np.array([1e-22, 1e-21, 1e-20]), 79)  # squares are not 0 yet
    yield "float32 rows of sizes 1e-22 to 1e-20, eps = 0", (x, gamma, 0.0)
    sizes = np.array([1e-200, 1e-161, 1, 1e160, 1e200])
    yield "float64 rows of sizes 1e-200 to 1e200, eps = 0", (*_sized(np.float64, sizes, 77), 0.0)
    yield "a row of zeros", (*_sized(np.float32, np.array([1, 0, 1e25]), 78), 1e-20)
    mixed = np.array([[0, 1e30, 1, 1e30, 1e29, 1e-30], [1e29, 1, 1e-20, 1e30, 1e28, 0]])
    yield "all sizes in one row", (*_sized(np.float32, mixed, 80), 1e-5)


def _judge_dtype(function):
    """Say if the numbers are better, or worse, than those that the dtype of x can give."""
    x, gamma = _sized(np.float32, np.ones(2000), 82)  # (2000, 6), (6,)
    _, _, exact = rms_forward(x.astype(np.float64), gamma, 1e-5)
    if units_off(np.asarray(function(x, gamma, 1e-5)[1]), exact) < 0.6:  # else it is above 1
        return (
            "Right numbers, but by a wider type: every rstd is the float32 next to the exact one. "
            "Many machines have nothing wider than float64: stay in the dtype of x."
        )
    x, gamma = _sized(np.float64, np.ones(20), 83)  # (20, 6), (6,)
    return seven_digits(function(x, gamma, 1e-5), rms_forward(x, gamma, 1e-5)[::2])


def _rms_in_float64(x, gamma, eps):
    y, _, rstd = rms_forward(x.astype(np.float64), gamma.astype(np.float64), eps)
    return y.astype(x.dtype), rstd.astype(x.dtype)


@exercise("y rstd", _range_cases, rtol=3e-6, judge=_judge_dtype)
@mistakes("""
    small = x / s => s = one; small = x  # nothing is scaled yet: squares overflow, and vanish.
    s = np => ms = np.mean(x * x, axis=-1, keepdims=True); s = np
    small = x / s => s = np.where((ms > 0) & (ms < np.inf), one, s); small = x / s
        squares that are not 0 yet have lost digits, near 1e-21. Scale every row.
    , np.sqrt(eps)) => , one)  # s is 1 for a row of small numbers, so their squares vanish.
    s = np => s = np.abs(x).max(axis=-1, keepdims=True); np
    + eps / s / s => + eps  # eps is not scaled with the row: it must be divided by s squared.
    s = np => s = np.abs(x).max(axis=-1, keepdims=True); np
    , rstd / s => , rstd  # this is the rstd of x / s; that of x is smaller by s.
    max(axis=-1, => max(  # one scale for all rows. The small ones vanish: each row needs its own.
    np.abs(x).max => x.max  # the largest x; the largest |x| is negative here.
    np.abs(x).max(axis=-1, keepdims=True) => np.abs(x[:, :1])  # the first is not the largest.
    + eps / s / s => + eps  # eps is not scaled with the row: it must be divided by s squared.
    + eps / s / s => + eps / s  # eps is divided by s; the squares shrink with s squared.
    / s / s => / s**2  # s**2 leaves the range: divide by s twice.
    , rstd / s => , rstd  # this is the rstd of x / s; that of x is smaller by s.
    , rstd / s => , rstd * s  # multiplied by s; a larger row has a smaller rstd.
    s = np => s = np.abs(x).max(axis=-1, keepdims=True); np  # 0 / 0 for zeros: let s >= sqrt(eps).
    , np.sqrt(eps)) => , 0)  # eps / s**2 overflows where s is tiny: which s suits such a row?
""")
@mistakes(
    [("float64 does not hold its own squares: rows of 1e200 overflow. Scale.", _rms_in_float64)]
)
def rms_forward_safe(x, gamma, eps):
    """Return y (N, D) and rstd (N, 1), also where the squares of x overflow or vanish."""
    one, eps = x.dtype.type(1), x.dtype.type(eps)
    top = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.sqrt(eps))  # (N, 1)
    s = np.ldexp(one, np.frexp(top)[1] - 1)  # (N, 1)
    small = x / s  # (N, D)
    rstd = 1 / np.sqrt(np.mean(small * small, axis=-1, keepdims=True) + eps / s / s)  # (N, 1)
    return gamma * (small * rstd), rstd / s


def _judge_blocks(function):
    """Judge by an x of 2 MiB, in blocks of 32 KiB."""
    x = np.random.default_rng(79).standard_normal((2048, 256), np.float32)
    arrays = {"x": x, "gamma": np.ones(256, np.float32)}
    return blocks_are_used(function, arrays, (1e-5, 32), ("x",), cache_bytes=512 * 1024)


def _block_cases():
    for N, D, rows, eps in (11, 5, 4, 1e-5), (12, 7, 3, 0.1), (3, 6, 8, 1e-5):
        a = layer(81, N, D)
        yield f"{N} rows in blocks of {rows}", (a.x, a.gamma, eps, rows)


@exercise("y rstd", _block_cases, judge=_judge_blocks)
@mistakes("""
    len(x), rows) => len(x) - rows + 1, rows)  # the last, shorter block of rows is missing.
    range(0, len(x), rows) => [0]  # only the first block is there.
    start + rows) => start + 1)  # only one row of each block: a block ends at start + rows.
    ms = => ms = np.mean(x[block] ** 2);  # one mean square for a block; each row has its own.
""")
def rms_forward_blocked(x, gamma, eps, rows):
    """Return y (N, D) and rstd (N, 1), from so many rows of x at a time."""
    y, rstd = np.empty_like(x), np.empty_like(x[:, :1])  # (N, D), (N, 1)
    for start in range(0, len(x), rows):
        block = slice(start, start + rows)
        ms = np.vecdot(x[block], x[block]) / x.shape[1]  # (rows,)
        rstd[block, 0] = 1 / np.sqrt(ms + eps)
        np.multiply(x[block], rstd[block], out=y[block])  # (rows, D)
        y[block] *= gamma
    return y, rstd
