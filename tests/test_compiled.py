"""The compiled loops: they keep the promise, whatever the shape, and with either kind of store."""

import numpy as np
import pytest
from layers import data, needs_compiler
from oracle import AT_LARGE, WORST, assert_promise

from lnlib import compiled


def assert_kept(dy, x, gamma, beta, stream=True, limit=AT_LARGE):
    """Hold the loops to the promise, with these arrays in float32."""
    case = dy, x, gamma, beta = [a.astype(np.float32) for a in (dy, x, gamma, beta)]
    y, dx = compiled.empty(x.shape), compiled.empty(x.shape)
    y[:], dx[:] = np.nan, np.nan
    sums = compiled.run_both(compiled.load(), *case, y, dx, stream)
    assert_promise((y, dx, *sums), *case, limit=limit)


@needs_compiler
@pytest.mark.parametrize("offset, mean_of_dy", [(0, 0), (1e5, 1e4), (1e7, 0)])
@pytest.mark.parametrize("D", [2, 3, 17, 64, 100, 768, 1025, 16384])
def test_the_promise(D, offset, mean_of_dy):
    dy, *others = data((37, D), seed=D, offset=offset)
    for stream in (True, False):
        assert_kept(dy + mean_of_dy, *others, stream)


@needs_compiler
@pytest.mark.parametrize("D", [64, 1000, 16384])
def test_rows_with_an_outlier_and_dy_along_x_hat(D):
    _, x, gamma, beta = data((20, D))
    x = np.where(np.arange(D) % 2, -1.0, 1.0) * np.abs(x[:, :1])
    x[:10, 0], x[10:, D // 2] = D**0.5, 100
    dy = x - x.mean(axis=-1, keepdims=True)
    dy[::2] = np.sign(dy[::2])
    assert_kept(dy, 1e5 + x, gamma, beta, limit=WORST)


@needs_compiler
def test_columns_of_many_rows():
    _, x, gamma, beta = data((50_000, 16))
    assert_kept(1 + x, x, gamma, beta)  # the terms of either sum have a mean


@needs_compiler
@pytest.mark.parametrize("offset", [0, 1e5])
def test_rows_that_begin_far_from_their_mean(offset):
    dy, x, gamma, beta = data((20, 768), offset=offset)
    x[:, :64] += np.linspace(1, 1000, 20)[:, None]
    assert_kept(dy, x, gamma, beta)


@needs_compiler
def test_copy():
    x = np.arange(520, dtype=np.float32).reshape(5, 104)
    for stream in (False, True):
        y = np.zeros_like(x)
        compiled.load()("copy", x, y, *x.shape, stream)
        assert np.array_equal(x, y)


@needs_compiler
def test_arrays_with_gaps_are_refused():
    with pytest.raises(ValueError, match="C-contiguous"):
        compiled.load()(
            "copy", np.ones((4, 4), np.float32)[:, ::2], compiled.empty((4, 2)), 4, 2, False
        )


def test_empty_begins_on_a_line():
    for shape in (7, (3, 5), (64, 768)):
        array = compiled.empty(shape)
        assert array.ctypes.data % compiled.LINE == 0 and array.dtype == np.float32
        assert array.shape == np.empty(shape).shape and array.flags.c_contiguous


@pytest.mark.parametrize("command", [None, ["false"]])
def test_without_a_compiler_that_works_there_is_nothing_to_call(monkeypatch, command):
    monkeypatch.setattr(compiled, "compiler", lambda: command)
    assert compiled.load(f"-D{command}") is None
