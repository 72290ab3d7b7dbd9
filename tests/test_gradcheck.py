"""The checks: they pass what is right, fail what is wrong, and say what they looked at."""

import numpy as np
import pytest

from lnlib import (
    adjoint_check,
    directional_check,
    gradcheck,
    layer_norm_backward,
    layer_norm_forward,
)
from lnlib.bugs import BUGS
from lnlib.gradcheck import RTOL

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


@pytest.mark.parametrize("seed", range(60))
def test_reference_on_random_shapes(seed):
    rng = np.random.default_rng(seed)
    D = int(rng.integers(1, 5)) if seed % 4 == 0 else int(rng.integers(1, 301))
    shape = tuple(rng.integers(1, 4, seed % 4)) + (D,)
    at = point(shape, seed, offset=rng.choice([0, 1, -30, 1e3]), sigma=rng.choice([0.1, 1, 10]))
    for method, tolerance in (("complex", 1e-14), ("central", 1e-8)):
        report = gradcheck(*LAYER, *at, method=method, sample=60, seed=seed)
        assert report.rtol == tolerance
        assert report.passed, report
    assert directional_check(*LAYER, *at, seed=seed).passed
    assert adjoint_check(jvp, *LAYER, *at, seed=seed).passed


@pytest.mark.parametrize("method", RTOL)
@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 1.0])
def test_mean_1e8_passes_the_same_tolerance(method, sigma):
    at = point((3, 40), offset=1e8, sigma=sigma)
    assert gradcheck(*LAYER, *at, method=method).passed
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


def test_museum_is_large_and_named():
    assert len(BUGS) >= 12
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(bug.forgets for bug in BUGS)


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sample", [None, 1])
def test_nan_and_inf_anywhere_fail(where, value, sample):
    def backward(dy, cache):
        gradients = layer_norm_backward(dy, cache)
        gradients[where].flat[-1] = value
        return gradients

    at = point((30, 20))
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
    at = point((2, 128, 1024))
    report = gradcheck(*LAYER, *at, sample=20)
    assert report.passed
    assert report.checked == {"dx": (20, 262144), "dgamma": (20, 1024), "dbeta": (20, 1024)}
    assert "20 of 262144 entries" in str(report)
    small = point((3, 4))
    assert gradcheck(*LAYER, *small, sample=100).checked["dx"] == (12, 12)
    seen = [gradcheck(*LAYER, *small, sample=3, seed=s).errors for s in (0, 0, 1)]
    assert seen[0] == seen[1] != seen[2]


def test_wrong_shapes_are_reported_in_words():
    def backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache)
        return dx, dgamma[None], dbeta

    report = gradcheck(layer_norm_forward, backward, *point((2, 5)))
    assert not report.passed and report.errors["dgamma"] == np.inf
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
    x, gamma, beta = point((400, 300))
    assert gradcheck(*LAYER, x, gamma, 30 * beta, sample=20).passed


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
    report = gradcheck(layer_norm_forward, backward, x, np.ones(4096), np.zeros(4096), sample=20)
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


def test_backward_that_returns_two_gradients():
    with pytest.raises(ValueError, match="dx, dgamma, dbeta, got 2 values in a tuple"):
        gradcheck(layer_norm_forward, lambda dy, c: layer_norm_backward(dy, c)[:2], *point((2, 5)))


def test_backward_that_returns_nothing():
    with pytest.raises(ValueError, match="dx, dgamma, dbeta, got NoneType"):
        gradcheck(layer_norm_forward, lambda dy, c: None, *point((2, 5)))


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
