"""The checks: they pass what is right, fail what is wrong, and say what they looked at."""

import math
import re
from functools import partial

import numpy as np
import pytest

from lnlib import (
    adjoint_check,
    directional_check,
    gradcheck,
    layer_norm_backward,
    layer_norm_forward,
)
from lnlib.bugs import BUGS, no_projection_term
from lnlib.gradcheck import _SAFETY, RTOL, _extrapolated, _Slope

LAYER = layer_norm_forward, layer_norm_backward
NAMES = "dx", "dgamma", "dbeta"
methods = pytest.mark.parametrize("method", RTOL)


def point(shape, seed=0, offset=0.0, sigma=1.0, gain=1.0, shift=1.0):
    rng = np.random.default_rng(seed)
    x = offset + sigma * rng.standard_normal(shape)
    D = shape[-1]
    return x, gain * rng.uniform(0.5, 2, D), shift * rng.standard_normal(D)


def jvp(x, gamma, beta, vx, vgamma, vbeta):
    _, (x_hat, rstd, _) = layer_norm_forward(x, gamma, beta)
    vc = vx - vx.mean(axis=-1, keepdims=True)
    v_hat = rstd * (vc - x_hat * np.mean(x_hat * vc, axis=-1, keepdims=True))
    return gamma * v_hat + vgamma * x_hat + vbeta


def changed(backward=layer_norm_backward, **changes):
    """Return a backward pass whose results are multiplied by factors, or changed by functions."""

    def wrong(dy, cache):
        gradients = dict(zip(NAMES, backward(dy, cache)))
        for name, change in changes.items():
            change = change if callable(change) else lambda d, factor=change: d * factor
            gradients[name] = change(np.array(gradients[name]))
        return list(gradients.values())

    return wrong


def around(forward, after):
    """Return a forward pass whose y is what after makes of y."""

    def changed_forward(x, gamma, beta):
        y, cache = forward(x, gamma, beta)
        return after(y, x), cache

    return changed_forward


def every_check(forward, backward, at, sample=None, **options):
    """Return the reports of every check and method."""
    ways = [partial(gradcheck, sample=sample, method=m) for m in RTOL]
    ways += [partial(directional_check, method=m) for m in RTOL]
    reports = [way(forward, backward, *at, **options) for way in ways]
    return [*reports, adjoint_check(jvp, forward, backward, *at)]


def wrong_entries(report):
    return [name for name, error in report.errors.items() if not error <= report.rtol]


# ---- Right and wrong layers ----------------------------------------------------------------------


def sums(dy, x_hat):
    rows = tuple(range(dy.ndim - 1))
    return (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)


def rms_norm(x, gamma, beta):
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    return gamma * x * rstd + beta, (x * rstd, rstd, gamma)


def rms_norm_backward(dy, cache):
    x_hat, rstd, gamma = cache
    g = gamma * dy
    return rstd * (g - x_hat * np.mean(g * x_hat, axis=-1, keepdims=True)), *sums(dy, x_hat)


def layer_norm_of(rows, back):
    """Return the LayerNorm of x seen as other rows: rows(x), and back(rows, shape of x)."""

    def forward(x, gamma, beta):
        seen = rows(x)
        x_hat, cache = layer_norm_forward(seen, np.ones(seen.shape[-1]), np.zeros(seen.shape[-1]))
        return gamma * back(x_hat, x.shape) + beta, (cache, gamma)

    def backward(dy, cache):
        cache, gamma = cache
        dx, _, _ = layer_norm_backward(rows(gamma * dy), cache)
        return back(dx, dy.shape), *sums(dy, back(cache.x_hat, dy.shape))

    return forward, backward


def by_groups(x):
    """Return x (..., T, C) as rows of T * C / 2 numbers, two of them for each sample."""
    halves = x.reshape(*x.shape[:-1], 2, -1)  # (..., T, 2, C / 2)
    return np.moveaxis(halves, -2, -3).reshape(*x.shape[:-2], 2, -1)


def by_tokens(rows, shape):
    halves = rows.reshape(*shape[:-2], 2, shape[-2], -1)  # (..., 2, T, C / 2)
    return np.moveaxis(halves, -3, -2).reshape(shape)


def pointwise(f, slope=None):
    """Return the layer gamma * f(x) + beta, forward and backward; f is analytic without a slope."""
    slope = slope or (lambda x: f(x + 1e-30j).imag / 1e-30)

    def forward(x, gamma, beta):
        return gamma * f(x) + beta, (x, gamma)

    return forward, lambda dy, c: (c[1] * dy * slope(c[0]), *sums(dy, f(c[0])))


def softmax(x, gamma, beta):
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    return gamma * p + beta, (p, gamma)


def softmax_backward(dy, cache):
    p, gamma = cache
    g = gamma * dy
    return p * (g - np.sum(g * p, axis=-1, keepdims=True)), *sums(dy, p)


def bump(x, gamma, beta):
    """LayerNorm, then what bends sharply in gamma and beta, too."""
    t, cache = layer_norm_forward(x, gamma, beta)
    return t + np.exp(-25 * t * t), (t, cache)


def bump_backward(dy, cache):
    t, cache = cache
    return layer_norm_backward(dy * (1 - 50 * t * np.exp(-25 * t * t)), cache)


erf = np.vectorize(math.erf, otypes=[float])
FAR = {  # right at any offset
    "LayerNorm": LAYER,
    "RMSNorm": (rms_norm, rms_norm_backward),
    "GroupNorm": layer_norm_of(by_groups, by_tokens),
    "gain and shift": pointwise(lambda x: x, np.ones_like),
}
LAYERS = FAR | {
    "BatchNorm": layer_norm_of(
        lambda x: x.reshape(-1, x.shape[-1]).T, lambda rows, shape: rows.T.reshape(shape)
    ),
    "softmax": (softmax, softmax_backward),
    "bump after LayerNorm": (bump, bump_backward),
    "SiLU": pointwise(lambda x: x / (1 + np.exp(-x))),
    "GELU": pointwise(
        lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
        lambda x: (1 + erf(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    ),
    "GELU by tanh": pointwise(lambda x: x * (1 + np.tanh(0.8 * x + 0.036 * x**3)) / 2),
    "softplus": pointwise(lambda x: np.log(1 + np.exp(x))),
    "tanh": pointwise(np.tanh),
    "exp": pointwise(np.exp),
    "cube": pointwise(lambda x: x**3),
    "sin 30x": pointwise(lambda x: np.sin(30 * x)),
    "ReLU": pointwise(lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
}
DATA = {"N": {}, "10 N": {"sigma": 10}}
FAR_DATA = {"offset": {"offset": 1e5}, "channels": {"offset": 1e4 * np.arange(8)}}
CASES = [(layer, data, "central") for layer in LAYERS for data in DATA]
CASES += [(layer, data, m) for layer in FAR for data in FAR_DATA for m in RTOL]
CASES += [(layer, "N", "complex") for layer in [*FAR, "BatchNorm", "softmax", "exp"]]


@pytest.mark.parametrize("layer, data, method", CASES)
def test_any_layer_right_or_wrong(layer, data, method):
    (forward, backward), calls = LAYERS[layer], []
    counted = around(forward, lambda y, x: calls.append(1) or y)
    at = point((2, 2, 8), **(DATA | FAR_DATA)[data])
    report = gradcheck(counted, backward, *at, method=method)
    assert report.passed and len(calls) < 20 * 48, report
    assert directional_check(forward, backward, *at, method=method).passed
    for names, relative in (["dx"], 1e-4), ([*NAMES], 1e-5):
        wrong = changed(backward, **dict.fromkeys(names, 1 + relative))
        report = gradcheck(forward, wrong, *at, method=method, sample=6)
        assert report.verdict == "FAILED" and wrong_entries(report) == names, report
        for name in names:
            assert relative / 30 < report.errors[name] < 3 * relative  # the scale is the gradient's


@pytest.mark.parametrize("seed", range(12, 28))
def test_reference_on_random_shapes(seed):
    rng = np.random.default_rng(seed)
    D = int(rng.integers(1, 5)) if seed % 4 == 0 else int(rng.integers(1, 301))
    shape = tuple(rng.integers(1, 4, seed % 4)) + (D,)
    at = point(shape, seed, offset=rng.choice([0, 1, -30, 1e3]), sigma=rng.choice([0.1, 1, 10]))
    for report in every_check(*LAYER, at, sample=8, seed=seed):
        assert report.passed, report
    for method, tolerance in (("complex", 1e-14), ("central", 1e-8)):
        assert gradcheck(*LAYER, *at, method=method, sample=1).rtol == tolerance


def outlier():
    x, gamma, beta = point((7, 8))
    x[0, 0] = 1e4
    return x, gamma, beta


POINTS = {  # where LayerNorm is hard to check
    "mean 1e8, spread 1": point((3, 12), offset=1e8),
    "mean 1e8, spread 1e-3": point((3, 12), offset=1e8, sigma=1e-3),
    "mean 1e8, spread 1e-6": point((3, 12), offset=1e8, sigma=1e-6),
    "steps of one float": point((2, 12), offset=1e11),
    "gain 1e4": point((2, 20), gain=1e4),
    "tiny rows": point((2, 20), sigma=1e-6),
    "huge rows": point((2, 20), sigma=1e160),
    "shift 1e4": point((2, 20), shift=1e4),
    "shift is a hundred gains": point((3, 12), gain=1e-4, shift=1e-2),
    "large shift and gain": point((3, 12), gain=1e4, shift=1e6),
    "hardly any spread": point((3, 8), sigma=1e-12),
    "no spread": point((3, 8), sigma=1e-14),
    "rows of many lengths": point((7, 8), sigma=np.logspace(-3, 3.5, 7)[:, None]),
    "outlier": outlier(),
}


@methods
@pytest.mark.parametrize("name", POINTS)
def test_layer_norm_where_it_is_hard(name, method):
    at = POINTS[name]
    report = gradcheck(*LAYER, *at, method=method, sample=16)
    assert report.passed, report
    assert directional_check(*LAYER, *at, method=method).verdict != "FAILED"
    for k in NAMES:
        wrong = changed(**{k: 1 + 1e-5})
        assert not gradcheck(layer_norm_forward, wrong, *at, method=method, sample=6).passed, k


@pytest.mark.parametrize("offset, sigma", [(1e8, 1e-3), (1e11, 1)])
def test_slopes_are_divided_by_the_steps_taken(offset, sigma):
    """Far out floats lie apart, and a step that is taken is not the one that was wanted."""
    at = point((2, 8), offset=offset, sigma=sigma)
    assert gradcheck(LAYER[0], changed(dx=2), *at, sample=8).verdict == "FAILED"


@methods
def test_constant_rows(method):
    _, gamma, beta = point((6,))
    for x in np.full((2, 6), 7.0), np.zeros((2, 6)):
        assert gradcheck(*LAYER, x, gamma, beta, method=method).passed
        with np.errstate(divide="ignore", invalid="ignore"):
            assert not gradcheck(LAYER[0], changed(dx=7), x, gamma, beta, method=method).passed


def test_rows_that_do_not_move_add_no_rounding():
    assert gradcheck(*LAYER, *point((100, 100), shift=30), sample=20).passed


def test_channels_of_many_lengths():
    forward, backward = LAYERS["BatchNorm"]
    at = point((7, 8), sigma=np.logspace(-3, 5, 8))
    assert gradcheck(forward, backward, *at).passed
    assert directional_check(forward, backward, *at).verdict != "FAILED"
    for name in NAMES:
        assert not gradcheck(forward, changed(backward, **{name: 1 + 1e-5}), *at).passed


@methods
@pytest.mark.parametrize("offset", [0, 10, 1e5])
def test_two_features_where_dx_is_a_remainder(offset, method):
    """LayerNorm's dx is some 1e-5 of what cancelled: the scale is that."""
    for seed in range(3):
        x, gamma, beta = point((3, 2), seed, offset=offset)
        assert gradcheck(*LAYER, x, gamma, beta, method=method).passed
        assert gradcheck(*LAYER, 1e-9 * x, gamma, beta, method=method).passed
        wrong = changed(dx=lambda d, x=x: d + 1e-3 / np.ptp(x, axis=-1, keepdims=True))
        assert not gradcheck(layer_norm_forward, wrong, x, gamma, beta, method=method).passed


@pytest.mark.parametrize("offset", [1e4, 1e7])
def test_a_layer_that_looks_linear_from_afar(offset):
    forward = around(layer_norm_forward, lambda y, x: x + y)

    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dy + dx, dgamma, dbeta

    at = point((2, 5), offset=offset)
    assert gradcheck(forward, backward, *at).passed
    assert not gradcheck(forward, lambda dy, c: (dy, *backward(dy, c)[1:]), *at).passed


def test_group_norm_that_centres_once_has_ten_digits():
    def forward(x, gamma, beta):
        rows = by_groups(x)
        xc = rows - rows.mean(axis=-1, keepdims=True)
        std = np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True) + 1e-5)
        return gamma * by_tokens(xc / std, x.shape) + beta, right(x, gamma, beta)[1]

    right, backward = LAYERS["GroupNorm"]
    check = partial(gradcheck, method="complex", rtol=1e-10)
    at = point((3, 8), offset=np.repeat([-1e4, 1e4], 4))
    assert check(forward, backward, *at).passed
    assert not check(forward, changed(backward, dx=1 + 1e-5), *at).passed


# ---- Mistakes ------------------------------------------------------------------------------------


def in_place(factor):
    def backward(dy, cache):
        dy *= factor
        return layer_norm_backward(dy, cache)

    return backward


def last_row(dx):
    dx[-1] *= 1 + 1e-6
    return dx


BIASED = point((2, 2, 4), offset=5, sigma=3)
ONE_LARGE_GRADIENT = point((20, 4), sigma=np.where(np.arange(20) < 19, 1e-3, 1)[:, None])
MISTAKES = {bug.name: (bug.backward, BIASED) for bug in BUGS}
MISTAKES |= {name: (changed(**{name: 1 + 1e-6}), BIASED) for name in NAMES}
MISTAKES |= {f"dy times {k}": (in_place(k), BIASED) for k in (0, 2)}  # it cannot hide
MISTAKES |= {"in one row": (changed(dx=last_row), ONE_LARGE_GRADIENT)}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_seen_by_every_check(name):
    backward, at = MISTAKES[name]
    reports = every_check(layer_norm_forward, backward, at)
    assert not any(report.passed for report in reports)
    for report in reports[:2]:
        assert report.verdict == "FAILED"
        if name in NAMES:
            assert wrong_entries(report) == [name] and 1e-8 < report.errors[name] < 1e-5
    for shape in ((6,), (4, 5), (2, 1, 3, 7)) if at is BIASED else ():  # it runs on other shapes
        gradients = backward(np.ones(shape), layer_norm_forward(*point(shape))[1])
        assert all(np.isfinite(d).all() for d in gradients)


def last_entry(value):
    def change(d):
        d.flat[-1] = value
        return d

    return change


SHAPE = r"shape \(.*\) and dtype float64, expected \(.*\) and real numbers"
UNUSABLE = {
    "nan": (last_entry(np.nan), "values that are not finite"),
    "inf": (last_entry(np.inf), "values that are not finite"),
    "shape": (lambda d: d[None], SHAPE),
    "transposed": (lambda d: np.resize(d, (5, 2)), SHAPE),
    "none": (lambda d: None, ".* dtype object"),
    "text": (lambda d: "text", ".* dtype <U4"),
    "nones": (lambda d: [[None] * 5] * 2, ".* dtype object"),
}


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("case", UNUSABLE)
def test_gradients_that_cannot_be_compared_fail(case, k):
    change, message = UNUSABLE[case]
    backward, at = changed(**{NAMES[k]: change}), point((2, 5))
    reports = every_check(layer_norm_forward, backward, at, rtol=np.inf)
    reports.append(gradcheck(layer_norm_forward, backward, *at, sample=1))
    for report in reports:
        assert report.verdict == "FAILED" and not report.passed
        assert re.search(f"{NAMES[k]} has {message}", str(report))
    assert wrong_entries(report) == [NAMES[k]] and np.isnan(report.errors[NAMES[k]])
    assert report.checked[NAMES[k]] == (0, at[k].size)
    assert reports[2].checked == {"directional": (0, 20)}


def test_gradient_that_should_be_zero():
    x, _, beta = point((2, 5))
    check = partial(gradcheck, x=x, gamma=np.zeros(5), beta=beta, method="complex")
    assert check(*LAYER).passed
    report = check(layer_norm_forward, changed(dx=lambda d: d + 1e-9))
    assert report.errors["dx"] == np.inf and report.verdict == "FAILED"


def test_rounding_where_the_derivative_is_zero():
    """Every entry of dx may be off by what rounding leaves of the largest one."""
    forward, backward = LAYERS["gain and shift"]
    x, gamma, beta = point((2, 8))
    gamma[0] = 0
    for noise, passed in ((1e-16, True), (1e-12, False)):
        noisy = changed(backward, dx=lambda d, noise=noise: d + noise * np.abs(d).max())
        report = gradcheck(forward, noisy, x, gamma, beta, method="complex")
        assert report.passed == passed, report


def test_what_forward_does_to_its_arrays_spoils_no_check():
    def writes_into_its_arguments(x, gamma, beta):
        result = layer_norm_forward(x, gamma, beta)
        for array in (x, gamma, beta):
            array[...] = 0
        return result

    buffer = np.empty((3, 8))

    def writes_every_y_into_one_array(y, x):
        if y.dtype == buffer.dtype:
            buffer[...], y = y, buffer
        return y

    at = point((3, 8), offset=3)
    copies = [a.copy() for a in at]
    for forward in (
        writes_into_its_arguments, around(layer_norm_forward, writes_every_y_into_one_array)
    ):  # fmt: skip
        assert all(report.passed for report in every_check(forward, layer_norm_backward, at))
        none = changed(dx=0, dgamma=0, dbeta=0)
        assert not any(report.passed for report in every_check(forward, none, at))
        assert all(map(np.array_equal, at, copies))


# ---- What cannot be judged -----------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0, 1e-14, 1e-10, 1e-8, 1e-6])
def test_digits_that_y_does_not_have_are_not_claimed(noise):
    """y is off by more than its dtype explains: that shows in how the slopes differ."""
    right, judged = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        z = rng.uniform(-1, 1)

        def measure(h, z=z, rng=rng):
            up, down = (np.exp(np.sin(3 * z + 3 * s)) + noise * rng.normal() for s in (h, -h))
            slope = (up - down) / (2 * h) - 3 * np.cos(3 * z) * np.exp(np.sin(3 * z))
            return _Slope(slope, 2.0**-52 * 3 / h, abs(up - down) / (2 * h), h)

        found = _extrapolated(measure, 5.0)
        judged += _SAFETY * found.error <= 1e-5 * found.size
        right += abs(found.value) <= _SAFETY * found.error + 1e-8 * found.size
    assert right >= (60 if noise < 1e-12 else 58)
    assert judged == 60 if noise <= 1e-14 else judged > 50 if noise <= 1e-10 else judged < 40


def test_entries_that_cannot_be_judged():
    """LayerNorm with D = 2 and a spread of 3000 has a dx of 1e-12: no difference shows it."""
    at = point((3, 2), sigma=3e3)
    for backward in (layer_norm_backward, changed(dx=1 + 1e-6)):
        report = gradcheck(layer_norm_forward, backward, *at)
        assert not report.passed and "cannot judge" in str(report).splitlines()[0]
        assert "of 6 entries whose numerical derivative is known to" in report.unjudged["dx"]
        assert set(report.unjudged) == {"dx"}
    report = gradcheck(layer_norm_forward, changed(dx=1 + 1e-6, dbeta=2), *at)
    assert "FAILED" in str(report) and "cannot be" not in str(report)  # what is wrong comes first
    for check in gradcheck, directional_check:
        assert check(*LAYER, *point((2, 5), offset=1e15)).verdict == "cannot judge"
        assert not check(LAYER[0], changed(dx=2), *point((2, 20), offset=1e12)).passed


@pytest.mark.parametrize("low", [0, 0.5, 0.99, -1])  # -1: the kink of |x|, whose mean is 0
def test_kink_at_x_is_not_judged(low):
    """Differences of every step agree there: on the mean of both slopes."""
    x, gamma, beta = point((2, 2, 4), seed=1)
    x[0, 0, 0] = 0
    layer = pointwise(lambda x: np.where(x > 0, 1, low) * x, lambda x: np.where(x > 0, 1, low))
    report = gradcheck(*layer, x, gamma, beta)
    assert report.verdict == "cannot judge" and "dx has 1 of 16" in str(report)
    assert report.checked["dx"] == (15, 16)
    mean = pointwise(
        lambda x: np.where(x > 0, 1, low) * x,
        lambda x: np.where(x > 0, 1, np.where(x < 0, low, (1 + low) / 2)),
    )
    assert not gradcheck(*mean, x, gamma, beta).passed
    assert gradcheck(*layer, x[1:], gamma, beta).passed
    x[0, 0, 0] = 1e-18  # beside the kink, which only smaller steps do not see
    assert gradcheck(*layer, x, gamma, 0 * beta).passed


def test_y_that_no_step_moves():
    """Of x**3 near 1e-8 nothing arrives beside beta; of beta nothing beside x**4 near 1e24."""
    for (power, sigma, offset), name in {(3, 1e-8, 0): "dgamma", (4, 1, 1e6): "dbeta"}.items():
        layer = pointwise(lambda x, n=power: x**n, lambda x, n=power: n * x ** (n - 1))
        report = gradcheck(*layer, *point((3, 4), sigma=sigma, offset=offset))
        assert report.verdict == "cannot judge" and name in report.unjudged, report
    constant = pointwise(np.ones_like, np.zeros_like)
    wrong = changed(constant[1], dx=lambda d: d + 1e-3)
    assert gradcheck(*constant, *point((3, 4))).passed
    assert gradcheck(constant[0], wrong, *point((3, 4))).verdict == "FAILED"


@pytest.mark.parametrize("width", [1e-2, 3e-3, 1e-3, 1e-4])
def test_a_bump_that_large_steps_pass_over(width):
    """Two large steps agree to the last digit there, on a slope that is not the one at x."""
    layer = pointwise(lambda x: x + np.exp(-((x / width) ** 2)))
    x, gamma, beta = point((2, 2, 4), sigma=1e-8)
    at = x, gamma * [1, -1, 1, -1], beta
    assert gradcheck(*layer, *at).passed
    assert gradcheck(layer[0], changed(layer[1], dx=1 + 1e-6), *at).verdict == "FAILED"


def test_forward_that_is_not_finite():
    x, gamma, beta = point((2, 5))
    nearby = around(layer_norm_forward, lambda y, z: y if np.array_equal(z, x) else y * np.nan)
    spoiled = np.where(np.arange(5) == 2, np.nan, x)
    for check in gradcheck, partial(gradcheck, sample=1), directional_check:
        assert not check(nearby, layer_norm_backward, x, gamma, beta).passed
        assert not check(*LAYER, spoiled, gamma, beta).passed


@pytest.mark.parametrize("dtype, loose", [(np.float32, 1e-2), (np.float16, 1)])
@pytest.mark.parametrize("back", [False, True])
def test_y_in_few_digits_is_named(dtype, loose, back):
    """Also if y is then stored as float64."""
    forward, at = around(layer_norm_forward, lambda y, x: y.astype(dtype)), point((2, 5))
    forward = around(forward, lambda y, x: y.astype(float)) if back else forward
    report = gradcheck(forward, layer_norm_backward, *at)
    assert report.verdict == "cannot judge"
    assert f"forward has y in {np.dtype(dtype)} for float64 input" in str(report)
    assert gradcheck(forward, layer_norm_backward, *at, rtol=loose).passed
    assert not gradcheck(forward, changed(dx=3), *at, rtol=loose).passed


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_two_numbers_pass_along_a_direction(seed):
    """Their dx nearly cancels: a rounding error that is small beside the terms is not beside it."""
    at = point((2, 3, 2), seed=seed, offset=5, sigma=3)
    assert directional_check(*LAYER, *at, method="complex", seed=seed).passed


def _with_var(x, gamma, beta):
    rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    mean = x.mean(axis=-1, keepdims=True)
    return gamma * (x - mean) * rstd + beta, layer_norm_forward(x, gamma, beta)[1]


def _forget_gamma(dy, cache):
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    return dx, 0 * dgamma, dbeta


@pytest.mark.parametrize(
    "layer",
    [
        (_with_var, layer_norm_backward),
        (_with_var, no_projection_term),
        pointwise(np.abs, np.sign),
        (lambda x, gamma, beta: layer_norm_forward(x, np.abs(gamma), beta), _forget_gamma),
    ],
    ids=["np.var", "np.var in both", "abs", "abs of gamma"],
)
def test_forward_that_is_not_analytic_is_named(layer):
    """Differences do not trust a forward pass, but the complex step would believe it."""
    for check in gradcheck, directional_check:
        report = check(*layer, *point((2, 8)), method="complex")
        assert report.verdict == "cannot judge"
        assert "forward has no complex derivative: " in str(report)
        assert "np.var, abs and max" in report.unjudged["forward"]


def test_forward_that_is_not_analytic_is_named_where_squares_overflow():
    def forward(x, gamma, beta):
        return layer_norm_forward(x, np.abs(gamma), beta)

    at = point((2, 8), sigma=1e160)
    assert directional_check(forward, _forget_gamma, *at, method="complex").verdict == (
        "cannot judge"
    )


def test_forward_that_is_not_analytic_is_named_at_any_size():
    """In long rows little is missing: the projection term is one part in the root of D."""
    for shape in (2, 64, 512), (1, 65536):
        at = point(shape, offset=5, sigma=3)
        report = directional_check(_with_var, no_projection_term, *at, method="complex")
        assert report.verdict == "cannot judge"
        assert directional_check(*LAYER, *at, method="complex").passed


def test_what_is_not_recognised():
    """Right backward passes that fail: a ripple, float32 inside, and a kink just beside y."""

    def followed_by(f):  # f(y) is the value and the slope
        def forward(x, gamma, beta):
            y, cache = layer_norm_forward(x, gamma, beta)
            value, slope = f(y)
            return value, (slope, cache)

        return forward, lambda dy, cache: layer_norm_backward(dy * cache[0], cache[1])

    def x_hat_in_float32(x, gamma, beta):
        _, cache = layer_norm_forward(x, gamma, beta)
        return gamma * cache.x_hat.astype(np.float32) + beta, cache

    x, gamma, beta = point((2, 3, 8), seed=3, offset=5, sigma=3)
    x = x[:1]
    rippled = followed_by(lambda y: (y + np.sin(1e8 * y) / 1e9, 1 + np.cos(1e8 * y) / 10))
    for layer in rippled, (x_hat_in_float32, layer_norm_backward):
        assert gradcheck(*layer, x, gamma, beta).verdict == "FAILED"
    relu = followed_by(lambda y: (y * (y > 0), y > 0))
    beta[0] = -gamma[0] * layer_norm_forward(x, gamma, beta)[1].x_hat[0, 0, 0]  # the first y is 0
    assert gradcheck(*relu, x, gamma, beta).verdict == "cannot judge"
    assert gradcheck(*relu, x, gamma, beta + 1e-6).verdict == "FAILED"  # most seeds pass


# ---- Arguments and reports -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_forward_that_draws_at_random_is_named(seed):
    """Dropout: by chance its differences agreed well enough to blame a right backward pass."""
    rng = np.random.default_rng(seed)

    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        kept = rng.random(y.shape) < 0.9
        return y * kept, (kept, cache)

    def backward(dy, cache):
        return layer_norm_backward(dy * cache[0], cache[1])

    for report in every_check(forward, backward, point((3, 40), offset=5, sigma=3, seed=seed)):
        assert report.verdict == "cannot judge", report
        assert "two calls" in report.unjudged["forward"]


def test_sample_is_counted_and_repeatable():
    report = gradcheck(*LAYER, *point((2, 32, 64)), sample=np.int64(20))
    assert report.passed
    assert report.checked == {"dx": (20, 4096), "dgamma": (20, 64), "dbeta": (20, 64)}
    assert "20 of 4096 entries" in str(report)
    small = point((3, 4))
    assert gradcheck(*LAYER, *small, sample=100).checked["dx"] == (12, 12)
    seen = [gradcheck(*LAYER, *small, sample=3, seed=s).errors for s in (0, 0, 1)]
    assert seen[0] == seen[1] != seen[2]


@methods
def test_lists_and_float32_are_taken_as_float64(method):
    at = [a.astype(np.float32) for a in point((2, 5))]
    assert gradcheck(*LAYER, *at, method=method).passed
    assert gradcheck(*LAYER, [[1, 2, 4]], [1, 2, 3], [0, 0, 1], method=method).passed


def test_fixed_h_and_rtol():
    at = point((2, 5))
    errors = [gradcheck(*LAYER, *at, h=h).errors["dx"] for h in (1e-2, 1e-3)]
    assert 50 < errors[0] / errors[1] < 200  # truncation falls with the square of h
    assert not gradcheck(*LAYER, *at, h=1e-2).passed
    assert gradcheck(*LAYER, *at, h=1e-2, rtol=1e-2).passed


def test_dy_is_not_the_stream_of_the_callers_generator():
    """Else x from default_rng(0) and seed=0 would give dy = x, the aligned data of lesson 03."""
    seen = []

    def backward(dy, cache):
        seen.append(dy)
        return layer_norm_backward(dy, cache)

    x = np.random.default_rng(0).standard_normal((3, 4096))
    assert gradcheck(
        layer_norm_forward, backward, x, np.ones(4096), np.zeros(4096), sample=4
    ).passed
    assert abs(np.corrcoef(seen[0].ravel(), x.ravel())[0, 1]) < 0.1


def test_directional_complex_step():
    at = point((3, 40), offset=1e8)
    check = partial(directional_check, layer_norm_forward, method="complex")
    report = check(layer_norm_backward, *at)
    assert report.passed and report.errors["directional"] < 1e-14
    assert "directional complex step, tolerance 1e-12: passed" in str(report)
    assert not check(changed(dgamma=1 + 1e-9), *at).passed


BAD = {
    "method": ({"method": "forward"}, ValueError, "method must be"),
    "rtol zero": ({"rtol": 0}, ValueError, "rtol must be positive, got 0"),
    "x complex": ({"x": np.ones((2, 5)) * 1j}, TypeError, "x must be real"),
    "gamma text": ({"gamma": ["a"] * 5}, TypeError, "gamma must be real"),
    "x scalar": ({"x": 1.0}, ValueError, "must be \\(..., D\\)"),
    "beta length": ({"beta": np.ones(4)}, ValueError, "must be \\(..., D\\)"),
    "beta matrix": ({"beta": np.ones((1, 5))}, ValueError, "must be \\(..., D\\)"),
    "x empty": ({"x": np.ones((0, 5))}, ValueError, "not empty"),
}
BAD |= {f"h {h}": ({"h": h}, ValueError, "h must be positive") for h in (0.0, -1e-5, np.nan)}
BAD |= {
    f"sample {n}": ({"sample": n}, ValueError, "sample must be a positive integer")
    for n in (0, 2.5, True)
}
BAD |= {
    f"backward returns {got!r:.9}": ({"backward": lambda dy, c, got=got: got}, ValueError,
                                     "backward must return dx, dgamma, dbeta, got " + what)
    for got, what in (([np.ones(5)] * 2, r"\[array"), (None, "None"), (np.ones(3), "array"))
}  # fmt: skip
BAD |= {
    "y's shape": ({"forward": around(layer_norm_forward, lambda y, x: y[:1])}, ValueError,
                  r"y in the shape of x, \(2, 5\), got \(1, 5\)"),
    "y real": ({"forward": around(layer_norm_forward, lambda y, x: y.real), "method": "complex"},
               TypeError, "forward must carry complex input"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    change, error, message = BAD[case]
    x, gamma, beta = point((2, 5))
    good = dict(forward=LAYER[0], backward=LAYER[1], x=x, gamma=gamma, beta=beta)
    for check in (
        (gradcheck, directional_check) if {"h", "sample"}.isdisjoint(change) else (gradcheck,)
    ):
        with pytest.raises(error, match=message):
            check(**(good | change))


def test_jvp_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"jvp must return the shape of y, \(2, 5\), got \(5,\)"):
        adjoint_check(lambda *a: a[1], *LAYER, *point((2, 5)))
