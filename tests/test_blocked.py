"""What only the blocked layer has: out=, blocks, strips, a cache of O(N), rows left to others."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from layers import LAYERS, data
from oracle import (
    AT_LARGE,
    DENORMAL,
    Results,
    assert_promise,
    assert_y_and_dx,
    norm_wise,
    oracle,
    promised,
)

from lnlib import blocked, layer_norm_backward, layer_norm_forward

both = LAYERS["blocked"].both


ROWS = [(rows, D) for rows in (1, 2, 16, 17) for D in (1, 3, 768, 1024, 1025, 5000)]
ROWS += [(blocked.rows_per_block(10**6, D) + more, D) for D in (1024, 5000) for more in (0, 1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows, D", ROWS)
def test_every_size_of_the_last_block_and_strip(rows, D, dtype):
    dy, x, gamma, beta = data((rows, D), dtype, seed=rows, offset=5)
    _, scales = promised(dy, x, gamma, beta)
    right = LAYERS["reference"].both(dy, x, gamma, beta)
    for a, b, scale in zip(both(dy, x, gamma, beta), right, scales):
        assert a.dtype == dtype
        assert norm_wise(a, b, scale) <= (2e-15 if dtype == np.float64 else AT_LARGE)


@pytest.mark.parametrize("shape, blocks", [((2, 8192), 0), ((3, 8192), 1), ((2, 40_000), 0)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_small_inputs_are_left_to_the_reference(dtype, shape, blocks, monkeypatch):
    monkeypatch.undo()
    dy, x, gamma, beta = data(shape, dtype, offset=5)
    y, cache = blocked.layer_norm_forward(x, gamma, beta)
    assert isinstance(cache, blocked.BlockedCache) == blocks
    if not blocks:
        right = LAYERS["reference"].both(dy, x, gamma, beta)
        got = y, *blocked.layer_norm_backward(dy, cache)
        assert all(a.dtype == dtype and np.array_equal(a, b) for a, b in zip(got, right))


@pytest.fixture(params=[0, 2**14], ids=["blocks", "small"])
def size_of_small(request, monkeypatch):
    monkeypatch.setattr(blocked, "SMALL", request.param)


@pytest.mark.usefixtures("size_of_small")
def test_out_is_written_and_returned():
    dy, x, gamma, beta = data((3, 80, 64), np.float32)
    y, cache = blocked.layer_norm_forward(x, gamma, beta)
    dx, dgamma, dbeta = blocked.layer_norm_backward(dy, cache)
    out_y, out_dx = np.full_like(x, np.nan), np.full_like(x, np.nan)
    y_again, cache = blocked.layer_norm_forward(x, gamma, beta, out=out_y)
    dx_again, *others = blocked.layer_norm_backward(dy, cache, out=out_dx)
    assert y_again is out_y and dx_again is out_dx
    assert np.array_equal(y, out_y) and np.array_equal(dx, out_dx)
    assert np.array_equal(dgamma, others[0]) and np.array_equal(dbeta, others[1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_large_result_begins_with_a_huge_page(dtype):
    like = np.zeros((blocked.LARGE_ARRAY // 1000 + 1, 1000 // dtype().itemsize), dtype)
    for few in (like[:9], like):
        out = blocked.check_out(None, few, like.dtype)
        assert out.shape == few.shape and out.dtype == dtype
        assert out.flags.c_contiguous and out.flags.writeable
    assert out.__array_interface__["data"][0] % blocked.HUGE_PAGE == 0


@pytest.mark.parametrize("N, D", [(8192, 64), (8192, 768), (2048, 4096)])
def test_the_cache_and_the_buffers_are_small(N, D):
    dy, x, gamma, beta = data((N, D), np.float32)
    out_y, out_dx = np.empty_like(x), np.empty_like(x)
    tracemalloc.start()
    _, cache = blocked.layer_norm_forward(x, gamma, beta, out=out_y)
    blocked.layer_norm_backward(dy, cache, out=out_dx)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.x is x
    assert sum(a.nbytes for a in (cache.mean, cache.mean_lo, cache.rstd)) == 3 * 4 * N
    assert peak < 3.5 * 4 * blocked.BLOCK + 100 * N + 300 * D


@pytest.mark.parametrize("offset, mean", [(0, 0.5), (1e4, 1e2), (1e6, -1e4), (1e7, 1e4)])
@pytest.mark.parametrize("N, D", [(3000, 3), (3000, 64), (400, 768), (300, 1023), (20, 16384)])
@pytest.mark.parametrize("gains", ["ones", "nearly ones", "varied"])
def test_promise_with_many_rows(N, D, offset, mean, gains):
    """More rows than a block has."""
    dy, x, gamma, beta = data((N, D), np.float32, seed=D, offset=offset)
    gamma = {"ones": np.ones_like(gamma), "nearly ones": 1.3 + gamma / 1e4}.get(gains, gamma)
    dy = (dy + mean).astype(np.float32)
    assert_promise(both(dy, x, gamma, beta), dy, x, gamma, beta)


@pytest.mark.parametrize("size", [1e-28, 1e-24, 1, 1e14, 1e16])
def test_squares_of_dy_may_go_out_of_range(size):
    """Whether dy needs centring is told by squares of g, which overflow from 1e19 on."""
    dy, x, gamma, beta = data((50, 800), np.float32, offset=5)
    dy = ((dy + 1e4) * size).astype(np.float32)
    for gain in (gamma, np.ones_like(gamma)):
        right, _ = promised(dy, x, gain, beta)
        assert norm_wise(both(dy, x, gain, beta).dx, right.dx) <= AT_LARGE


def test_promise_with_an_old_blas():
    """OpenBLAS's kernels for the oldest processors add up one number after the other."""
    code = (
        "from test_blocked import test_promise_with_many_rows as test\n"
        "for N, D in (400, 768), (300, 1023), (20, 16384):\n"
        "    for offset in (0, 1e4, 1e6, 1e7): test(N, D, offset, 0.5, 'varied')\n"
        "print('kept')"
    )
    environment = os.environ | {"OPENBLAS_CORETYPE": "Prescott"}  # other libraries ignore it
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "kept\n", done.stderr


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5])
def test_rows_of_every_size_in_one_array(eps):
    """One row out of range, and the reference does them all."""
    dy, _, gamma, beta = data((40, 33), np.float32)
    sizes = 10.0 ** np.linspace(-34, 34, 40)
    rng = np.random.default_rng(2)
    x = (sizes[:, None] * (rng.standard_normal((40, 33)) + 2)).astype(np.float32)
    out = np.empty_like(x)
    y, cache = blocked.layer_norm_forward(x, gamma, beta, eps, out=out)
    dx, *_ = blocked.layer_norm_backward(dy, cache)
    assert y is out
    assert_y_and_dx(Results(y, dx, None, None), dy, x, gamma, beta, eps, least=DENORMAL)


@pytest.mark.parametrize("row", [0, 299])
@pytest.mark.parametrize("size, blocks", [(1, True), (3000, False), (1e-5, False), (np.nan, False)])
def test_one_row_decides(size, blocks, row):
    _, x, gamma, beta = data((300, 1000), np.float32)  # two blocks
    x[row] *= size
    y, cache = blocked.layer_norm_forward(x, gamma, beta, 0)
    assert isinstance(cache, blocked.BlockedCache) == blocks
    right, _ = layer_norm_forward(x, gamma, beta, 0)
    assert norm_wise(np.delete(y, row, 0), np.delete(right, row, 0)) <= AT_LARGE
    assert np.array_equal(np.isfinite(y), np.isfinite(right))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_first_mean_that_is_far_off(dtype):
    """Constant rows of a number with many digits, and rows that are constant but for one entry."""
    x = np.full((70, 1000), 1e7 / 3, dtype)
    x[1::2, 7] += 1
    dy, _, gamma, beta = data((70, 1000), dtype)
    for eps in (0.01, 1e-5, 1e-12):
        right, scales = oracle(dy[:2], x[:2], gamma, beta, eps)
        got = both(dy, x, gamma, beta, eps)
        tolerance = AT_LARGE if dtype == np.float32 else 1e-14
        assert norm_wise(got.y[:2], right.y) <= tolerance
        assert norm_wise(got.dx[:2], right.dx, scales.dx) <= tolerance


@pytest.mark.parametrize("seed", [1, 3])
def test_a_rest_that_always_points_the_same_way(seed):
    """Every row is a quarter above a float32 number: dgamma must not be what two sums leave."""
    rng = np.random.default_rng(seed)
    pattern = rng.permuted(np.tile([0.0, 0, 0, 1], (200_000, 1)), axis=1)
    dy, _, gamma, beta = data(pattern.shape, seed=seed)
    dy += 5
    arrays = [a.astype(np.float32) for a in (dy, 1e7 + pattern, gamma, beta)]
    (right, _), got = promised(*arrays), both(*arrays)
    assert norm_wise(got.y, right.y) <= AT_LARGE
    assert (
        norm_wise(got.dgamma, right.dgamma) <= 1e-6
    )  # of sums that cancel to a 400th of their terms


@pytest.mark.parametrize("size, small", [(1e14, 1e-12), (1e-10, 1e-30), (1e16, 1e10), (1e5, 1e-30)])
def test_products_of_very_large_and_very_small_numbers(size, small):
    dy, x, gamma, beta = data((5, 64), np.float32, offset=2)
    dy, x = np.float32(small) * dy, np.float32(size) * x
    got = both(dy, x, gamma, beta, 0.0)
    right = assert_y_and_dx(got, dy, x, gamma, beta, eps=0.0)
    assert norm_wise(got.dgamma, right.dgamma) <= AT_LARGE


def test_dy_of_a_wider_dtype_keeps_its_range():
    dy, x, gamma, beta = data((3, 8))
    _, cache = blocked.layer_norm_forward(*(a.astype(np.float32) for a in (x, gamma, beta)))
    once, scaled = (blocked.layer_norm_backward(s * dy, cache) for s in (1, 1e-60))
    for a, b in zip(once, scaled):
        assert b.dtype == np.float64 and np.allclose(b, 1e-60 * a, rtol=1e-12, atol=1e-73)


def test_rows_that_go_out_of_range_raise_no_warnings():
    dy, x, gamma, beta = data((4, 6), np.float32)
    x *= 1e25
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        both(dy, x, gamma, beta)


BAD_OUT = {
    "list": (lambda x: x.tolist(), TypeError, "out must be an ndarray of dtype float64, got list"),
    "dtype": (lambda x: x.astype("f"), TypeError, "dtype float64, got float32"),
    "shape": (lambda x: x[:1].copy(), ValueError, r"shape \(2, 3\), got shape \(1, 3\)"),
    "strides": (np.asfortranarray, ValueError, "C-contiguous"),
    "read only": (lambda x: np.broadcast_to(x, (2, 3)), ValueError, "writable"),
    "x": (lambda x: x, ValueError, "must not overlap"),
    "a view of x": (lambda x: x[::-1][::-1], ValueError, "must not overlap"),
}


@pytest.mark.usefixtures("size_of_small")
@pytest.mark.parametrize("case", BAD_OUT)
def test_bad_out(case):
    make, error, message = BAD_OUT[case]
    x, ones = np.arange(6.0).reshape(2, 3), np.ones(3)
    before = x.copy()
    with pytest.raises(error, match=message):
        blocked.layer_norm_forward(x, ones, ones, out=make(x))
    _, cache = blocked.layer_norm_forward(x, ones, ones)
    with pytest.raises(error, match=message):
        blocked.layer_norm_backward(x, cache, out=make(x))
    dy = np.ones((2, 3))
    for taken in (dy, cache[0]):  # x or x_hat
        with pytest.raises(ValueError, match="must not overlap"):
            blocked.layer_norm_backward(dy, cache, out=taken)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("name", ["mean", "mean_lo", "rstd", "gamma"])
def test_out_in_the_cache(name):
    """One row of one number: the cache's arrays have the shape of dx."""
    _, cache = blocked.layer_norm_forward(np.ones((1, 1)), np.ones(1), np.ones(1))
    out = getattr(cache, name).reshape(1, 1)
    with pytest.raises(ValueError, match="must not overlap x, dy or the cache"):
        blocked.layer_norm_backward(np.ones((1, 1)), cache, out=out)


@pytest.mark.usefixtures("size_of_small")
@pytest.mark.parametrize("name", ["x", "gamma", "beta"])
def test_complex_is_refused(name):
    arguments = {"x": np.ones((2, 3)), "gamma": np.ones(3), "beta": np.ones(3)}
    arguments[name] = arguments[name] + 0j
    with pytest.raises(TypeError, match="must be real"):
        blocked.layer_norm_forward(**arguments)


def test_caches_are_not_mixed_up():
    dy, x, gamma, beta = data((2, 3))
    _, cache = blocked.layer_norm_forward(x, gamma, beta)
    with pytest.raises(TypeError, match="cache must be a LayerNormCache, got BlockedCache"):
        layer_norm_backward(dy, cache)
    with pytest.raises(TypeError, match="must be real"):
        blocked.layer_norm_backward(dy + 0j, cache)
    with pytest.raises(TypeError, match="cache must be a BlockedCache, got tuple"):
        blocked.layer_norm_backward(dy, tuple(cache))
