"""The layer, reference and blocked: contracts, dtypes, edge cases, bad input, the promise."""

import numpy as np
import pytest
from layers import COMPILED, LAYERS, data, each_layer
from oracle import (
    AT_LARGE,
    DENORMAL,
    assert_promise,
    assert_y_and_dx,
    fractions,
    norm_wise,
    oracle,
    promised,
)  # fmt: skip

from lnlib import layer_norm_backward, layer_norm_backward_staged, layer_norm_forward

PROMISE = {np.float32: AT_LARGE, np.float64: 1e-15}
reference = LAYERS["reference"].both
not_emulated = pytest.mark.parametrize(
    "layer", ["reference", "staged", "blocked", COMPILED], indirect=True
)
with_a_cache = pytest.mark.parametrize("layer", ["reference", "blocked"], indirect=True)


@pytest.mark.parametrize("dtype", PROMISE)
@pytest.mark.parametrize("D", [1, 2, 3, 31, 127, 1000])
@pytest.mark.parametrize("offset", [0, 1e4, 1e7])
def test_promise_against_decimal_arithmetic(layer, dtype, D, offset):
    dy, x, gamma, beta = data((4 if D < 1000 else 1, D), dtype, seed=D, offset=offset)
    got = layer.both(dy, x, gamma, beta)
    right = assert_y_and_dx(got, dy, x, gamma, beta, limit=PROMISE[dtype])
    least = max(np.abs(right.dgamma).max(), 0.1)
    assert norm_wise(got.dgamma, right.dgamma, least) <= PROMISE[dtype]
    assert norm_wise(got.dbeta, right.dbeta) <= PROMISE[dtype]


@not_emulated
@pytest.mark.parametrize("D", [2, 3, 4, 33, 768, 16384])
@pytest.mark.parametrize("gain", ["ones", "nearly ones", "varied"])
def test_promise_for_offsets_of_x_and_means_of_dy(layer, D, gain):
    rng = np.random.default_rng(D)
    spread = {"ones": 0, "nearly ones": 1e-4, "varied": 0.5}[gain]
    for offset in (0, 1e3, -1e7):
        for mean in (0.5, -1e2, 1e4):
            x, dy = ((m + rng.standard_normal((8, D))).astype(np.float32) for m in (offset, mean))
            gamma = (1 + spread * (1 + rng.uniform(-1, 2, D))).astype(np.float32)
            beta = rng.standard_normal(D).astype(np.float32)
            assert_promise(layer.both(dy, x, gamma, beta), dy, x, gamma, beta)


def test_promise_where_results_cancel(layer):
    """There an entry may be wrong by much of itself, but not by much of what cancelled."""
    x, one = np.array([[-1, 1]], np.float32), np.ones(2, np.float32)
    beta = np.array([1, -1], np.float32)
    got = layer.both(x, x, one, beta)
    assert_promise(got, x, x, one, beta)
    right, _ = promised(x, x, one, beta)
    assert norm_wise(got.y, right.y) > AT_LARGE  # y = -1 + 1 + a remainder
    dy, x, gamma, beta = data((2, 5), np.float32)
    x[1], dy[1] = x[0], -dy[0] * np.float32(1 + 1e-6)
    for gain in (gamma, np.eye(5, dtype=np.float32)[0]):
        assert_promise(layer.both(dy, x, gain, beta), dy, x, gain, beta)


@pytest.mark.parametrize("scale, noise", [(1e4, 0), (1e4, 1), (1, 0.01)])
@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_promise_where_gamma_times_dy_cancels(layer, scale, noise, spread):
    """With dy near c / gamma hardly anything is left of gamma * dy - mean(gamma * dy)."""
    rng = np.random.default_rng(8)
    gamma = 1 + spread * rng.uniform(-1, 2, 1024)
    x, more = rng.standard_normal((2, 64, 1024))
    dy = scale / gamma + noise * more
    dy, x, gamma = (a.astype(np.float32) for a in (dy, x, gamma))
    beta = np.zeros_like(gamma)
    assert_promise(layer.both(dy, x, gamma, beta), dy, x, gamma, beta)


@not_emulated
@pytest.mark.parametrize("D, offset, mean", [(4, 0, 0.5), (8, 1e7, -1e4)])
def test_promise_for_very_many_rows(layer, D, offset, mean):
    """Twenty times the same rows, so that the errors of the sums have one sign and add up.

    As dy follows x, the terms of dgamma have a mean, too.
    """
    rng = np.random.default_rng(3)
    x, more = rng.standard_normal((2, 10_000, D))
    gamma, beta = rng.uniform(0.5, 2, (2, D))
    rows = [a.astype(np.float32) for a in (mean + x + more, offset + x, gamma, beta)]
    y, dx, dgamma, dbeta = layer.both(*(np.tile(a, (20, 1)) for a in rows[:2]), *rows[2:])
    got = y[-10_000:], dx[-10_000:], dgamma.astype(float) / 20, dbeta.astype(float) / 20
    assert fractions(got, *rows).largest() <= AT_LARGE


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-3, 1e6, 1e20, 3e38])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_rows_of_any_size_are_right(layer, size, eps):
    dy, _, gamma, beta = data((3, 7), np.float32)
    rng = np.random.default_rng(1)
    x = (size * rng.uniform(-1, 1, (3, 7))).astype(np.float32)
    rstd_fits = size > 1e-37 or eps > 0  # else 1 / std is beyond float32
    with np.errstate(over="ignore", invalid="ignore"):
        got = layer.both(dy, x, gamma, beta, eps)
    if rstd_fits:
        assert_y_and_dx(got, dy, x, gamma, beta, eps, least=DENORMAL)
    else:
        assert not np.isfinite(got.dx).all()


def test_one_huge_entry_among_small_ones(layer):
    dy, x, gamma, beta = data((3, 9), np.float32)
    x[0, 4], x[1, 0], x[2, 8] = 1e20, -3e38, 1e30
    got = layer.both(dy, x, gamma, beta)
    assert_y_and_dx(got, dy, x, gamma, beta, least=DENORMAL)


def test_float64_rows_near_the_end_of_the_range(layer):
    dy, x, gamma, beta = data((2, 6), sigma=1e307)
    got = layer.both(dy, x, gamma, beta)
    assert_y_and_dx(got, dy, x, gamma, beta, limit=1e-14)


@pytest.mark.parametrize("offset", [0, 10, 300])
@pytest.mark.parametrize("D", [4, 33, 1024])
def test_float16_is_computed_in_float32_and_rounded_once(layer, D, offset):
    dy, x, gamma, beta = data((4, D), np.float16, seed=D, offset=offset)
    wide = layer.both(*(a.astype(np.float32) for a in (dy, x, gamma, beta)))
    narrow = layer.both(dy, x, gamma, beta)
    for a, b in zip(narrow, wide):
        assert a.dtype == np.float16
        assert np.array_equal(a, b.astype(np.float16))
    large = np.array([6e4, -6e4, 3e4, 15e3], np.float16)  # its square is not a float16
    assert np.isfinite(layer.forward(large, gamma[:4], beta[:4])[0]).all()


@with_a_cache
def test_what_is_kept(layer):
    """x_hat, in the dtype of the computation, or x itself; and rstd of each row."""
    _, x, gamma, beta = data((2, 3, 5), np.float16)
    _, cache = layer.forward(x, gamma, beta)
    assert cache[0].dtype == (np.float32 if layer.name == "reference" else np.float16)
    assert cache[0].shape == x.shape and cache.rstd.shape == (2, 3, 1)
    assert cache.rstd.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_dtypes_stay(layer, dtype):
    assert {result.dtype for result in layer.both(*data((2, 5), dtype))} == {np.dtype(dtype)}


def test_mixed_dtypes_promote_as_numpy_does(layer):
    dy, x, gamma, beta = data((2, 5))
    y, *gradients = layer.both(dy.astype(np.float32), x.astype(np.float32), gamma, beta)
    assert y.dtype == np.float64
    assert {d.dtype for d in gradients} == {np.dtype(np.float32)}
    y, _ = layer.forward(x.astype(np.float16), gamma.astype(np.float32), beta.astype(np.float32))
    assert y.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_input_is_not_conjugated(dtype):
    dy, x, gamma, beta = data((2, 5))
    x = (x + 0.1j * dy).astype(dtype)
    y, cache = layer_norm_forward(x, gamma.astype(dtype), beta.astype(dtype))
    xc = x.astype(complex) - x.astype(complex).mean(axis=-1, keepdims=True)
    expected = gamma * xc / np.sqrt((xc * xc).mean(axis=-1, keepdims=True) + 1e-5) + beta
    assert y.dtype == dtype
    assert np.allclose(y, expected, rtol=1e-5 if dtype == np.complex64 else 1e-13)
    dx, dgamma, dbeta = layer_norm_backward(dy, cache)
    assert np.iscomplexobj(dx) and np.iscomplexobj(dgamma)
    staged = layer_norm_backward_staged(dy, x, gamma.astype(dtype))
    assert all(np.allclose(a, b, rtol=1e-4) for a, b in zip(staged, (dx, dgamma, dbeta)))


@each_layer
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5), (0, 5), (2, 0, 5)])
def test_any_leading_axes(layer, shape):
    dy, x, gamma, beta = data(shape, np.float32)
    y, dx, dgamma, dbeta = layer.both(dy, x, gamma, beta)
    assert y.shape == dx.shape == shape and dgamma.shape == dbeta.shape == (5,)
    flat = layer.both(dy.reshape(-1, 5), x.reshape(-1, 5), gamma, beta)
    assert np.array_equal(flat.dx, dx.reshape(-1, 5))
    assert np.allclose(flat.dgamma, dgamma, rtol=1e-6, atol=1e-6)
    assert 0 not in shape or not (dgamma.any() or dbeta.any())


def test_gradients_of_the_cache_only():
    """The cache holds x_hat, rstd and gamma, detached from the caller's arrays."""
    dy, x, gamma, beta = data((4, 6))
    _, cache = layer_norm_forward(x, gamma, beta)
    assert cache._fields == ("x_hat", "rstd", "gamma")
    before = layer_norm_backward(dy, cache)
    x[...], gamma[...], beta[...] = 9, 9, 9
    for a, b in zip(before, layer_norm_backward(dy, cache)):
        assert np.array_equal(a, b)


def test_memory_layout_does_not_matter(layer):
    dy, x, gamma, beta = data((64, 300), np.float32, offset=1e4)
    expected = layer.both(dy, x, gamma, beta)
    for twist in (np.asfortranarray, lambda a: np.repeat(a, 2, axis=-1)[..., ::2]):
        got = layer.both(*map(twist, (dy, x, gamma, beta)))
        assert all(np.array_equal(a, b) for a, b in zip(got, expected))
    swapped = [a.astype(a.dtype.newbyteorder()) for a in (dy, x, gamma, beta)]
    assert all(np.array_equal(a, b) for a, b in zip(layer.both(*swapped), expected))


def test_lists_are_welcome(layer):
    y, dx, *_ = layer.both([[1.0, 0.0, 0.0]], [[1.0, 2.0, 4.0]], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert y.shape == dx.shape == (1, 3)


@each_layer
def test_nothing_is_changed_in_place(layer):
    arrays = dy, x, gamma, beta = data((3, 5), np.float32)
    copies = [a.copy() for a in arrays]
    for array in arrays:
        array.flags.writeable = False
    _, cache = layer.forward(x, gamma, beta)
    cached = [np.array(a) for a in cache]
    layer.backward(dy, cache)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, copies))
    assert all(np.array_equal(a, b) for a, b in zip(cache, cached))


@each_layer
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("D", [6, 600])
def test_bad_values_spoil_their_row_only(layer, bad, D):
    dy, x, gamma, beta = data((4, D), np.float32)
    clean = layer.both(dy, x, gamma, beta)
    x[2, 3] = bad
    with np.errstate(invalid="ignore"):
        spoiled = layer.both(dy, x, gamma, beta)
    others = [0, 1, 3]
    for now, before in (spoiled.y, clean.y), (spoiled.dx, clean.dx):
        assert np.isnan(now[2]).all()
        assert np.allclose(now[others], before[others], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("D", [1, 4])
@pytest.mark.parametrize(
    "dtype, sizes",
    [
        (np.float32, [7.3, 1e17, 1e18, 1e19, 1e20, 3e38]),
        (np.float64, [7.3, 1e155, 1e156, 1e200, 1.7e308]),
    ],
)
def test_constant_rows_of_any_size(layer, dtype, sizes, D):
    dy, _, gamma, beta = data((len(sizes), D), dtype)
    x = np.array(sizes, dtype)[:, None] + np.zeros(D, dtype)
    g = gamma.astype(np.float64) * dy
    dx = (g - g.mean(axis=-1, keepdims=True)) / np.sqrt(1e-5)
    got = layer.both(dy, x, gamma, beta)
    assert np.array_equal(got.y, np.broadcast_to(beta, x.shape)) and not got.dgamma.any()
    assert norm_wise(got.dx, dx, np.abs(g).max() / np.sqrt(1e-5)) <= PROMISE[dtype]
    assert D > 1 or not got.dx.any()


@pytest.mark.parametrize("eps", [1e30, 1e39, 1e60, 1e300])
def test_eps_beyond_the_dtype(eps):
    """Right in float32 too, or below what float32 can hold."""
    dy, x, gamma, beta = data((3, 7), np.float32)
    x *= 1e6
    right, _ = oracle(*(a.astype(np.float64) for a in (dy, x, gamma, beta)), eps)
    with np.errstate(over="ignore"):
        got = reference(dy, x, gamma, beta, eps)
    assert norm_wise(got.y, right.y) <= AT_LARGE
    least = np.finfo(np.float32).tiny
    for value, truth in (got.dx, right.dx), (got.dgamma, right.dgamma):
        assert norm_wise(value, truth, max(np.abs(truth).max(), least)) <= AT_LARGE


BAD_FORWARD = {
    "x integer": ({"x": np.ones((2, 3), int)}, TypeError, "x must be floating-point"),
    "x boolean": ({"x": np.ones((2, 3), bool)}, TypeError, "x must be floating-point"),
    "x object": ({"x": np.array([[1.0, 2.0, None]])}, TypeError, "x must be floating-point"),
    "x scalar": ({"x": 3.0}, ValueError, "x must have shape"),
    "D is 0": ({"x": np.ones((2, 0))}, ValueError, "D >= 1"),
    "gamma integer": ({"gamma": np.ones(3, int)}, TypeError, "gamma must be floating-point"),
    "gamma length": ({"gamma": np.ones(4)}, ValueError, r"gamma must have shape \(3,\)"),
    "gamma scalar": ({"gamma": 1.0}, ValueError, r"gamma must have shape \(3,\).*got shape \(\)"),
    "beta integer": ({"beta": np.zeros(3, int)}, TypeError, "beta must be floating-point"),
    "beta length": ({"beta": np.zeros(2)}, ValueError, r"beta must have shape \(3,\)"),
    "eps negative": ({"eps": -1e-5}, ValueError, "eps must be finite and not negative"),
    "eps nan": ({"eps": np.nan}, ValueError, "eps must be finite"),
    "eps infinite": ({"eps": np.inf}, ValueError, "eps must be finite"),
    "eps beyond float64": ({"eps": 10**400}, ValueError, "eps must be finite"),
    "eps boolean": ({"eps": True}, TypeError, "eps must be a real number, got bool"),
    "eps text": ({"eps": "1e-5"}, TypeError, "eps must be a real number"),
    "eps array": ({"eps": np.array([1e-5])}, TypeError, "eps must be a real number"),
}


@with_a_cache
@pytest.mark.parametrize("case", BAD_FORWARD)
def test_bad_forward_arguments(layer, case):
    change, error, message = BAD_FORWARD[case]
    good = {"x": np.ones((2, 3)), "gamma": np.ones(3), "beta": np.zeros(3), "eps": 1e-5}
    with pytest.raises(error, match=message):
        layer.forward(**(good | change))
    if "beta" not in change:
        staged = good | change | {"dy": np.ones((2, 3))}
        del staged["beta"]
        with pytest.raises(error, match=message):
            layer_norm_backward_staged(**staged)


BAD_BACKWARD = {
    "dy integer": (np.ones((2, 3), int), TypeError, "dy must be floating-point"),
    "dy too short": (np.ones((1, 3)), ValueError, r"dy must have the shape of x .*\(2, 3\)"),
    "dy of another rank": (np.ones((1, 2, 3)), ValueError, "dy must have the shape of x"),
    "dy that would broadcast": (np.ones(3), ValueError, "dy must have the shape of x"),
}


@pytest.mark.parametrize("case", BAD_BACKWARD)
def test_bad_dy(layer, case):
    dy, error, message = BAD_BACKWARD[case]
    with pytest.raises(error, match=message):
        layer.both(dy, *data((2, 3))[1:])


@pytest.mark.parametrize("exponent", [-40, -1, 0, 7, 40])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 2), (1, 4, 5), (3, 1, 33), (4, 4, 40)])
def test_properties(shape, exponent):
    dy, x, gamma, beta = data(shape, seed=40 + exponent, offset=3)
    got = reference(dy, x, gamma, beta)
    dx, rstd = got.dx, layer_norm_forward(x, gamma, beta)[1].rstd
    size = np.abs(rstd * gamma * dy).max()
    # the gradient does not see the level, and sees the spread only through eps
    assert np.abs(dx.sum(axis=-1)).max() <= 1e-13 * size * shape[-1]
    # bounded by rstd * |gamma * dy|
    norms = [np.linalg.norm(a, axis=-1) for a in (dx, rstd * gamma * dy)]
    assert np.all(norms[0] <= norms[1] * (1 + 1e-12))
    # linear in dy
    twice = reference(2 * dy, x, gamma, beta)
    assert all(np.array_equal(2 * a, b) for a, b in zip(got[1:], twice[1:]))
    # a power of two in x, with eps to match, changes nothing but the units of dx
    s = 2.0**exponent
    scaled = reference(dy, s * x, gamma, beta, s * s * 1e-5)
    assert np.array_equal(got.y, scaled.y) and np.array_equal(got.dgamma, scaled.dgamma)
    assert np.array_equal(dx, s * scaled.dx)
    # rows in another order
    turned = reference(dy[::-1], x[::-1], gamma, beta)
    assert np.array_equal(turned.y, got.y[::-1]) and np.array_equal(turned.dx, dx[::-1])
