"""Lesson 07, section 4: a check of gradients is given right ones and wrong ones."""

import numpy as np

from ..gradcheck import gradcheck
from .checker import exercise, mistakes
from .compare import BadResult
from .edits import edited
from .lesson_07_rms import rms_backward, rms_forward


def _wrong(start):
    """Return the wrong backward pass whose diagnosis starts like that."""
    return next(wrong for words, wrong in rms_backward.mistakes if words.startswith(start))


def _last_row(change):
    """Return RMSNorm's backward pass, with change(the last row of dx) made."""

    def backward(dy, x_hat, rstd, gamma):
        dx, dgamma = rms_backward(dy, x_hat, rstd, gamma)
        dx.reshape(-1, dx.shape[-1])[-1] = change(dx.reshape(-1, dx.shape[-1])[-1])
        return dx, dgamma

    return backward


_gemma_forward = edited(rms_forward, (("gamma * x_hat", "(1 + gamma) * x_hat"),))
_gemma_backward = edited(rms_backward, (("g = gamma * dy", "g = (1 + gamma) * dy"),))
_centred_forward = edited(rms_forward, (("rstd = 1", "x = x - x.mean(-1)[..., None]; rstd = 1"),))
_from_x = edited(rms_backward, (("rstd * (g - x_hat * along)", "rstd * g - rstd * x_hat * along"),))
_dy_outside = edited(rms_backward, (("np.mean(g * x_hat", "dy * np.mean(gamma * x_hat"),))
PAIRS = {  # forward, backward
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
    "eps outside the root": (rms_forward, _wrong("it holds for")),
    "dgamma not summed": (rms_forward, _wrong("not summed")),
    "dgamma averaged over the rows": (rms_forward, _wrong("averaged")),
    "the last row of dx one percent too large": (rms_forward, _last_row(lambda row: 1.01 * row)),
    "one NaN in dx": (rms_forward, _last_row(lambda row: np.append(np.nan, row[1:]))),
}


def _asks_the_report(function):
    def prepared(forward, backward):
        verdict = function(forward, backward)
        if hasattr(verdict, "passed"):
            raise BadResult("returns a report, not True or False: its .passed says which")
        return verdict

    return prepared


@exercise("verdict", lambda: PAIRS, rtol=0, prepare=_asks_the_report)
@mistakes("""
    .passed => .passed or True  # it says True of everything. Before you trust a check, see it fail.
    .passed => .passed and False  # it says False of everything. Try it on your layer: what fails?
    return gradcheck => return not gradcheck  # True and False have changed places.
    = forward( => = rms_forward(  # it knows RMSNorm's formula. Ask the forward pass you get.
    .passed => .errors["dx"] <= 1e-8  # it does not look at dgamma: wrong ones pass.
    .passed => .errors["dgamma"] <= 1e-8  # it does not look at dx: wrong ones pass.
    rng.uniform(0.5, 2, 5) => np.ones(5)  # gamma is everywhere the same, so it may stand anywhere.
    return y + beta => return np.full(y.shape, np.mean(y + beta))
    return *backward(dy => dy = np.full(dy.shape, dy.mean()); return *backward(dy
        dy is everywhere the same, so it may stand anywhere. Draw it at random.
    ((2, 3, 5)) => ((1, 1, 5))  # it has one row: averaged is then the same as added up.
    beta).passed => beta, rtol=1e-4).passed  # eps outside the root passes: rtol is too large, or x.
    return gradcheck => errors = gradcheck
    .passed => .errors; return not any(error > 1e-8 for error in errors.values())
        a NaN passes: no comparison with NaN is true, so ask whether errors are small enough.
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
