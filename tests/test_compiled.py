"""The compiled loops: what is theirs alone.

That they keep the promise is also in test_promise.py and test_layernorm.py, as for each layer.
"""

import numpy as np
import pytest
from layers import needs_compiler
from oracle import AT_LARGE, fractions

from lnlib import compiled, layer_norm_forward

rng = np.random.default_rng(60)


def passes(dy, x, gamma, beta, stream, shift=0):
    """Run both passes; the results begin shift numbers behind the start of a line of memory."""
    y, dx = (compiled.empty(x.size + shift)[shift:].reshape(x.shape) for _ in range(2))
    y[:], dx[:] = np.nan, np.nan
    return y, dx, *compiled.run_both(compiled.load(), dy, x, gamma, beta, y, dx, stream)


@needs_compiler
@pytest.mark.parametrize("D", [2, 3, 17, 64, 100, 768, 1025, 3085, 16384])
def test_either_kind_of_store_writes_the_same(D):
    gamma, beta = (0.5 + rng.standard_normal((2, D))).astype(np.float32)
    dy, x = (m + rng.standard_normal((37, D), dtype=np.float32) for m in (1e4, 1e5))
    results = [passes(dy, x, gamma, beta, stream) for stream in (True, False)]
    results.append(passes(dy, x, gamma, beta, True, shift=5))
    assert all(np.array_equal(a, b) for other in results[1:] for a, b in zip(results[0], other))
    for errors in fractions(results[0], dy, x, gamma, beta):
        assert errors.max() <= AT_LARGE


@needs_compiler
@pytest.mark.parametrize("offset", [0, 1e5])
def test_rows_that_begin_far_from_their_mean(offset):
    dy, x = rng.standard_normal((2, 20, 768))
    x[:, :64] += np.linspace(1, 1000, 20)[:, None]
    dy, x = dy.astype(np.float32), (offset + x).astype(np.float32)
    gamma, beta = rng.uniform(0.5, 2, (2, 768)).astype(np.float32)
    for errors in fractions(passes(dy, x, gamma, beta, True), dy, x, gamma, beta):
        assert errors.max() <= AT_LARGE


@needs_compiler
def test_the_plain_loop():
    gamma, beta = rng.standard_normal((2, 100)).astype(np.float32)
    x = rng.standard_normal((7, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    compiled.load()("plain", x, gamma, beta, y, *x.shape)
    expected, _ = layer_norm_forward(x, gamma, beta)
    assert np.allclose(y, expected, rtol=0, atol=1e-5)


@needs_compiler
def test_copy():
    x = rng.standard_normal((5, 104)).astype(np.float32)
    for stream, start in ((False, 0), (True, 0), (True, 3)):
        y = compiled.empty(x.size + start)[start:].reshape(x.shape)
        y[:] = 0
        compiled.load()("copy", x, y, *x.shape, stream)
        assert np.array_equal(x, y)


@needs_compiler
def test_each_walk_goes_to_where_it_stands():
    order = rng.permutation(60)
    following = np.zeros(60, np.int64)
    following[order] = np.roll(order, -1)
    for walks in (1, 3, 4):
        at = order[:: 60 // walks].copy()
        compiled.load()("walk", following, at, walks, 7)
        assert np.array_equal(at, np.roll(order, -7)[:: 60 // walks])


@needs_compiler
@pytest.mark.parametrize(
    "x", [np.ones((4, 4), np.float32)[:, ::2], np.zeros(33, np.int8)[1:].view(np.float32)]
)
def test_arrays_with_gaps_or_between_addresses_are_refused(x):
    with pytest.raises(ValueError, match="C-contiguous and aligned"):
        compiled.load()("copy", x, compiled.empty((4, 2)), 4, 2, False)


def test_empty_begins_on_a_line():
    for shape in (7, (3, 5), (64, 768)):
        array = compiled.empty(shape)
        assert array.ctypes.data % compiled.LINE == 0 and array.dtype == np.float32
        assert array.shape == np.empty(shape).shape and array.flags.c_contiguous


@pytest.mark.parametrize("command", [None, ["false"]])
def test_without_a_compiler_that_works_there_is_nothing_to_call(monkeypatch, command):
    monkeypatch.setattr(compiled, "compiler", lambda: command)
    assert compiled.load(f"-D{command}") is None
