"""Lesson 03: the parts of a gradient check, and data that hide a bug from it."""

import numpy as np

from ..checks import row_mean
from ..layernorm import layer_norm_forward
from .checker import exercise
from .data import layer, layers


def _pairs():
    """Return {what is special: (computed, measured, rtol)}."""
    rng = np.random.default_rng(31)
    m = rng.uniform(-1.8, 1.8, (4, 5, 6))  # (4, 5, 6)
    m[2, 1, 4] = -3.0  # the largest entry is negative
    noise = rng.uniform(-1, 1, m.shape)  # (4, 5, 6)
    high, low, zero, spoilt = m.copy(), m.copy(), m.copy(), m.copy()
    also_zero = zero * (1 + 1e-9 * noise)  # (4, 5, 6)
    high[1, 4, 2] += 6e-6
    low[1, 4, 2] -= 6e-6
    zero[0, 3, 1] = 0
    spoilt[1, 4, 2] = np.nan
    return {
        "arrays that agree to nine digits": (m * (1 + 1e-9 * noise), m, 1e-8),
        "arrays that agree to three digits, rtol = 0.01": (m * (1 + 1e-3 * noise), m, 0.01),
        "one entry that is too large": (high, m, 1e-6),
        "one entry that is too small": (low, m, 1e-6),
        "a measured entry of 0 and a computed one of 1e-12": (zero + 1e-12, zero, 1e-8),
        "a largest entry that is negative": (m + 2.4e-6 * np.sign(noise), m, 1e-6),
        "a NaN in computed": (spoilt, m, 1e-8),
        "a NaN in measured": (m, spoilt, 1e-8),
        "a NaN, with the rest 10 % too large": (1.1 * spoilt, m, 1e-8),
        "twice what it should be, rtol = 0.6": (2 * m, m, 0.6),
        "twice what it should be, rtol = 0.45": (2 * m, m, 0.45),
        "0.7 of what it should be, rtol = 0.35": (0.7 * m, m, 0.35),
        "gradients near 1e-12 that differ by half": (1.5e-12 * m, 1e-12 * m, 1e-8),
        "gradients near 1e-8 that differ by 1.2 rtol": (1.012e-8 * m, 1e-8 * m, 1e-2),
        "a NaN at the same place of both arrays": (spoilt, spoilt, 1e-8),
        "a NaN where measured is 0": (np.where(zero == 0, np.nan, also_zero), zero, 1e-8),
        "an error of nine tenths of rtol": (
            m + 9e-7 * np.abs(m).max() * np.sign(noise),
            m,
            1e-6,
        ),
        "gradients near 1e9 that agree": (1e9 * m * (1 + 1e-10 * noise), 1e9 * m, 1e-8),
    }


def _size(a):
    return np.abs(a).max()


@exercise(
    "answer",
    _pairs,
    {
        "a NaN passes: `nan > rtol` is False, so no error is found too large. Ask whether it is "
        "small enough.": lambda a, m, rtol: not _size(a - m) / _size(m) > rtol,
        "a NaN is passed over (as by nanmax, by Python's max, or where each entry is asked whether "
        "it is too large); it must fail the check.": lambda a, m, rtol: (
            np.nanmax(abs(a - m)) <= rtol * np.nanmax(abs(m))
        ),
        "a NaN counts as 0, and passes where 0 is right.": lambda a, m, rtol: (
            _size(np.nan_to_num(a) - np.nan_to_num(m)) <= rtol * _size(np.nan_to_num(m))
        ),
        "a NaN passes where both arrays have one (equal_nan).": lambda a, m, rtol: np.allclose(
            a, m, rtol=0, atol=rtol * np.nanmax(abs(m)), equal_nan=True
        ),
        "one yardstick for each row; the norm-wise error has one for all entries.": (
            lambda a, m, rtol: np.all(
                abs(a - m).max(axis=-1) <= rtol * abs(m).max(axis=-1)
            )
        ),
        "something is added to the yardstick, and small gradients that are wrong pass.": (
            lambda a, m, rtol: _size(a - m) / (_size(m) + 1e-8) <= rtol
        ),
        "element-wise: an entry that is 0 by coincidence fails a right gradient. The yardstick is "
        "the largest |measured|.": lambda a, m, rtol: np.all(abs(a - m) <= rtol * abs(m)),
        "np.allclose is element-wise, and its atol of 1e-8 lets every small gradient pass.": (
            np.allclose
        ),
        "the difference has no abs: entries that are too small pass.": (
            lambda a, m, rtol: np.max(a - m) <= rtol * _size(m)
        ),
        "the yardstick has no abs: the largest |measured| may be a negative entry.": (
            lambda a, m, rtol: _size(a - m) <= rtol * np.max(m)
        ),
        "relative to the computed gradient, which is on trial: the larger it is, the better it "
        "looks.": lambda a, m, rtol: _size(a - m) <= rtol * _size(a),
        "relative to the sum of both: a gradient that is far too large passes.": (
            lambda a, m, rtol: _size(a - m) <= rtol * (_size(a) + _size(m))
        ),
        "relative to the larger of the two; the yardstick is the measured one.": (
            lambda a, m, rtol: _size(a - m) <= rtol * max(_size(a), _size(m))
        ),
        "not divided by anything: this error is absolute, and depends on the unit of x.": (
            lambda a, m, rtol: _size(a - m) <= rtol
        ),
        "a mean, or a sum of squares: one wrong entry is diluted by the others. Take the largest.":
        lambda a, m, rtol: np.linalg.norm(a - m) <= rtol * np.linalg.norm(m),
        "rtol is not used.": lambda a, m, rtol: _size(a - m) <= 1e-8 * _size(m),
        "True where the error is large; it should be True where it is small.": (
            lambda a, m, rtol: _size(a - m) > rtol * _size(m)
        ),
    },
    rtol=0,
)  # fmt: skip
def agrees(computed, measured, rtol):
    """Return True if the norm-wise error is at most rtol, bool."""
    return bool(_size(computed - measured) <= rtol * _size(measured))


def _curved(seed, *shape, centre=0.0):
    """Return a function of an array, in which no two entries are alike and all interact, and x."""
    rng = np.random.default_rng(seed)
    w, v, x = rng.uniform(0.5, 2, (3, *shape)) * rng.choice([-1, 1], (3, *shape))

    def f(x):
        return np.sum(w * np.sin(x - centre)) + np.sum(v * (x - centre)) ** 2

    return f, centre + x


def _moving(rule, moves, stays=False, which=lambda index: index):
    """Return a gradient, entry by entry: rule(f, h, x, step, *copies of x moved by moves(h))."""

    def gradient(f, x, h=1e-30):
        d, copies = np.empty_like(x), [x + 0 * move for move in moves(h)]
        for index in np.ndindex(x.shape):
            copies = copies if stays else [x + 0 * move for move in moves(h)]
            for copy, move in zip(copies, moves(h)):
                copy[which(index)] += move
            d[index] = rule(f, h, x, (copies[0] - copies[-1])[index], *copies)
        return d

    return gradient


def _slips(method):
    """Return what goes wrong with the entries that move, whatever the method."""
    return {
        "all entries move at once: the change along one direction. Move them one at a time.": (
            method(which=lambda index: ...)
        ),
        "all of x[i] moves at once, which is one entry of a vector only. np.ndindex(x.shape) gives "
        "every entry.": method(which=lambda index: index[0]),
        "moved entries are not put back: begin each time with a fresh copy of x.": (
            method(stays=True)
        ),
    }


def _first_only(f, x, h):
    d = np.zeros_like(x)
    d.flat[0] = _differences()(f, x, h).flat[0]
    return d


def _differences(rule=lambda f, h, x, step, p, m: (f(p) - f(m)) / step, **options):
    return _moving(rule, lambda h: (h, -h), **options)


@exercise(
    "gradient",
    lambda: {
        "a vector": (*_curved(32, 7), 1e-3),
        "an array of shape (3, 4)": (*_curved(33, 3, 4), 2e-3),
        "an array of shape (2, 3, 5)": (*_curved(34, 2, 3, 5), 1e-3),
        "x near 1e8, where the step taken is not 2h": (*_curved(35, 3, 4, centre=1e8), 1e-6),
    },
    {
        "a forward difference, f(x + h) - f(x); the central one steps to both sides.": (
            _differences(lambda f, h, x, step, p, m: (f(p) - f(x)) / h)
        ),
        "a forward difference, divided by its step; the central one steps to both sides.": (
            _differences(lambda f, h, x, step, p, m: (f(p) - f(x)) / (p - x).max())
        ),
        "a backward difference, f(x) - f(x - h); the central one steps to both sides.": (
            _differences(lambda f, h, x, step, p, m: (f(x) - f(m)) / h)
        ),
        "divided by h: from x - h to x + h it is two steps.": (
            _differences(lambda f, h, x, step, p, m: (f(p) - f(m)) / h)
        ),
        "divided by 2h. Near 1e8, x + h and x - h are rounded to the grid: divide by the step that "
        "was taken.": _differences(lambda f, h, x, step, p, m: (f(p) - f(m)) / (2 * h)),
        "no step is taken: both copies are one and the same array. Make two.": (
            _differences(lambda f, h, x, step, p, m: np.nan * step)
        ),
        "only the first entry is there: is the return inside the loop?": _first_only,
        "the sum of f(x + h) and f(x - h); take the difference.": (
            _differences(lambda f, h, x, step, p, m: (f(p) + f(m)) / step)
        ),
        **_slips(_differences),
    },
)
def central_difference(f, x, h):
    """Return the gradient of f at x, shape of x, by central differences."""
    return _differences()(f, x, h)


def _probe(seed, *shape, spread=1.0, eps=1e-5, value=-60):
    """Return the probe of a LayerNorm, a function of x that may be complex, and x."""
    dy, x, gamma, beta = layer(seed, *shape)[:4]

    def f(x):
        y, _ = layer_norm_forward(x * gamma, gamma, beta, eps)  # changes if all x move alike
        return np.sum(dy * y) + value

    return f, spread * x


def _complex_step(rule=lambda f, h, x, step, moved: f(moved).imag / h, **options):
    gradient = _moving(rule, lambda h: (1j * h,), **options)
    return lambda f, x: gradient(f, x)


@exercise(
    "gradient",
    lambda: {
        "one row": _probe(36, 7),
        "an array of shape (2, 3, 5)": _probe(37, 2, 3, 5, value=60),
        "rows with a spread of 1e-12, against which h must be small too": (
            _probe(38, 2, 4, spread=1e-12, eps=1e-26)
        ),
    },
    {
        "the real part: the value of f stands there. The derivative is in the imaginary part.": (
            _complex_step(lambda f, h, x, step, moved: f(moved).real / h)
        ),
        "abs mixes the value of f into it; the derivative is in the imaginary part alone.": (
            _complex_step(lambda f, h, x, step, moved: abs(f(moved)) / h)
        ),
        "the imaginary part is h times the derivative: divide by h.": (
            _complex_step(lambda f, h, x, step, moved: f(moved).imag)
        ),
        "divided by 2h, as central differences are; here is one step, of h.": (
            _complex_step(lambda f, h, x, step, moved: f(moved).imag / (2 * h))
        ),
        "dividing by i swaps the parts: the value of f is the imaginary part now.": (
            _complex_step(lambda f, h, x, step, moved: (f(moved) / (1j * h)).imag)
        ),
        "zero everywhere. A real array drops the imaginary part of what is put into it, with a "
        "warning at most. Is it x.astype(complex) that moves, by 1j * h, and is h real where you "
        "divide?": lambda f, x: np.zeros_like(x),
        **_slips(_complex_step),
    },
    rtol=1e-13,
)
def complex_gradient(f, x):
    """Return the gradient of f at x, shape of x, by the complex step."""
    return _complex_step()(f, x)


def _along_gamma(length):
    """Return dy - gamma * length(dy, gamma), where length has shape (B, T, 1)."""
    return lambda dy, gamma: dy - gamma * length(dy, gamma)


@exercise(
    "dy",
    lambda: {k: (a.dy, a.gamma) for k, a in layers(2, 3, 5).items() if "eps" not in k},
    {
        "the mean of dy is taken away; the bug forgets mean(gamma * dy).": (
            lambda dy, g: dy - row_mean(dy)
        ),
        "mean(gamma * dy) is 0, but this dy is not the nearest: go along gamma, not 1 / gamma.": (
            lambda dy, g: dy - row_mean(g * dy) / g
        ),
        "mean(gamma * dy) is 0, but this dy is not the nearest: go along gamma, not along ones.": (
            lambda dy, g: dy - row_mean(g * dy) / g.mean()
        ),
        "one number is taken away in each row, and mean(gamma * dy) is not 0. Go along gamma.": (
            lambda dy, g: dy - row_mean(g * dy)
        ),
        "along gamma, but not as far as the plane: divide by mean(gamma**2).": (
            _along_gamma(lambda dy, g: row_mean(g * dy))
        ),
        "divided by the square of the mean, where the mean of the squares belongs.": (
            _along_gamma(lambda dy, g: row_mean(g * dy) / g.mean() ** 2)
        ),
        "a mean above and a sum below: D is left over.": (
            _along_gamma(lambda dy, g: row_mean(g * dy) / np.sum(g**2))
        ),
        "the sign: this goes away from the plane.": (
            _along_gamma(lambda dy, g: -row_mean(g * dy) / np.mean(g**2))
        ),
        "one condition for the whole array; it must hold in every row.": (
            _along_gamma(lambda dy, g: np.mean(g * dy) / np.mean(g**2))
        ),
        "this is what to take away from dy.": (lambda dy, g: g * row_mean(g * dy) / np.mean(g**2)),
        "this is g less its mean; the exercise asks for dy.": (
            lambda dy, g: g * dy - row_mean(g * dy)
        ),
        "the length of gamma is not squared: divide by the mean of gamma**2.": (
            _along_gamma(lambda dy, g: np.sum(g * dy, axis=-1, keepdims=True) / np.linalg.norm(g))
        ),
        "a sum above and a mean below: it goes D times too far.": (
            _along_gamma(lambda dy, g: np.sum(g * dy, axis=-1, keepdims=True) / np.mean(g**2))
        ),
        "divided by mean(gamma), where mean(gamma**2) belongs.": (
            _along_gamma(lambda dy, g: row_mean(g * dy) / g.mean())
        ),
        "mean(gamma * dy) is 0, but this dy is not the nearest: all of the change is in one entry "
        "of each row.": lambda dy, g: np.concatenate(
            [dy[..., :-1], -np.sum((g * dy)[..., :-1], axis=-1, keepdims=True) / g[-1]], axis=-1
        ),
        "mean(gamma * dy) is 0, but this dy is not the nearest: do not centre dy first.": (
            lambda dy, g: _along_gamma(lambda d, g: row_mean(g * d) / np.mean(g**2))(
                dy - row_mean(dy), g
            )
        ),
        "this is gamma * dy; the exercise asks for dy.": (
            lambda dy, g: g * (dy - g * row_mean(g * dy) / np.mean(g**2))
        ),
    },
)
def blind_dy(dy, gamma):
    """Return the nearest dy in whose rows mean(gamma * dy) is 0, (B, T, D)."""
    return _along_gamma(lambda dy, g: row_mean(g * dy) / np.mean(g**2))(dy, gamma)
