"""The checks: they pass what is right, fail what is wrong, and say what they looked at."""

import math
import sys

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


def point(shape, seed=0, offset=0.0, sigma=1.0):
    rng = np.random.default_rng(seed)
    D = shape[-1]
    x = offset + sigma * rng.standard_normal(shape)
    return x, rng.uniform(0.5, 2, D), rng.standard_normal(D)


def jvp(x, gamma, beta, vx, vgamma, vbeta):
    _, (x_hat, rstd, _) = layer_norm_forward(x, gamma, beta)
    vc = vx - vx.mean(axis=-1, keepdims=True)
    v_hat = rstd * (vc - x_hat * np.mean(x_hat * vc, axis=-1, keepdims=True))
    return gamma * v_hat + vgamma * x_hat + vbeta


def changed(**factors):
    """Return a backward pass whose results are multiplied by the factors."""

    def backward(dy, cache):
        gradients = dict(zip(("dx", "dgamma", "dbeta"), layer_norm_backward(dy, cache)))
        return [gradients[name] * factors.get(name, 1) for name in gradients]

    return backward


@pytest.mark.parametrize("seed", range(28))
def test_reference_on_random_shapes(seed):
    rng = np.random.default_rng(seed)
    D = int(rng.integers(1, 5)) if seed % 4 == 0 else int(rng.integers(1, 301))
    shape = tuple(rng.integers(1, 4, seed % 4)) + (D,)
    at = point(shape, seed, offset=rng.choice([0, 1, -30, 1e3]), sigma=rng.choice([0.1, 1, 10]))
    for method, tolerance in (("complex", 1e-14), ("central", 1e-8)):
        report = gradcheck(*LAYER, *at, method=method, sample=8, seed=seed)
        assert report.rtol == tolerance
        assert report.passed, report
        assert directional_check(*LAYER, *at, method=method, seed=seed).passed
    assert adjoint_check(jvp, *LAYER, *at, seed=seed).passed


@pytest.mark.parametrize("method", RTOL)
@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 1.0])
def test_mean_1e8_passes_the_same_tolerance(method, sigma):
    at = point((3, 40), offset=1e8, sigma=sigma)
    assert gradcheck(*LAYER, *at, method=method, sample=30).passed
    assert directional_check(*LAYER, *at).passed


@pytest.mark.parametrize("method", RTOL)
def test_constant_rows_pass(method):
    _, gamma, beta = point((6,))
    assert gradcheck(*LAYER, np.full((2, 6), 7.0), gamma, beta, method=method).passed
    assert gradcheck(*LAYER, np.zeros((2, 6)), gamma, beta, method=method).passed


@pytest.mark.parametrize("eps", [1e-12, 1e-2])
def test_other_eps(eps):
    def forward(x, gamma, beta):
        return layer_norm_forward(x, gamma, beta, eps)

    at = point((2, 7), sigma=1e-4)
    assert gradcheck(forward, layer_norm_backward, *at).passed
    assert directional_check(forward, layer_norm_backward, *at).passed


@pytest.mark.parametrize("name", ["dx", "dgamma", "dbeta"])
@pytest.mark.parametrize("method", RTOL)
def test_small_mistakes_are_caught_where_they_are(name, method):
    report = gradcheck(*LAYER[:1], changed(**{name: 1 + 1e-6}), *point((2, 3, 5)), method=method)
    assert not report.passed
    assert [n for n, e in report.errors.items() if e > report.rtol] == [name]
    assert 1e-8 < report.errors[name] < 1e-5
    assert not directional_check(*LAYER[:1], changed(**{name: 1 + 1e-6}), *point((2, 3, 5))).passed


def test_mistake_in_one_row_is_seen_by_every_full_check():
    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        dx[-1] *= 1 + 1e-6
        return dx, dgamma, dbeta

    at = point((50, 4))
    at[0][:-1] *= 1e-3  # all other rows have much larger gradients
    assert not gradcheck(layer_norm_forward, backward, *at).passed
    assert not directional_check(layer_norm_forward, backward, *at).passed
    assert not adjoint_check(jvp, layer_norm_forward, backward, *at).passed


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_is_caught(bug):
    at = point((2, 3, 8), offset=5, sigma=3)
    for method in RTOL:
        assert not gradcheck(layer_norm_forward, bug.backward, *at, method=method).passed
    assert not directional_check(layer_norm_forward, bug.backward, *at).passed
    assert not adjoint_check(jvp, layer_norm_forward, bug.backward, *at).passed
    for shape in ((6,), (4, 5), (2, 1, 3, 7)):  # and each runs on other shapes
        x, gamma, beta = point(shape)
        gradients = bug.backward(np.ones(shape), layer_norm_forward(x, gamma, beta)[1])
        assert all(np.isfinite(d).all() for d in gradients)


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sample", [None, 1])
def test_nan_and_inf_anywhere_fail(where, value, sample):
    def backward(dy, cache):
        gradients = layer_norm_backward(dy, cache)
        gradients[where].flat[-1] = value
        return gradients

    at = point((6, 5))
    for report in (
        gradcheck(layer_norm_forward, backward, *at, sample=sample),
        gradcheck(layer_norm_forward, backward, *at, sample=sample, method="complex"),
        directional_check(layer_norm_forward, backward, *at),
        adjoint_check(jvp, layer_norm_forward, backward, *at),
    ):
        assert not report.passed
        assert "FAILED" in str(report)


def test_nan_in_the_input_fails():
    x, gamma, beta = point((3, 5))
    x[1, 2] = np.nan
    assert not gradcheck(*LAYER, x, gamma, beta).passed
    assert not gradcheck(*LAYER, x, gamma, beta, sample=1).passed
    assert not directional_check(*LAYER, x, gamma, beta).passed


def test_sample_is_counted_and_repeatable():
    at = point((2, 32, 64))
    report = gradcheck(*LAYER, *at, sample=20)
    assert report.passed
    assert report.checked == {"dx": (20, 4096), "dgamma": (20, 64), "dbeta": (20, 64)}
    assert "20 of 4096 entries" in str(report)
    small = point((3, 4))
    assert gradcheck(*LAYER, *small, sample=100).checked["dx"] == (12, 12)
    seen = [gradcheck(*LAYER, *small, sample=3, seed=s).errors for s in (0, 0, 1)]
    assert seen[0] == seen[1] != seen[2]


def test_wrong_shapes_are_reported_in_words():
    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx, dgamma[None], dbeta

    report = gradcheck(layer_norm_forward, backward, *point((2, 5)))
    assert not report.passed and np.isnan(report.errors["dgamma"])
    assert "dgamma has shape (1, 5) and dtype float64, expected (5,) and" in str(report)
    report = directional_check(layer_norm_forward, backward, *point((2, 5)))
    assert "dgamma has shape (1, 5) and dtype float64, expected (5,) and" in str(report)


def test_forward_that_drops_the_imaginary_part():
    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        return y.real, cache

    with pytest.raises(TypeError, match="complex"):
        gradcheck(forward, layer_norm_backward, *point((2, 5)), method="complex")


def test_inputs_stay_and_float32_is_taken_as_float64():
    at = [a.astype(np.float32) for a in point((2, 5))]
    copies = [a.copy() for a in at]
    assert gradcheck(*LAYER, *at, method="complex").passed
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(at, copies))
    assert gradcheck(*LAYER, [[1, 2, 4]], [1, 2, 3], [0, 0, 1]).passed


def test_progress_goes_to_stderr(capfd):
    gradcheck(*LAYER, *point((2, 5)), progress=True)
    captured = capfd.readouterr()
    assert "dgamma" in captured.err and not captured.out
    gradcheck(*LAYER, *point((2, 5)))
    assert not capfd.readouterr().err


BAD = {
    "method": ({"method": "forward"}, ValueError, "method must be"),
    "h zero": ({"h": 0.0}, ValueError, "h must be positive"),
    "h negative": ({"h": -1e-5}, ValueError, "h must be positive"),
    "rtol zero": ({"rtol": 0}, ValueError, "rtol must be positive, got 0"),
    "h nan": ({"h": np.nan}, ValueError, "h must be positive"),
    "sample zero": ({"sample": 0}, ValueError, "sample must be a positive integer"),
    "sample float": ({"sample": 2.5}, ValueError, "sample must be a positive integer"),
    "x complex": ({"x": np.ones((2, 5)) * 1j}, TypeError, "x must be real"),
    "gamma text": ({"gamma": ["a"] * 5}, TypeError, "gamma must be real"),
    "x scalar": ({"x": 1.0}, ValueError, "must be \\(..., D\\)"),
    "beta length": ({"beta": np.ones(4)}, ValueError, "must be \\(..., D\\)"),
    "x empty": ({"x": np.ones((0, 5))}, ValueError, "not empty"),
    "sample boolean": ({"sample": True}, ValueError, "sample must be a positive integer"),
    "beta matrix": ({"beta": np.ones((1, 5))}, ValueError, "must be \\(..., D\\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    change, error, message = BAD[case]
    good = dict(zip(("x", "gamma", "beta"), point((2, 5))))
    with pytest.raises(error, match=message):
        gradcheck(*LAYER, **(good | change))


def in_place(factor):
    def backward(dy, cache):
        dy *= factor
        return layer_norm_backward(dy, cache)

    return backward


@pytest.mark.parametrize("factor", [0, 2])
def test_backward_that_writes_into_dy_cannot_hide(factor):
    at = point((2, 5))
    for method in RTOL:
        assert not gradcheck(layer_norm_forward, in_place(factor), *at, method=method).passed
    assert not directional_check(layer_norm_forward, in_place(factor), *at).passed
    assert not adjoint_check(jvp, layer_norm_forward, in_place(factor), *at).passed


def test_forward_that_writes_into_x_does_not_spoil_the_check():
    def forward(x, gamma, beta):
        result = layer_norm_forward(x, gamma, beta)
        for array in (x, gamma, beta):
            array[...] = 0
        return result

    at = point((2, 5), offset=3)
    assert gradcheck(forward, layer_norm_backward, *at, method="complex").passed
    assert gradcheck(forward, layer_norm_backward, *at).passed
    assert directional_check(forward, layer_norm_backward, *at).passed
    assert all(a.any() for a in at)


def test_forward_that_is_not_finite_nearby():
    """The derivative is nan although every gradient is finite."""

    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        return (y if np.array_equal(x, at[0]) else y * np.nan), cache

    at = point((2, 5))
    assert not gradcheck(forward, layer_norm_backward, *at).passed
    assert not directional_check(forward, layer_norm_backward, *at).passed


def test_rows_that_do_not_move_add_no_rounding():
    x, gamma, beta = point((100, 100))
    assert gradcheck(*LAYER, x, gamma, 30 * beta, sample=20).passed


@pytest.mark.parametrize("size", [1e-4, 1, 1e4])
def test_beta_a_hundred_times_gamma(size):
    x, gamma, beta = point((3, 40))
    report = gradcheck(*LAYER, x, size * gamma, 100 * size * beta, sample=30)
    assert report.passed, report


def test_smallest_step_is_the_next_float():
    assert gradcheck(*LAYER, *point((2, 20), offset=1e11)).passed
    assert directional_check(*LAYER, *point((2, 20), offset=1e11)).passed


def test_dy_is_not_the_stream_of_the_callers_generator():
    """Else x from default_rng(0) and seed=0 would give dy = x, the aligned data of lesson 03."""
    seen = []

    def backward(dy, cache):
        seen.append(dy)
        return layer_norm_backward(dy, cache)

    x = np.random.default_rng(0).standard_normal((3, 4096))
    report = gradcheck(layer_norm_forward, backward, x, np.ones(4096), np.zeros(4096), sample=4)
    assert report.passed
    assert abs(np.corrcoef(seen[0].ravel(), x.ravel())[0, 1]) < 0.1


def test_step_that_cannot_move_x_does_not_pass_a_wrong_dx():
    at = point((2, 20), offset=1e12)
    assert not directional_check(layer_norm_forward, changed(dx=2), *at).passed
    assert not gradcheck(layer_norm_forward, changed(dx=2), *at).passed


def test_large_and_tiny_values():
    x, gamma, beta = point((2, 20))
    for at in ((x, 1e4 * gamma, beta), (1e-6 * x, gamma, beta), (1e160 * x, gamma, beta)):
        assert gradcheck(*LAYER, *at).passed
    assert gradcheck(*LAYER, x, gamma, 1e4 * beta, method="complex").passed


def test_yardstick_that_is_infinite_does_not_pass_everything():
    def forward(x, gamma, beta):
        return layer_norm_forward(x, gamma, beta, 1e-5)

    with np.errstate(divide="ignore", invalid="ignore"):
        report = gradcheck(forward, changed(dx=7), np.full((2, 5), 3.0), *point((5,))[1:])
    assert not report.passed


@pytest.mark.parametrize("wrong", [None, "text", [[None] * 5] * 2])
def test_gradients_that_are_no_numbers(wrong):
    report = gradcheck(
        layer_norm_forward, lambda dy, c: (wrong, *layer_norm_backward(dy, c)[1:]), *point((2, 5))
    )
    assert not report.passed and "dx has" in str(report)
    assert report.checked["dx"] == (0, 10)


@pytest.mark.parametrize(
    "got, what",
    [([np.ones(5)] * 2, "2 values in a list"), (None, "NoneType"), (np.ones(3), "ndarray")],
)
def test_backward_that_does_not_return_three_gradients(got, what):
    with pytest.raises(ValueError, match=f"the tuple dx, dgamma, dbeta, got {what}"):
        gradcheck(layer_norm_forward, lambda dy, c: got, *point((2, 5)))


def test_jvp_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"jvp must return the shape of y, \(2, 5\), got \(5,\)"):
        adjoint_check(lambda *a: a[1], *LAYER, *point((2, 5)))


def test_gradient_that_should_be_zero():
    x, _, beta = point((2, 5))
    wrong = changed()

    def backward(dy, cache):
        dx, dgamma, dbeta = wrong(dy, cache)
        return dx + 1e-9, dgamma, dbeta

    assert gradcheck(*LAYER, x, np.zeros(5), beta, method="complex").passed
    report = gradcheck(layer_norm_forward, backward, x, np.zeros(5), beta, method="complex")
    assert report.errors["dx"] == np.inf and not report.passed


def test_integer_like_samples():
    assert gradcheck(*LAYER, *point((2, 5)), sample=np.int64(3)).checked["dx"] == (3, 10)


def test_fixed_h_and_rtol():
    at = point((2, 5))
    errors = [gradcheck(*LAYER, *at, h=h).errors["dx"] for h in (1e-2, 1e-3)]
    assert 50 < errors[0] / errors[1] < 200  # truncation falls with the square of h
    assert not gradcheck(*LAYER, *at, h=1e-2).passed
    assert gradcheck(*LAYER, *at, h=1e-2, rtol=1e-2).passed


def sums(dy, dy_x):
    rows = tuple(range(dy.ndim - 1))
    return dy_x.sum(axis=rows), dy.sum(axis=rows)


def rms_norm(x, gamma, beta):
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    return gamma * x * rstd + beta, (x * rstd, rstd, gamma)


def rms_norm_backward(dy, cache):
    x_hat, rstd, gamma = cache
    g = gamma * dy
    dx = rstd * (g - x_hat * np.mean(g * x_hat, axis=-1, keepdims=True))
    return dx, *sums(dy, dy * x_hat)


def group_norm(x, gamma, beta):
    """Two groups of channels, each normalised by itself over all tokens of a sample."""
    rows = by_groups(x)
    x_hat, cache = layer_norm_forward(rows, np.ones(rows.shape[-1]), np.zeros(rows.shape[-1]))
    return gamma * by_tokens(x_hat, x.shape) + beta, (cache, gamma)


def group_norm_backward(dy, cache):
    cache, gamma = cache
    dx, _, _ = layer_norm_backward(by_groups(gamma * dy), cache)
    return by_tokens(dx, dy.shape), *sums(dy, dy * by_tokens(cache.x_hat, dy.shape))


def by_groups(x):
    """Return x (..., T, C) as rows of T * C / 2 numbers, two of them for each sample."""
    halves = x.reshape(*x.shape[:-1], 2, -1)  # (..., T, 2, C / 2)
    return np.moveaxis(halves, -2, -3).reshape(*x.shape[:-2], 2, -1)


def by_tokens(rows, shape):
    halves = rows.reshape(*shape[:-2], 2, shape[-2], -1)  # (..., 2, T, C / 2)
    return np.moveaxis(halves, -3, -2).reshape(shape)


def pointwise(f, slope):
    """Return the layer gamma * f(x) + beta, forward and backward."""

    def forward(x, gamma, beta):
        return gamma * f(x) + beta, (x, gamma)

    return forward, lambda dy, c: (c[1] * dy * slope(c[0]), *sums(dy, dy * f(c[0])))


def batch_norm(x, gamma, beta):
    """A LayerNorm of the columns."""
    columns = x.reshape(-1, x.shape[-1]).T  # (D, N)
    N = columns.shape[-1]
    x_hat, cache = layer_norm_forward(columns, np.ones(N), np.zeros(N))
    return gamma * x_hat.T.reshape(x.shape) + beta, (cache, gamma)


def batch_norm_backward(dy, cache):
    cache, gamma = cache
    g = (gamma * dy).reshape(-1, dy.shape[-1]).T  # (D, N)
    dx = layer_norm_backward(g, cache)[0].T.reshape(dy.shape)
    return dx, *sums(dy, dy * cache.x_hat.T.reshape(dy.shape))


def softmax(x, gamma, beta):
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    return gamma * p + beta, (p, gamma)


def softmax_backward(dy, cache):
    p, gamma = cache
    g = gamma * dy
    return p * (g - np.sum(g * p, axis=-1, keepdims=True)), *sums(dy, dy * p)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


LAYERS = {
    "LayerNorm": LAYER,
    "RMSNorm": (rms_norm, rms_norm_backward),
    "GroupNorm": (group_norm, group_norm_backward),
    "gain and shift": pointwise(lambda x: x, np.ones_like),
}
erf = np.vectorize(math.erf, otypes=[float])
MORE = LAYERS | {
    "BatchNorm": (batch_norm, batch_norm_backward),
    "softmax": (softmax, softmax_backward),
    "SiLU": pointwise(lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * sigmoid(-x))),
    "GELU": pointwise(
        lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
        lambda x: (1 + erf(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    ),
    "GELU by tanh": pointwise(
        lambda x: x * (1 + np.tanh(0.8 * x + 0.036 * x**3)) / 2,
        lambda x: (
            (1 + np.tanh(0.8 * x + 0.036 * x**3)) / 2
            + x
            * (0.8 + 0.108 * x * x)
            / 2
            / np.cosh(np.minimum(abs(0.8 * x + 0.036 * x**3), 300)) ** 2
        ),
    ),
    "softplus": pointwise(lambda x: np.log1p(np.exp(x)), sigmoid),
    "tanh": pointwise(np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "exp": pointwise(np.exp, np.exp),
    "cube": pointwise(lambda x: x * x * x, lambda x: 3 * x * x),
    "sin 30x": pointwise(lambda x: np.sin(30 * x), lambda x: 30 * np.cos(30 * x)),
    "ReLU": pointwise(lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
}
CHANNELS = 1e4 * np.arange(8)


def off_by(backward, k, relative):
    def wrong(dy, cache):
        gradients = [np.array(d) for d in backward(dy, cache)]
        gradients[k] *= 1 + relative
        return gradients

    return wrong


@pytest.mark.parametrize("method", RTOL)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("offset", [0, 1e5, CHANNELS], ids=["0", "1e5", "channels"])
def test_any_layer_right_or_wrong(layer, offset, method):
    forward, backward = LAYERS[layer]
    at = point((3, 8), offset=offset)
    assert gradcheck(forward, backward, *at, method=method).passed
    assert directional_check(forward, backward, *at, method=method).passed
    for k, name in enumerate(("dx", "dgamma", "dbeta")):
        report = gradcheck(forward, off_by(backward, k, 1e-5), *at, method=method)
        assert [n for n, e in report.errors.items() if e > report.rtol] == [name]
        assert 3e-7 < report.errors[name] < 3e-5  # the yardstick is about the gradient's size


@pytest.mark.parametrize("layer", MORE)
@pytest.mark.parametrize("scale", [1, 3, 10])
def test_table_of_layers(layer, scale):
    forward, backward = MORE[layer]
    calls = []

    def counted(*at):
        calls.append(at)
        return forward(*at)

    at = point((2, 3, 8), seed=scale, sigma=scale)
    report = gradcheck(counted, backward, *at, seed=scale)
    assert report.passed and len(calls) < 20 * 64, report
    for k, relative in ((0, 1e-4), (0, 1e-5), (1, 1e-5), (2, 1e-5)):
        report = gradcheck(forward, off_by(backward, k, relative), *at, seed=scale, sample=12)
        assert "FAILED" in str(report), report


@pytest.mark.parametrize("case", ["channels", "spreads", "outlier"])
def test_one_array_of_many_lengths(case):
    x, gamma, beta = point((7, 8))
    forward, backward = MORE["BatchNorm"] if case == "channels" else LAYER
    sizes = {"channels": np.logspace(-3, 5, 8), "spreads": np.logspace(-3, 3.5, 7)[:, None]}
    x = x * sizes.get(case, 1)
    x[0, 0] = 1e4 if case == "outlier" else x[0, 0]
    assert gradcheck(forward, backward, x, gamma, beta).passed
    assert "FAILED" not in str(directional_check(forward, backward, x, gamma, beta))
    for k in range(3):
        assert not gradcheck(forward, off_by(backward, k, 1e-5), x, gamma, beta).passed


@pytest.mark.parametrize("offset", [1e4, 1e7])
def test_a_layer_that_looks_linear_from_afar(offset):
    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        return x + y, cache

    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dy + dx, dgamma, dbeta

    at = point((2, 5), offset=offset)
    assert gradcheck(forward, backward, *at).passed
    assert not gradcheck(forward, lambda dy, c: (dy, *backward(dy, c)[1:]), *at).passed


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
    x, gamma, beta = point((3, 2), sigma=3e3)
    for backward in (layer_norm_backward, changed(dx=1 + 1e-6)):
        report = gradcheck(layer_norm_forward, backward, x, gamma, beta)
        assert not report.passed and "cannot judge" in str(report).splitlines()[0]
        assert "of 6 entries whose numerical derivative is known to" in report.unjudged["dx"]
        assert set(report.unjudged) == {"dx"}
    report = gradcheck(layer_norm_forward, changed(dx=1 + 1e-6, dbeta=2), x, gamma, beta)
    assert "FAILED" in str(report) and "cannot be" not in str(report)  # what is wrong comes first
    far = gradcheck(*LAYER, *point((2, 5), offset=1e15))
    assert "cannot judge" in str(far) and not far.passed


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_y_in_few_digits_is_named(dtype):
    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        return y.astype(dtype), cache

    report = gradcheck(forward, layer_norm_backward, *point((2, 5)))
    assert not report.passed and "cannot judge" in str(report).splitlines()[0]
    assert f"forward has y in {np.dtype(dtype)} for float64 input" in str(report)
    loose = {np.float32: 1e-2, np.float16: 1}[dtype]
    assert gradcheck(forward, layer_norm_backward, *point((2, 5)), rtol=loose).passed
    assert not gradcheck(forward, changed(dx=3), *point((2, 5)), rtol=loose).passed


def test_forward_that_is_not_analytic_is_named():
    def with_var(x, gamma, beta):
        rstd = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        mean = x.mean(axis=-1, keepdims=True)
        return gamma * (x - mean) * rstd + beta, layer_norm_forward(x, gamma, beta)[1]

    for backward in (layer_norm_backward, no_projection_term):  # neither passes
        for check in (gradcheck, directional_check):
            report = check(with_var, backward, *point((2, 8)), method="complex")
            assert not report.passed and "cannot judge" in str(report).splitlines()[0]
            assert "forward has no complex derivative: along one direction" in str(report)
    assert gradcheck(with_var, layer_norm_backward, *point((2, 8))).passed
    assert gradcheck(*MORE["softmax"], *point((2, 8)), method="complex").passed  # max cancels
    report = gradcheck(*pointwise(np.abs, np.sign), *point((2, 8)), method="complex")
    assert "np.var, abs and max" in report.unjudged["forward"]


def test_tqdm_is_called_only_for_a_bar(monkeypatch):
    """In a browser its monitor thread warns even where it shows nothing."""
    monkeypatch.setattr(sys.modules["lnlib.gradcheck"], "tqdm", None)
    assert gradcheck(*LAYER, *point((2, 5))).passed


def test_group_norm_that_centres_once_has_ten_digits():
    def forward(x, gamma, beta):
        rows = by_groups(x)
        xc = rows - rows.mean(axis=-1, keepdims=True)
        std = np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True) + 1e-5)
        return gamma * by_tokens(xc / std, x.shape) + beta, group_norm(x, gamma, beta)[1]

    at = point((3, 8), offset=np.repeat([-1e4, 1e4], 4))
    options = {"method": "complex", "rtol": 1e-10}
    assert gradcheck(forward, group_norm_backward, *at, **options).passed
    assert not gradcheck(forward, off_by(group_norm_backward, 0, 1e-5), *at, **options).passed


@pytest.mark.parametrize("method", RTOL)
@pytest.mark.parametrize("offset", [0, 10, 1e5])
def test_two_features_where_dx_is_a_remainder(offset, method):
    """LayerNorm's dx is some 1e-5 of what cancelled: the yardstick is that."""
    for seed in range(5):
        x, gamma, beta = point((3, 2), seed, offset=offset)
        assert gradcheck(*LAYER, x, gamma, beta, method=method).passed
        assert gradcheck(*LAYER, 1e-9 * x, gamma, beta, method=method).passed
        backward = changed_by(1e-3 / np.ptp(x, axis=-1, keepdims=True))
        assert not gradcheck(layer_norm_forward, backward, x, gamma, beta, method=method).passed


def changed_by(amount):
    """Return a backward pass that adds an amount to dx."""

    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx + amount, dgamma, dbeta

    return backward


@pytest.mark.parametrize("method", RTOL)
@pytest.mark.parametrize("sigma", [1e-12, 1e-14])
def test_rows_without_spread(sigma, method):
    """There dgamma is tiny beside beta's share of y, and a step of 1 in gamma would not show."""
    at = point((3, 8), sigma=sigma)
    assert gradcheck(*LAYER, *at, method=method).passed
    for k in range(3):
        assert not gradcheck(
            layer_norm_forward, off_by(layer_norm_backward, k, 1e-5), *at, method=method
        ).passed


def test_forward_that_writes_every_y_into_one_array():
    buffer = np.empty((3, 8))

    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        if y.dtype == buffer.dtype:
            buffer[...], y = y, buffer
        return y, cache

    at = point((3, 8))
    none = changed(dx=0, dgamma=0, dbeta=0)
    for method in RTOL:
        for test in (gradcheck, directional_check):
            assert test(forward, layer_norm_backward, *at, method=method).passed
            assert not test(forward, none, *at, method=method).passed


def test_no_tolerance_lets_a_wrong_shape_or_an_infinity_pass():
    def transposed(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx.T, dgamma, dbeta

    for test in (gradcheck, directional_check):
        assert not test(layer_norm_forward, transposed, *point((2, 5)), rtol=np.inf).passed


def test_y_of_another_shape():
    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        return y[:1], cache

    for test in (gradcheck, directional_check):
        with pytest.raises(ValueError, match=r"y in the shape of x, \(2, 5\), got \(1, 5\)"):
            test(forward, layer_norm_backward, *point((2, 5)))


def test_directional_complex_step():
    at = point((3, 40), offset=1e8)
    report = directional_check(*LAYER, *at, method="complex")
    assert report.passed and report.errors["directional"] < 1e-14
    assert "directional complex step, tolerance 1e-12: passed" in str(report)
    wrong = changed(dgamma=1 + 1e-9)
    assert not directional_check(layer_norm_forward, wrong, *at, method="complex").passed
    with pytest.raises(ValueError, match="method must be"):
        directional_check(*LAYER, *at, method="forward")
    with pytest.raises(TypeError, match="complex"):
        directional_check(
            lambda *a: (layer_norm_forward(*a)[0].real, layer_norm_forward(*a)[1]),
            layer_norm_backward,
            *point((2, 5)),
            method="complex",
        )
