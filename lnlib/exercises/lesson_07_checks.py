"""Lesson 07, sections 4 to 7: is a gradient right, does a row fit, how many bytes move."""

import numpy as np

from ..gradcheck import gradcheck
from ..trace import trace, traffic
from .checker import exercise
from .compare import BadResult
from .data import layer
from .lesson_07 import WRONG_BACKWARD, rms_backward, rms_forward

# ---- 7.4 -----------------------------------------------------------------------------------------


def _wrong(start):
    """Return the wrong backward pass whose diagnosis starts like that."""
    return next(f for text, f in WRONG_BACKWARD.items() if text.startswith(start))


def _gemma_forward(x, gamma, eps):
    _, x_hat, rstd = rms_forward(x, gamma, eps)
    return (1 + gamma) * x_hat, x_hat, rstd


def _gemma_backward(dy, x_hat, rstd, gamma):
    return rms_backward(dy, x_hat, rstd, 1 + gamma)


def _centred_forward(x, gamma, eps):
    return rms_forward(x - x.mean(axis=-1, keepdims=True), gamma, eps)


def _from_x(dy, x_hat, rstd, gamma):
    x, g = x_hat / rstd, gamma * dy  # (..., D)
    along = np.mean(g * x, axis=-1, keepdims=True)  # (..., 1)
    return rstd * g - rstd**3 * x * along, rms_backward(dy, x_hat, rstd, gamma)[1]


def _last_row(change):
    def backward(dy, x_hat, rstd, gamma):
        dx, dgamma = rms_backward(dy, x_hat, rstd, gamma)
        rows = dx.reshape(-1, dx.shape[-1])  # (N, D), a view
        change(rows[-1])
        return dx, dgamma

    return backward


def _one_percent(row):
    row *= 1.01


def _one_nan(row):
    row[0] = np.nan


PAIRS = {  # forward, backward, whether they belong together
    "RMSNorm": (rms_forward, rms_backward, True),
    "RMSNorm with rstd**3": (rms_forward, _from_x, True),
    "the layer with 1 + gamma": (_gemma_forward, _gemma_backward, True),
    "LayerNorm without beta": (_centred_forward, _wrong("LayerNorm's mean term"), True),
    "RMSNorm with LayerNorm's dx": (rms_forward, _wrong("LayerNorm's mean term"), False),
    "the mean of g * x_hat not divided by D": (rms_forward, _wrong("a sum where"), False),
    "gamma in front of the mean": (rms_forward, _wrong("gamma stands in front"), False),
    "no gamma in dx": (rms_forward, _wrong("gamma is missing."), False),
    "1 + gamma forward, gamma backward": (_gemma_forward, rms_backward, False),
    "eps outside the root": (rms_forward, _wrong("it holds for"), False),
    "dgamma not summed": (rms_forward, _wrong("not summed"), False),
    "dgamma averaged over the rows": (rms_forward, _wrong("averaged"), False),
    "the last row of dx one percent too large": (rms_forward, _last_row(_one_percent), False),
    "one NaN in dx": (rms_forward, _last_row(_one_nan), False),
}


def _check(forward, backward, *, gamma=None, rows=(2, 3), wrt=("dx", "dgamma"), rtol=1e-8):
    """Answer by `gradcheck`, with what a poor check would do differently as options."""
    a = layer(74, *rows, 5)
    gamma = a.gamma if gamma is None else gamma

    def whole(x, gamma, beta):
        y, x_hat, rstd = forward(x, gamma, 1e-5)
        return y + beta, (x_hat, rstd, gamma)

    def gradients(dy, cache):
        return *backward(dy, *cache), dy.sum(axis=tuple(range(dy.ndim - 1)))

    errors = gradcheck(whole, gradients, a.x, gamma, a.beta, rtol=rtol).errors
    return all(errors[name] <= rtol for name in wrt)


def _asks_the_report(function):
    def prepared(forward, backward):
        verdict = function(forward, backward)
        if hasattr(verdict, "passed"):
            raise BadResult("returns a report, not True or False: its .passed says which")
        return verdict

    return prepared


def _nan_passes(forward, backward):
    return rms_check(forward, backward) or "NaN" in _label(forward, backward)


def _label(forward, backward):
    return next(k for k, pair in PAIRS.items() if pair[:2] == (forward, backward))


@exercise(
    "verdict",
    lambda: {label: pair[:2] for label, pair in PAIRS.items()},
    {
        "it says True of everything. Before you trust a check, see it fail.": (
            lambda forward, backward: True
        ),
        "it says False of everything, also of a gradient that is right. Run it on your own "
        "layer, and print the report: which gradient fails?": (lambda forward, backward: False),
        "it says True where the gradient is wrong, and False where it is right.": (
            lambda forward, backward: not rms_check(forward, backward)
        ),
        "it knows RMSNorm's formula. Ask the forward pass that you are given: it may be another "
        "layer, with another gradient.": lambda forward, backward: _check(rms_forward, backward),
        "it does not look at dgamma: wrong ones pass.": (
            lambda forward, backward: _check(forward, backward, wrt=["dx"])
        ),
        "it does not look at dx: wrong ones pass.": (
            lambda forward, backward: _check(forward, backward, wrt=["dgamma"])
        ),
        "its gamma is the same everywhere, which hides where gamma stands.": (
            lambda forward, backward: _check(forward, backward, gamma=np.ones(5))
        ),
        "it has one row only: averaged over the rows is then the same as added up.": (
            lambda forward, backward: _check(forward, backward, rows=(1, 1))
        ),
        "an eps outside the root passes, wrong in the sixth digit: the tolerance is too loose "
        "(central differences in float64 allow 1e-8), or x so large that eps hardly counts.": (
            lambda forward, backward: _check(forward, backward, rtol=1e-4)
        ),
        "a NaN passes: no comparison with NaN is true, so ask whether errors are small enough.": (
            _nan_passes
        ),
    },
    rtol=0,
    prepare=_asks_the_report,
)
def rms_check(forward, backward):
    """Return True if backward is the gradient of forward, else False."""
    return _check(forward, backward)


# ---- 7.5 -----------------------------------------------------------------------------------------


def _sized(dtype, sizes, seed):
    """Return rows of very different sizes, every second one below zero, and gamma."""
    a = layer(seed, len(sizes), 6)
    x = a.x * sizes[:, None]  # (N, 6)
    x[::2] = -np.abs(x[::2])
    return x.astype(dtype), a.gamma.astype(dtype)


def _range_cases():
    ordinary = np.array([1e-3, 1, 30, 1e3])
    x, gamma = _sized(np.float32, ordinary, 75)
    yield "ordinary rows", (x, gamma, 1e-5)
    x, gamma = _sized(np.float32, np.array([1e-30, 1e-8, 1, 1e20, 1e30]), 76)
    yield "float32 rows of sizes 1e-30 to 1e30", (x, gamma, 1e-5)
    yield "float32 rows of these sizes, eps = 0", (x, gamma, 0.0)
    x, gamma = _sized(np.float64, np.array([1e-200, 1e-8, 1, 1e160, 1e200]), 77)
    yield "float64 rows of sizes 1e-200 to 1e200, eps = 0", (x, gamma, 0.0)
    x, gamma = _sized(np.float32, np.array([1, 0, 1e25]), 78)
    yield "a row of zeros", (x, gamma, 1e-5)


def _safe(x, gamma, eps, *, top=None, shrink=lambda eps, s: eps / s / s, undo=np.divide):
    """Scale by a power of two; what can go wrong comes as an option."""
    real = x.dtype.type
    top = np.abs(x).max(axis=-1, keepdims=True) if top is None else top(x)  # (N, 1)
    s = np.ldexp(real(1), np.frexp(np.maximum(top, np.sqrt(real(eps))))[1] - 1)  # (N, 1)
    y, _, rstd = rms_forward(x / s, gamma, shrink(real(eps), s))
    return y, undo(rstd, s)


def _plus_tiny(top):
    return top + 1e-38


def _without_sqrt_eps(s_of):
    """Scale by s_of(the largest |x| of each row), however small that is."""

    def mistake(x, gamma, eps):
        s = s_of(np.abs(x).max(axis=-1, keepdims=True))  # (N, 1)
        y, _, rstd = rms_forward(x / s, gamma, x.dtype.type(eps) / s / s)
        return y, rstd / s

    return mistake


def _in_float64(x, gamma, eps):
    y, _, rstd = rms_forward(x.astype(np.float64), gamma.astype(np.float64), eps)
    return y.astype(x.dtype), rstd.astype(x.dtype)


@exercise(
    "y rstd",
    lambda: dict(_range_cases()),
    {
        "nothing is scaled yet: squares overflow, and vanish.": lambda x, gamma, eps: rms_forward(
            x, gamma, x.dtype.type(eps)
        )[::2],
        "float64 holds the squares of float32, but not its own: rows of 1e200 overflow. Scale.": (
            _in_float64
        ),
        "one scale for the whole array. The small rows vanish: each row needs its own.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, top=lambda x: np.abs(x).max(keepdims=True))
        ),
        "the largest x, without the absolute value: here the largest |x| is negative.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, top=lambda x: x.max(axis=-1, keepdims=True))
        ),
        "eps is not scaled with the row: it must be divided by s squared.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, shrink=lambda eps, s: eps)
        ),
        "eps is divided by s; the mean of the squares shrinks with s squared.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, shrink=lambda eps, s: eps / s)
        ),
        "s**2 leaves the range itself, and with eps = 0 that is 0 / 0: divide by s twice.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, shrink=lambda eps, s: eps / s**2)
        ),
        "this is the rstd of x / s; that of x is smaller by s.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, undo=lambda rstd, s: rstd)
        ),
        "multiplied by s where it must be divided: a larger row has a smaller rstd.": (
            lambda x, gamma, eps: _safe(x, gamma, eps, undo=np.multiply)
        ),
        "a row of zeros is divided by zero, and for other rows much smaller than sqrt(eps) "
        "eps / s**2 overflows. Let s be no smaller than sqrt(eps).": _without_sqrt_eps(
            lambda top: top
        ),
        "for rows much smaller than sqrt(eps), eps / s**2 overflows. Let s be no smaller.": (
            _without_sqrt_eps(lambda top: np.where(top > 0, top, 1))
        ),
        "something tiny is added to s; and for rows much smaller than sqrt(eps), eps / s**2 "
        "overflows. Let s be no smaller than sqrt(eps).": _without_sqrt_eps(_plus_tiny),
    },
    rtol=3e-6,
)
def rms_forward_safe(x, gamma, eps):
    """Return y (N, D) and rstd (N, 1), also where the squares of x overflow or vanish."""
    return _safe(x, gamma, eps)


# ---- 7.6 -----------------------------------------------------------------------------------------

CACHE = 512 * 1024  # bytes, of the cache through which `_values_moved` plays the operations


def _values_moved(function):
    """Return the values per element that memory delivers of x, and that it moves at all.

    x has 2 MiB and a block 32 KiB. What is stored by plain assignment is not seen.
    """
    rng = np.random.default_rng(79)
    x, gamma = rng.standard_normal((2048, 256), np.float32), np.ones(256, np.float32)
    _, steps = trace(lambda x, gamma: function(x, gamma, 1e-5, 32), x, gamma)
    low, high = np.lib.array_utils.byte_bounds(x)
    of_x = [
        step._replace(reads=[r for r in step.reads if low <= r[0] < high], writes=[])
        for step in steps
    ]
    return [traffic(seen, CACHE) / x.nbytes for seen in ([s for s in of_x if s.reads], steps)]


def _moves_too_much(function):
    of_x, moved = _values_moved(function)
    if of_x > 1.5:
        return (
            f"The numbers are right, but x comes from memory {of_x:.0f} times. Do all that a block "
            "needs while it is in the cache."
        )
    if moved > 2.5:  # one read of x, one write of y, and something for temporaries
        return (
            f"The numbers are right, but {moved:.0f} values per element go through memory, where 2 "
            "would do: somewhere an array of the size of x is made or changed at a go."
        )


def _by_blocks(x, gamma, eps, starts, rows, one=lambda x, gamma, eps: rms_forward(x, gamma, eps)):
    y, rstd = np.full_like(x, np.nan), np.full_like(x[:, :1], np.nan)  # (N, D), (N, 1)
    for start in starts:
        block = slice(start, start + rows)
        y[block], _, rstd[block] = one(x[block], gamma, eps)
    return y, rstd


def _one_mean(x, gamma, eps):
    rstd = 1 / np.sqrt(np.mean(x * x) + eps) * np.ones_like(x[:, :1])
    return gamma * x * rstd, None, rstd


@exercise(
    "y rstd",
    lambda: {
        "11 rows in blocks of 4": (layer(81, 11, 5).x, layer(81, 11, 5).gamma, 1e-5, 4),
        "12 rows in blocks of 3": (layer(82, 12, 7).x, layer(82, 12, 7).gamma, 0.1, 3),
        "3 rows in blocks of 8": (layer(83, 3, 6).x, layer(83, 3, 6).gamma, 1e-5, 8),
    },
    {
        "the last rows are missing where the number of rows is no multiple of a block's.": (
            lambda x, gamma, eps, rows: _by_blocks(
                x, gamma, eps, range(0, len(x) - rows + 1, rows), rows
            )
        ),
        "only the first block is there.": lambda x, gamma, eps, rows: _by_blocks(
            x, gamma, eps, [0], rows
        ),
        "only one row of each block is there: a block ends at start + rows.": (
            lambda x, gamma, eps, rows: _by_blocks(x, gamma, eps, range(0, len(x), rows), 1)
        ),
        "one mean square for a whole block, where each row has its own.": (
            lambda x, gamma, eps, rows: _by_blocks(
                x, gamma, eps, range(0, len(x), rows), rows, _one_mean
            )
        ),
    },
    judge=_moves_too_much,
)
def rms_forward_blocked(x, gamma, eps, rows):
    """Return y (N, D) and rstd (N, 1), from so many rows of x at a time."""
    return _by_blocks(x, gamma, eps, range(0, len(x), rows), rows)
