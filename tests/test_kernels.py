"""The CUDA kernels in the emulator: their numbers against float64, their bits, their bytes."""

import functools

import numpy as np
import pytest
from launches import (
    BACKWARD,
    HALF_TYPES,
    SIZES,
    T4,
    arrays,
    assert_rounded_once,
    emulate,
    mixed_types,
    to_stored,
)
from oracle import AT_LARGE, DENORMAL, Results, assert_promise, norm_wise, promised

from lnlib import gpu
from lnlib.emulator import FLUSHES
from lnlib.exercises.kernels import ORDERS
from lnlib.gpu import dispatch, emulated

# On a T4 the sums of long rows are in registers, or x and dy are read twice.
WAYS = [(kernel, emulated.SHARED_LIMIT) for kernel in BACKWARD]
WAYS += [(kernel, T4) for kernel in ("backward", "backward_single")]
each_way = pytest.mark.parametrize("kernel, shared_memory", WAYS, indirect=["shared_memory"])


@pytest.fixture
def shared_memory(request, monkeypatch):
    """Bytes of shared memory that a block can have."""
    monkeypatch.setattr(emulated, "SHARED_BYTES", request.param)


@pytest.fixture
def one_block(monkeypatch):
    """One block is resident: fewer rows are enough for it to have its fill."""
    monkeypatch.setattr(emulated, "BLOCKS", 1)


# ---- The promise ---------------------------------------------------------------------------------

# D, entries per load, shared memory: rows of every tile
TILES = [(D, None, emulated.SHARED_LIMIT) for D in [*SIZES, 300, 2049]]
TILES += [(100, 1, emulated.SHARED_LIMIT), (300, 1, emulated.SHARED_LIMIT)]
TILES += [(100, 4, emulated.SHARED_LIMIT)]
TILES += [(D, None, T4) for D in (768, 1000, 1500, 4000, 8192)]


@pytest.mark.parametrize("D, width, shared_memory", TILES, indirect=["shared_memory"])
def test_promise(D, width, shared_memory):
    offsets = np.resize([0, 1e6, 1e7], (7 if D < 4000 else 3, 1))  # one for each row
    case = arrays((len(offsets), D), seed=D, offset=offsets)
    case[0][1] += np.float32(1e4)  # the mean of dy
    assert_promise(emulate(*case, order=ORDERS[D % 3], width=width), *case)


@functools.cache
def biased(D):
    """Return dy, whose mean is far from 0, in rows with an offset, and the forward pass's cache."""
    bias, offset = np.tile([[-1e2, 1e3, 1e4, -1e4], [1e7, 0, 1e3, 1e7]], 3)[:, :10, None]
    dy, x, gamma, beta = arrays((10, D), seed=D, offset=offset)
    return dy + bias.astype(np.float32), gpu.emulate_forward(x, gamma, beta)[1]


GAMMAS = {"ones": (1, 0), "constant": (1.3, 0), "nearly constant": (1.3, 1e-4), "varied": (0, 1)}


@each_way
@pytest.mark.parametrize("gamma_is", GAMMAS)
def test_dx_keeps_the_promise_for_biased_dy(kernel, shared_memory, gamma_is):
    """The scale is the largest entry of dx: g centred once would lose a digit per 10."""
    level, spread = GAMMAS[gamma_is]
    for D in 33, 1100:
        dy, cache = biased(D)
        gamma = (level + spread * cache.gamma).astype(np.float32)
        dx, _, _ = gpu.emulate_backward(dy, cache._replace(gamma=gamma), kernel=kernel)
        truth = promised(dy, cache.x, gamma, gamma)[0].dx
        assert norm_wise(dx, truth, np.abs(truth).max(axis=-1, keepdims=True)) <= AT_LARGE


@pytest.mark.parametrize("kernel", ["backward", "backward_single", "backward_looping"])
def test_many_rows(one_block, kernel):
    """More than one block may add up in float32; a constant makes every rounding go one way."""
    rows = 120 if kernel == "backward_looping" else 800  # 120 show what 60 a block would not
    case = dy, x, gamma, beta = arrays((rows, 9), offset=1e3)
    dy += np.float32(5)
    dy[:, :5] = np.random.default_rng(0).uniform(4, 8, 5)
    assert_promise(emulate(*case, kernel=kernel), *case)


def test_many_columns_and_a_block_full_of_rows(one_block):
    case = arrays((dispatch.WARPS["backward"] * dispatch.ROWS_PER_GROUP, 128), offset=1e3)
    case[0][:] = np.random.default_rng(0).uniform(1, 2, 128)
    assert_promise(emulate(*case), *case)


def test_second_stage_alone():
    """4000 rows of partial sums of 33 columns, some of them constant: float32 would lose digits."""
    partial = np.random.default_rng(0).uniform(0.5, 1, (4000, 33)).astype(np.float32)
    partial[:, :20] = partial[0, :20]
    arguments = {"p": partial, "g": np.full(33, np.nan, np.float32)}
    arguments |= {"rows": np.int32(4000), "columns": np.int32(33)}
    second = gpu.Launch(gpu.read_source(), "column_sums<256, 8>", 5, 256, arguments)
    gradients = gpu.emulate(second, order="reverse")["g"]
    assert np.array_equal(gradients, partial.astype(np.float64).sum(axis=0).astype(np.float32))


# ---- The same bits -------------------------------------------------------------------------------

each_length = pytest.mark.parametrize("D", [33, 1100])


@each_length
@pytest.mark.parametrize("kernel", dispatch.FORWARD)
def test_forward_kernels_in_every_order(D, kernel):
    case = dy, *of_forward = arrays((10, D), offset=1e7)
    runs = [gpu.emulate_forward(*of_forward, kernel=kernel, order=order) for order in ORDERS]
    (first, cache), *others = runs
    for y, kept in others:
        assert np.array_equal(y, first) and all(map(np.array_equal, kept, cache))
    assert_promise((first, *gpu.emulate_backward(dy, cache)), *case)


@each_length
@each_way
def test_backward_kernels_in_every_order(D, kernel, shared_memory):
    """Right, and the same bits in every run and order; unless atomics add up as blocks come."""
    case = dy, *of_forward = arrays((10, D), offset=1e7)
    y, cache = gpu.emulate_forward(*of_forward)
    orders = [*ORDERS, "forward"]
    runs = [gpu.emulate_backward(dy, cache, kernel=kernel, order=order) for order in orders]
    for run in runs:
        assert_promise((y, *run), *case)
    same = [all(map(np.array_equal, runs[0], again)) for again in runs[1:]]
    assert same == ([False, False, True] if kernel == "backward_atomic" else [True] * 3)


# ---- Rows that are small, large or constant; what is kept ----------------------------------------


@pytest.mark.parametrize("eps", [0, 1e-38, 1.1e-30, 1e-20, 1e-5])
@pytest.mark.parametrize("kernel", dispatch.FORWARD)
def test_right_or_visibly_not_finite(eps, kernel):
    """Rows of all sizes that float32 has. Flushing takes at most 1e-22 of an x_hat."""
    sizes = 2.0 ** np.repeat(np.arange(-149, 129, 7), 2)[:, None]
    dy, x, gamma, _ = arrays((len(sizes), 64))
    with np.errstate(over="ignore"):
        x = (x * sizes).astype(np.float32)
    zero = np.zeros_like(gamma)
    y, cache = gpu.emulate_forward(x, gamma, zero, eps, kernel=kernel)
    dx, _, _ = gpu.emulate_backward(dy, cache)
    with np.errstate(invalid="ignore"):
        square = x.var(axis=-1, dtype=np.float64) + np.float64(np.float32(eps))
    kept = (square > 1e-30) & (square < 3e38)
    assert np.isnan(y[~kept]).all() and np.isnan(dx[~kept]).all()
    right, scales = promised(dy[kept], x[kept], gamma, zero, eps)
    assert (np.abs(y[kept] - right.y) <= AT_LARGE * scales.y + 1e-22).all()
    assert norm_wise(dx[kept], right.dx, scales.dx + DENORMAL) <= AT_LARGE
    assert not FLUSHES or not y[kept & (sizes[:, 0] < 2.0**-130)].any()


def test_constant_rows():
    dy, _, gamma, beta = arrays((2, 6))
    x = np.full((2, 6), 7.3, np.float32)
    got = emulate(dy, x, gamma, beta)
    assert np.array_equal(got.y, np.broadcast_to(beta, (2, 6))) and not got.dgamma.any()
    g = gamma * dy
    assert np.allclose(got.dx, (g - g.mean(axis=-1, keepdims=True)) / np.sqrt(1e-5), rtol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (2, 0, 5)])
def test_what_is_kept(shape):
    """The caller's arrays, and three numbers for each row; nothing of them is in double."""
    dy, *of_forward = arrays(shape)
    y, cache = gpu.emulate_forward(*of_forward)
    assert cache.x is of_forward[0] and cache.gamma is of_forward[1]
    for saved in cache.mean, cache.mean_lo, cache.rstd:
        assert saved.shape == (*shape[:-1], 1) and saved.dtype == np.float32
    results = Results(y, *gpu.emulate_backward(dy, cache))
    assert {a.dtype for a in results} == {np.dtype(np.float32)}


# ---- Bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel, array", [("backward", "gamma"), ("backward_looping", "x")])
def test_only_a_large_mean_takes_a_second_sum(kernel, array):
    """Each sum reads gamma; and x, where no registers hold it. So does what writes dx."""
    dy, x, gamma, beta = arrays((5, 1200))
    _, cache = gpu.emulate_forward(x, gamma, beta)
    for mean, sums in ((0, 1), (10, 2)):
        counts = {}
        gpu.emulate_backward(dy + np.float32(mean - 0.5), cache, kernel=kernel, counts=counts)
        assert counts[array].loaded == (sums + 1) * x.nbytes


@pytest.mark.parametrize("name", ["none", "dy", "x", "gamma", "beta"])
def test_unaligned_arrays_are_loaded_one_float_at_a_time(name):
    case = dict(zip(("dy", "x", "gamma", "beta"), arrays((4, 32))))
    if name in case:
        moved = np.empty(case[name].size + 1, np.float32)[1:].reshape(case[name].shape)
        moved[...] = case[name]
        case[name] = moved
    dy, x, gamma, beta = case.values()
    forward, backward = {}, {}
    y, cache = gpu.emulate_forward(x, gamma, beta, counts=forward)
    results = gpu.emulate_backward(dy, cache, counts=backward)
    assert_promise((y, *results), *case.values())
    assert forward["x"].loaded == backward["x"].loaded == 512
    assert forward["x"].loads == (128 if name in ("x", "gamma", "beta") else 32)
    assert backward["x"].loads == (128 if name in ("x", "gamma", "dy") else 32)
    if name == "x":
        with pytest.raises(ValueError, match="width must be 1, or 4 if rows start"):
            gpu.emulate_forward(x, gamma, beta, width=4)


# ---- Half types ----------------------------------------------------------------------------------

# Odd: one entry a load. 1024 and 3000 have longer tiles of the kernels that 40 has.
# The types differ in two conversions alone: gamma is float32 in every other case of each.
ROUNDED = [
    (name, bool((i + j) % 2), D)
    for i, name in enumerate(HALF_TYPES)
    for j, D in enumerate((33, 40, 17000))
]
ROUNDED += [(HALF_TYPES[k % len(HALF_TYPES)], False, D) for k, D in enumerate((1024, 3000))]


@pytest.mark.parametrize("name, mixed, D", ROUNDED)
def test_half_types_are_rounded_once(name, mixed, D):
    assert_rounded_once(emulate, name, mixed, 9 if D < 4000 else 2, D)


@mixed_types
@pytest.mark.parametrize("shared_memory", [T4], indirect=True)
@pytest.mark.parametrize("kernel", ["backward", "backward_looping"])
def test_half_types_in_every_kernel_and_order(shared_memory, kernel, mixed):
    for order in ORDERS:
        run = functools.partial(emulate, kernel=kernel, order=order)
        assert_rounded_once(run, "uint16", mixed, 9, 1000)


@pytest.mark.parametrize("name", HALF_TYPES)
def test_half_types_save_bytes(name):
    dy, x, gamma, beta = (to_stored(a, name) for a in arrays((9, 64)))
    counts = {}
    _, cache = gpu.emulate_forward(x, gamma, beta, counts=counts)
    gpu.emulate_backward(dy, cache, counts=counts)
    assert {"float16", "uint16"} <= set(HALF_TYPES)  # the table still has them
    assert counts["x"].loaded == 2 * x.nbytes and counts["y"].stored == x.nbytes
    assert counts["dx"].stored == counts["dy"].loaded == x.nbytes
    with pytest.raises(TypeError, match=f"gamma must have dtype {name}, got float64"):
        gpu.emulate_forward(x, gamma.astype(np.float64), beta)
    with pytest.raises(TypeError, match=f"beta must have dtype float32, got {name}"):
        gpu.emulate_forward(x, gamma.astype(np.float32), beta)
