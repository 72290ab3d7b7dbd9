"""The CUDA kernels on a GPU, held to the course's promise. Without a GPU there is nothing to do."""

import functools

import numpy as np
import pytest
from launches import BACKWARD, HALF_TYPES, SIZES, T4, arrays, assert_rounded_once, mixed_types
from oracle import AT_LARGE, assert_promise

from lnlib import gpu
from lnlib.gpu import live


@pytest.fixture(autouse=True)
def a_gpu():
    if not gpu.available():  # asked here: it takes a second to import CuPy
        pytest.skip("needs a GPU")


def on_gpu(dy, x, gamma, beta, kernel="backward", width=None):
    import cupy as cp

    dy, x, gamma, beta = map(cp.asarray, (dy, x, gamma, beta))
    y, cache = gpu.layer_norm_forward(x, gamma, beta, width=width)
    return [a.get() for a in (y, *gpu.layer_norm_backward(dy, cache, kernel=kernel, width=width))]


@pytest.mark.parametrize("D", SIZES)
@pytest.mark.parametrize("offset", [0, 1e3, 1e6, 1e7])
def test_promise(D, offset):
    case = arrays((300, D), seed=D, offset=offset)
    assert_promise(on_gpu(*case), *case)
    assert_promise(on_gpu(*case, width=1), *case)


@pytest.mark.parametrize("kernel", BACKWARD)
def test_every_kernel(kernel):
    case = arrays((600 if kernel == "backward_single" else 5000, 520), offset=1e4)
    results = [on_gpu(*case, kernel=kernel) for _ in range(3)]
    # float32 sums one by one over 5000 rows: up to 4.5e-6 in simulations of many orders
    assert_promise(results[0], *case, sums=1e-5 if kernel == "backward_atomic" else AT_LARGE)
    if kernel != "backward_atomic":
        for again in results[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(results[0], again))


@pytest.mark.parametrize("name", HALF_TYPES)
@mixed_types
@pytest.mark.parametrize("kernel", ["backward", "backward_looping"])
@pytest.mark.parametrize("D", SIZES)
def test_half_types(name, mixed, kernel, D):
    for width in (None, 1):
        run = functools.partial(on_gpu, kernel=kernel, width=width)
        assert_rounded_once(run, name, mixed, 300, D)


@pytest.mark.parametrize("D", [500, 768, 1000, 1024, 4096, 8192, 16384])
def test_both_places_of_the_sums(monkeypatch, D):
    """A GPU with much shared memory runs what one with little would, too."""
    case = arrays((300, D), seed=D, offset=1e4)
    here = live.backend()
    for limit in T4, here.shared_limit():
        other = here._replace(shared_limit=lambda limit=limit: limit)
        monkeypatch.setattr(live, "backend", lambda other=other: other)
        assert_promise(on_gpu(*case), *case)


def test_a_million_rows():
    case = arrays((1_000_000, 8), offset=1e7)
    case[0][:] += 5
    assert_promise(on_gpu(*case), *case)


def test_what_it_cannot_read_is_refused():
    import cupy as cp

    x = cp.ones((4, 4), cp.float32)
    with pytest.raises(TypeError, match="x must be a cupy.ndarray"):
        gpu.layer_norm_forward(x.get(), x[0], x[0])
    with pytest.raises(ValueError, match="x must be C-contiguous"):
        gpu.layer_norm_forward(x[:, ::2], x[0, :2], x[0, :2])
