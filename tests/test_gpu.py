"""The CUDA kernels: emulated against float64, compiled for each generation, and run on a GPU."""

import contextlib
import functools
import itertools
import json
import re
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from layers import data
from oracle import AT_LARGE, DENORMAL, assert_promise, norm_wise, oracle

import lnlib
from lnlib import gpu
from lnlib.gpu import benchmark, dispatch, emulated, live, nvrtc, passes, residency

ORDERS = ["forward", "reverse", 1]
BACKWARD = ["backward", "backward_single", "backward_atomic", "backward_looping"]
LOOPING = "row_means", "backward_columns"  # the kernels of backward_looping
HALF_TYPES = [name for name in dispatch.STORED if name != "float32" and hasattr(np, name)]
BITS = {"float16": (5, 10), "uint16": (8, 7), "bfloat16": (8, 7)}  # of exponent and mantissa
T4 = 64 * 1024  # bytes of shared memory that a block can have


def arrays(shape, **how):
    return data(shape, np.float32, **how)


def emulate(dy, x, gamma, beta, eps=1e-5, order="forward", kernel="backward", **how):
    y, cache = gpu.emulate_forward(x, gamma, beta, eps, order=order, **how)
    return y, *gpu.emulate_backward(dy, cache, order=order, kernel=kernel, **how)


def emulate_backward_changed(source, changed, dy, cache, order="forward"):
    """Run the backward pass with another source for one of its kernels; no other is compiled."""
    usual, other = emulated.backend(order), emulated.backend(order, source)
    names = LOOPING if changed == "backward_looping" else (changed,)

    def run(chosen, *launch):
        (other if chosen.kernel in names else usual).run(chosen, *launch)

    kernel = "backward_looping" if changed in LOOPING else changed
    kernel = kernel if kernel in BACKWARD else "backward"
    return passes.backward(usual._replace(run=run), dy, cache, kernel)


SIZES = [1, 2, 7, 31, 32, 33, 127, 1000, 1024, 4097, 8192, 16384, 20000]


@pytest.mark.parametrize("D", SIZES)
def test_promise(D):
    offsets = np.resize([0, 1e6, 1e7], (7 if D < 4000 else 3, 1))  # one for each row
    case = arrays((len(offsets), D), seed=D, offset=offsets)
    assert_promise(emulate(*case, order=ORDERS[SIZES.index(D) % 3]), *case)


@functools.cache
def biased(D):
    """Return dy, whose mean is far from 0, in rows with an offset, and the forward pass's cache."""
    bias, offset = np.tile([[-1e2, 1e3, 1e4, -1e4], [1e7, 0, 1e3, 1e7]], 3)[:, :10, None]
    dy, x, gamma, beta = arrays((10, D), seed=D, offset=offset)
    return dy + bias.astype(np.float32), gpu.emulate_forward(x, gamma, beta)[1]


def error_of_dx(dx, dy, cache):
    """Return the largest error of dx, relative to the largest entry of its row."""
    wide = [a.astype(np.float64) for a in (cache.x, cache.gamma, cache.gamma)]
    _, exact = lnlib.layer_norm_forward(*wide, float(np.float32(1e-5)))
    truth = lnlib.layer_norm_backward(dy.astype(np.float64), exact)[0]
    return norm_wise(dx, truth, np.abs(truth).max(axis=-1, keepdims=True))


GAMMAS = {"ones": (1, 0), "constant": (1.3, 0), "nearly constant": (1.3, 1e-4), "varied": (0, 1)}


@pytest.mark.parametrize("kernel", BACKWARD)
@pytest.mark.parametrize("gamma_is", GAMMAS)
def test_dx_keeps_the_promise_for_biased_dy(kernel, gamma_is):
    """The scale is the largest entry of dx: g centred once would lose a digit per 10."""
    level, spread = GAMMAS[gamma_is]
    for D in 33, 1100:
        dy, cache = biased(D)
        cache = cache._replace(gamma=(level + spread * cache.gamma).astype(np.float32))
        dx = gpu.emulate_backward(dy, cache, kernel=kernel)[0]
        assert error_of_dx(dx, dy, cache) <= AT_LARGE


WITHOUT = {
    "the first centring": (r"-of\.mean\)", "0)", 1),
    "the second centring": (r"Means\{mean, sums\.x \* one_over_D", "Means{mean, 0", 1),
    "a single rounding": (r"fmaf\((.*), (.*), -(of\.mean|less)\)", r"\1 * \2 - \3", 2),
}


@pytest.mark.parametrize("missing", WITHOUT)
@pytest.mark.parametrize("kernel", ["backward", "backward_looping"])
def test_what_keeps_the_promise_for_biased_dy(kernel, missing):
    """Take it out, and the test above would fail."""
    source, found = re.subn(*WITHOUT[missing][:2], gpu.read_source())
    assert found == WITHOUT[missing][2]
    dy, cache = biased(1100)
    cache = cache._replace(gamma=np.full(1100, 1.3, np.float32))
    dx = emulate_backward_changed(source, kernel, dy, cache)[0]
    assert error_of_dx(dx, dy, cache) > 10 * AT_LARGE


@pytest.mark.parametrize("kernel, array", [("backward", "gamma"), ("backward_looping", "x")])
def test_only_a_large_mean_takes_a_second_sum(kernel, array):
    """Each sum reads gamma; and x, where no registers hold it. So does what writes dx."""
    dy, x, gamma, beta = arrays((5, 1200))
    _, cache = gpu.emulate_forward(x, gamma, beta)
    for mean, sums in ((0, 1), (10, 2)):
        counts = {}
        gpu.emulate_backward(dy + np.float32(mean - 0.5), cache, kernel=kernel, counts=counts)
        assert counts[array].loaded == (sums + 1) * x.nbytes


@pytest.mark.parametrize("D, width", [(100, 1), (300, 1), (2049, 1), (8190, 1), (100, 4), (300, 4)])
def test_every_configuration_and_width(D, width):
    case = arrays((3, D), seed=D, offset=1e4)
    assert_promise(emulate(*case, width=width), *case)


@pytest.fixture
def small_shared_memory(monkeypatch):
    """What a T4 has: sums of long rows are in registers, or x and dy are read twice."""
    monkeypatch.setattr(emulated, "SHARED_BYTES", T4)


@pytest.mark.parametrize("D", [500, 768, 1000, 1500, 4000, 8192, 8195, 16384])
def test_promise_with_little_shared_memory(small_shared_memory, D):
    case = arrays((7 if D < 4000 else 4, D), seed=D, offset=1e7)
    case[0][1] += np.float32(1e4)
    assert_promise(emulate(*case, order=D % 3), *case)


@pytest.mark.parametrize("kernel", ["backward", "backward_single"])
def test_sums_in_registers(small_shared_memory, kernel):
    """The same bits in every order, and the biased dy of the promise."""
    dy, cache = biased(1100)
    runs = [gpu.emulate_backward(dy, cache, kernel=kernel, order=order) for order in ORDERS]
    assert all(map(np.array_equal, runs[0] + runs[0], runs[1] + runs[2]))
    assert error_of_dx(runs[0][0], dy, cache) <= AT_LARGE
    in_shared = emulated.backend()._replace(shared_limit=lambda: emulated.SHARED_LIMIT)
    for sums, again in zip(runs[0][1:], passes.backward(in_shared, dy, cache)[1:]):
        assert np.abs(sums - again).max() <= 1e-6 * np.abs(again).max()


@pytest.mark.parametrize("D", [33, 1100])
@pytest.mark.parametrize("kernel", dispatch.FORWARD + dispatch.BACKWARD)
def test_every_kernel_in_every_order(D, kernel):
    """Right, and the same bits in every run and order; unless atomics add up as blocks come."""
    case = dy, x, gamma, beta = arrays((10, D), offset=1e7)
    y, cache = gpu.emulate_forward(x, gamma, beta)
    every = []
    for order in [*ORDERS, "forward"]:
        if kernel in dispatch.FORWARD:
            y, cache = gpu.emulate_forward(x, gamma, beta, kernel=kernel, order=order)
            every.append((y, *cache[1:4]))
        else:
            every.append(gpu.emulate_backward(dy, cache, kernel=kernel, order=order))
            assert_promise((y, *every[-1]), *case)
    if kernel in dispatch.FORWARD:
        assert_promise((y, *gpu.emulate_backward(dy, cache)), *case)
    same = [all(map(np.array_equal, every[0], again)) for again in every[1:]]
    assert same == ([False, False, True] if kernel == "backward_atomic" else [True] * 3)


@pytest.fixture
def one_block(monkeypatch):
    """One block is resident: fewer rows are enough for it to have its fill."""
    monkeypatch.setattr(emulated, "BLOCKS", 1)


@pytest.mark.parametrize("kernel", ["backward", "backward_single", "backward_looping"])
def test_many_rows(one_block, kernel):
    """More than one block may add up in float32; a constant makes every rounding go one way."""
    rows = 120 if kernel == "backward_looping" else 800  # 120 show what 60 a block would not
    case = dy, x, gamma, beta = arrays((rows, 9), offset=1e3)
    dy += np.float32(5)
    dy[:, :5] = np.random.default_rng(0).uniform(4, 8, 5)
    assert_promise(emulate(*case, kernel=kernel), *case)


def test_second_stage_alone():
    """4000 rows of partial sums of 33 columns, some of them constant: float32 would lose digits."""
    partial = np.random.default_rng(0).uniform(0.5, 1, (4000, 33)).astype(np.float32)
    partial[:, :20] = partial[0, :20]
    arguments = {"p": partial, "g": np.full(33, np.nan, np.float32)}
    arguments |= {"rows": np.int32(4000), "columns": np.int32(33)}
    second = gpu.Launch(gpu.read_source(), "column_sums<256, 8>", 5, 256, arguments)
    gradients = gpu.emulate(second, order="reverse")["g"]
    assert np.array_equal(gradients, partial.astype(np.float64).sum(axis=0).astype(np.float32))


def test_many_columns_and_a_block_full_of_rows(one_block):
    case = arrays((dispatch.WARPS["backward"] * dispatch.ROWS_PER_GROUP, 128), offset=1e3)
    case[0][:] = np.random.default_rng(0).uniform(1, 2, 128)
    assert_promise(emulate(*case), *case)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5), (2, 0, 5)])
def test_any_leading_axes(shape):
    case = arrays(shape)
    y, cache = gpu.emulate_forward(*case[1:])
    dx, dgamma, dbeta = gpu.emulate_backward(case[0], cache)
    assert y.shape == dx.shape == shape and dgamma.shape == dbeta.shape == (5,)
    saved = cache[1:4]
    assert cache.x is case[1] and cache.gamma is case[2]
    assert {a.shape for a in saved} == {(*shape[:-1], 1)}
    assert {a.dtype for a in (y, dx, dgamma, dbeta, *saved)} == {np.dtype(np.float32)}
    if 0 in shape:
        assert not dgamma.any() and not dbeta.any()
    else:
        assert_promise((y, dx, dgamma, dbeta), *case)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("D", [6, 600])
def test_bad_values_spoil_their_row_only(bad, D):
    case = dy, x, gamma, beta = arrays((4, D))
    clean = emulate(*case)
    x[2, 3] = bad
    spoiled = emulate(*case)
    others = [0, 1, 3]
    for k in (0, 1):
        assert np.isnan(spoiled[k][2]).all()
        assert np.array_equal(spoiled[k][others], clean[k][others])


SCALES = [1e-42, 1e-30, 1e-19, 1e-17, 1e-15, 1e-3, 1e6, 1e18, 1e20, 3e38]


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("kernel", ["forward", "forward_looping"])
def test_right_or_visibly_not_finite(eps, kernel):
    """Three rows of each size."""
    dy, _, gamma, beta = arrays((30, 7))
    x = np.random.default_rng(1).uniform(-1, 1, (30, 7)) * np.repeat(SCALES, 3)[:, None]
    x = x.astype(np.float32)
    every_y, cache = gpu.emulate_forward(x, gamma, beta, eps, kernel=kernel)
    every_dx = gpu.emulate_backward(dy, cache)[0]
    for k, scale in enumerate(SCALES):
        rows = slice(3 * k, 3 * k + 3)
        y, dx, _, _, bound = oracle(dy[rows], x[rows], gamma, beta, eps)
        got_y, got_dx = every_y[rows], every_dx[rows]
        if scale < 1e19 and (eps > 0 or scale > 3e-15):
            assert norm_wise(got_y, y) <= AT_LARGE, scale
            assert norm_wise(got_dx, dx, bound + DENORMAL) <= AT_LARGE, scale
        else:
            assert np.isnan(got_y).all() and np.isnan(got_dx).all(), scale


def test_constant_rows():
    dy, _, gamma, beta = arrays((2, 6))
    x = np.full((2, 6), 7.3, np.float32)
    y, dx, dgamma, _ = emulate(dy, x, gamma, beta)
    assert np.array_equal(y, np.broadcast_to(beta, (2, 6))) and not dgamma.any()
    g = gamma * dy
    assert np.allclose(dx, (g - g.mean(axis=-1, keepdims=True)) / np.sqrt(1e-5), rtol=1e-5)


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


def to_stored(a, name):
    """Round numbers to the nearest of a type: a search in all numbers >= 0 that it has."""
    assert name in BITS, f"BITS needs how many bits of exponent and of mantissa {name} has"
    exponent_bits, mantissa_bits = BITS[name]
    exponent, mantissa = np.divmod(
        np.arange(2 ** (exponent_bits + mantissa_bits)), 2**mantissa_bits
    )
    power = exponent - mantissa_bits - 2 ** (exponent_bits - 1) + 1
    numbers = np.where(exponent, 2**mantissa_bits + mantissa, 2 * mantissa) * 2.0**power
    nearest = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(a))
    sign = np.signbit(a).astype(int) << exponent_bits + mantissa_bits
    return (nearest | sign).astype(f"u{np.dtype(name).itemsize}").view(name), numbers


def to_float(a, numbers):
    """Return float64 from the numbers of a type, of which those >= 0 are given in order."""
    bits = a.view(f"u{a.itemsize}").astype(int)
    return numbers[bits % len(numbers)] * np.where(bits < len(numbers), 1, -1)


def assert_rounded_once(run, name, mixed, rows, D):
    """Each entry is within half an ulp, but for the promise of the float32 arithmetic.

    If mixed, gamma and beta are float32, and so are dgamma and dbeta.
    """
    given = arrays((rows, D), seed=D, offset=3)
    stored, numbers = [to_stored(a, name)[0] for a in given], to_stored(given[0], name)[1]
    case = stored[:2] + (given if mixed else stored)[2:]
    dy, x, gamma, beta = (a if a.dtype == np.float32 else to_float(a, numbers) for a in case)
    y, cache = lnlib.layer_norm_forward(x, *np.float64((gamma, beta)), eps=float(np.float32(1e-5)))
    for result, exact in zip(run(*case), (y, *lnlib.layer_norm_backward(dy, cache))):
        bound = 2 * AT_LARGE * np.abs(exact).max()
        if mixed and result.ndim == 1:
            assert result.dtype == np.float32
        else:
            assert result.dtype == name
            k = np.searchsorted(numbers, np.abs(exact))  # the neighbours are numbers k - 1 and k
            bound = bound + (numbers[k] - numbers[np.maximum(k - 1, 0)]) / 2  # half an ulp
            result = to_float(result, numbers)
        assert (np.abs(result - exact) <= bound).all()


mixed_types = pytest.mark.parametrize("mixed", [False, True], ids=["", "gamma float32"])


# Odd: one entry a load. 601, 1024 and 3000 have longer tiles of the kernels that 33 and 40 have.
# The types differ in two conversions alone: in turn, each has 33, 40 and 17000 once or twice.
ROUNDED = [(mixed, D) for mixed in (False, True) for D in (33, 40, 17000)]
ROUNDED += [(False, D) for D in (601, 1024, 3000)]


@pytest.mark.parametrize("k", range(len(ROUNDED)))
def test_half_types_are_rounded_once(k):
    mixed, D = ROUNDED[k]
    name = HALF_TYPES[k % len(HALF_TYPES)]
    assert_rounded_once(emulate, name, mixed, 9 if D < 4000 else 2, D)


@mixed_types
@pytest.mark.parametrize("kernel", ["backward", "backward_looping"])
def test_half_types_in_every_kernel_and_order(small_shared_memory, kernel, mixed):
    for order in ORDERS:
        run = functools.partial(emulate, kernel=kernel, order=order)
        assert_rounded_once(run, "uint16", mixed, 9, 1000)


@pytest.mark.parametrize("name", HALF_TYPES)
def test_half_types_save_bytes(name):
    dy, x, gamma, beta = (to_stored(a, name)[0] for a in arrays((9, 64)))
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


# ---- Occupancy -----------------------------------------------------------------------------------


def test_resident_blocks_by_the_documented_formula():
    """Worked by hand from the tables of the CUDA programming guide."""
    resident = residency.resident_blocks
    assert resident("sm_90", 64, 40) == (24, "registers")  # 16384 // 1280 = 12 warps a quarter
    assert resident("sm_90", 256, 128, 64 * 1024) == (2, "registers")
    assert resident("sm_90", 512, 64, 100 * 1024) == (2, "registers")
    assert resident("sm_75", 256, 128, 64 * 1024) == (1, "shared memory")
    assert resident("sm_75", 1024, 64) == (1, "threads")  # the registers are full, too
    assert resident("sm_86", 32, 16) == (16, "blocks")
    assert resident("sm_89", 512, 32) == (3, "threads")
    assert resident("sm_80", 128, 32, 32 * 1024) == (4, "shared memory")  # 164 // (32 + 1)
    with pytest.raises(ValueError, match="arch must be one of sm_70, .*, got 'sm_60'"):
        resident("sm_60", 64, 40)


# ---- Arguments: the emulator and the GPU share these checks --------------------------------------

X = np.ones((2, 3), np.float32)
ROW = np.ones(3, np.float32)
BAD_FORWARD = {
    "x list": ({"x": [[1.0]]}, TypeError, "x must be a numpy.ndarray, got list"),
    "x float64": ({"x": np.ones((2, 3))}, TypeError, "dtypes float32.*, got float64"),
    "x swapped": ({"x": X.astype(">f4")}, TypeError, "dtypes float32.*, got >f4"),
    "D is 0": ({"x": X[:, :0]}, ValueError, "D >= 1"),
    "x transposed": ({"x": np.ones((3, 2), np.float32).T}, ValueError, "x must be C-contiguous"),
    "gamma float64": ({"gamma": np.ones(3)}, TypeError, "gamma must have dtype float32"),
    "gamma length": ({"gamma": ROW[:2]}, ValueError, r"gamma must have shape \(3,\)"),
    "gamma strided": ({"gamma": np.ones(6, np.float32)[::2]}, ValueError, "gamma must be C-contig"),
    "beta matrix": ({"beta": ROW[None]}, ValueError, r"beta must have shape \(3,\)"),
    "beta None": ({"beta": None}, TypeError, "beta must be a numpy.ndarray, got NoneType"),
    "eps negative": ({"eps": -1e-5}, ValueError, "eps must be finite and not negative"),
    "kernel": ({"kernel": "backward"}, ValueError, "kernel must be one of forward, forward_loop"),
    "width": ({"width": 2}, ValueError, "width must be 1, or 4"),
    "width 4": ({"width": 4}, ValueError, "width must be 1, or 4"),
    "width True": ({"width": True}, ValueError, "width must be 1, or 4"),
    "x masked": ({"x": np.ma.masked_equal(X, 1)}, TypeError, "numpy.ndarray, got MaskedArray"),
    "order": ({"order": "sideways"}, ValueError, 'order must be "forward", "reverse" or an int'),
}


@pytest.mark.parametrize("case", BAD_FORWARD)
def test_bad_forward_arguments(case):
    change, error, message = BAD_FORWARD[case]
    with pytest.raises(error, match=message):
        gpu.emulate_forward(**({"x": X, "gamma": ROW, "beta": ROW} | change))


BAD_BACKWARD = {
    "dy float64": ({"dy": np.ones((2, 3))}, TypeError, "dy must have dtype float32"),
    "dy shape": ({"dy": ROW}, ValueError, r"dy must have shape \(2, 3\), to fit x"),
    "dy strided": ({"dy": np.asfortranarray(X)}, ValueError, "dy must be C-contiguous"),
    "cache": ({"cache": (X, X, X, X)}, TypeError, "cache must be a lnlib.gpu.Cache, got tuple"),
    "cache mean": ({"cache": gpu.Cache(X, np.ones((2, 1)), X[:, :1], X[:, :1], ROW)}, TypeError,
                   "cache.mean must have dtype float32, got float64"),
    "kernel": ({"kernel": "forward"}, ValueError, "kernel must be one of backward, "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_BACKWARD)
def test_bad_backward_arguments(case):
    change, error, message = BAD_BACKWARD[case]
    _, cache = gpu.emulate_forward(X, ROW, ROW)
    with pytest.raises(error, match=message):
        gpu.emulate_backward(**({"dy": X, "cache": cache} | change))


@pytest.mark.parametrize("shape", [(2**31, 1), (1, 2**30)])
def test_sizes_beyond_the_kernels_integers(shape):
    huge = SimpleNamespace(
        shape=shape, ndim=2, size=shape[0] * shape[1], dtype=np.dtype(np.float32),
        flags=SimpleNamespace(c_contiguous=True),
    )  # fmt: skip
    backend = emulated.backend()._replace(xp=SimpleNamespace(ndarray=SimpleNamespace))
    with pytest.raises(ValueError, match=r"x must have D < 2\*\*30 and fewer than 2\*\*31 rows"):
        passes.forward(backend, huge, ROW, ROW, 1e-5)


def test_nothing_is_changed_in_place():
    case = arrays((3, 5))
    copies = [a.copy() for a in case]
    for array in case:
        array.flags.writeable = False
    emulate(*case)
    assert all(np.array_equal(a, b) for a, b in zip(case, copies))


# ---- Configurations ------------------------------------------------------------------------------


def test_rows_too_long_for_the_chip_are_read_again():
    def chosen(kernel, D, width, limit=227 * 1024):
        return dispatch.choose(kernel, D, width, limit).expression

    assert chosen("forward", 16384, 4) == "forward<512, 8, 4, 1>"
    assert chosen("forward", 16385, 1) == "forward_looping<256, 1>"
    assert chosen("forward", 128, 4) == "forward<32, 1, 4, 4>"
    assert chosen("backward", 16384, 4) == "backward<512, 8, 4, 1, 1, IN_SHARED>"
    assert chosen("backward", 16384, 1) == "backward_columns<256, 1>"
    assert chosen("backward", 1024, 4) == "backward<32, 8, 4, 8, 2, IN_SHARED>"
    # older and smaller GPUs have less shared memory: 64 KiB, or 99
    for limit in T4, 99 * 1024:
        assert chosen("backward", 512, 4, limit) == "backward<32, 4, 4, 8, 2, IN_SHARED>"
        assert chosen("backward", 768, 4, limit) == "backward<64, 3, 4, 1, 12, IN_REGISTERS>"
        assert chosen("backward", 4096, 4, limit) == "backward<512, 2, 4, 1, 2, IN_REGISTERS>"
        assert chosen("backward", 8192, 4, limit) == "backward<1024, 2, 4, 1, 1, IN_REGISTERS>"
        assert chosen("backward", 16384, 4, limit) == "backward_columns<256, 4>"
    assert chosen("backward_looping", 64, 4) == "backward_columns<256, 4>"
    mixed = dispatch.types_of("uint16", "float32")
    name = dispatch.choose("backward", 768, 8, T4, mixed).expression  # 12 is not a multiple of 8
    assert name == "backward<128, 1, 8, 1, 8, IN_REGISTERS, __nv_bfloat16, float>"
    for kernel, D in ("backward_single", 16385), ("backward_atomic", 16385):
        with pytest.raises(ValueError, match=f"{kernel} cannot hold rows of {D} entries"):
            dispatch.choose(kernel, D, 1)
    with pytest.raises(ValueError, match="backward_atomic is for float32"):
        dispatch.choose("backward_atomic", 64, 8, types=("__half",))


@pytest.mark.parametrize("limit", [64 * 1024, 99 * 1024, 227 * 1024])
@pytest.mark.parametrize("dtype", ["float32", *HALF_TYPES])
def test_whatever_can_be_launched_is_compiled(dtype, limit):
    names, types = set(dispatch.every(limit, dtype)), dispatch.types_of(dtype, dtype)
    sizes = [1, 100, 128, 129, 513, 768, 1000, 4097, 8192, 8193, 16384, 16385, 10**6]
    widths = 1, 16 // np.dtype(dtype).itemsize
    kernels = dispatch.FORWARD + dispatch.BACKWARD
    for kernel, D, width in itertools.product(kernels, sizes, widths):
        with contextlib.suppress(ValueError):
            chosen = dispatch.choose(kernel, D, width, limit, types)
            assert chosen.expression in names


@pytest.mark.parametrize("at_a_time", [1, 8])
@pytest.mark.parametrize("rows", [1, 7, 2048, 8191, 8192, 65536, 1_000_000])
def test_blocks_get_equally_many_rows(rows, at_a_time):
    for resident in (40, 132, 264, 2112):
        blocks = dispatch.blocks_for(rows, resident, at_a_time)
        groups = blocks * at_a_time
        each = -(-rows // groups)
        assert each <= dispatch.ROWS_PER_GROUP
        assert groups - at_a_time < -(-rows // each)  # no block without rows
        waves = -(-blocks // resident)
        assert waves == max(1, -(-rows // (resident * at_a_time * dispatch.ROWS_PER_GROUP)))
        if rows > 10 * resident * at_a_time:
            assert rows / (resident * at_a_time * waves * each) > 0.9  # most of the GPU is busy


needs_nvrtc = pytest.mark.skipif(not find_spec("cupy"), reason="needs CuPy's NVRTC")


MAIN = "forward", "backward", "row_means", "backward_columns"


def main_kernels(arch, *dtypes):
    """Return what the launcher takes on this GPU where rows are loaded 16 bytes at a time."""
    names = dispatch.every(residency.LIMITS[arch].shared_per_block, *dtypes)
    wide = r"<\d+, (\d+, )?[48]\b"
    return [name for name in names if name.split("<")[0] in MAIN and re.search(wide, name)]


# The oldest generation, the newest and one between: sm_70 runs what sm_75 runs, sm_89 what sm_86
# does. For sm_90 lesson 09 compiles, and for sm_86, too, the half types below. Of sm_120 the
# kernels that sm_100 lacks.
COMPILED = ("sm_75", ""), ("sm_80", ""), ("sm_100", ""), ("sm_120", "IN_REGISTERS")


def kernels_of_a_t4():
    """Return whatever can be launched there; of the variants without half types the largest."""
    names = {name: int(re.search(r"\d+", name)[0]) for name in dispatch.every(T4)}
    less = dispatch.FLOAT32_ONLY
    return [name for name, threads in names.items() if threads > 128 or not name.startswith(less)]


@needs_nvrtc
@pytest.mark.parametrize("arch, which", COMPILED)
def test_compiles_without_spills(arch, which):
    """The main kernels; for sm_75, where most registers are taken, nearly all."""
    if int(arch.removeprefix("sm_")) not in nvrtc.cupy_with_nvrtc().cuda.nvrtc.getSupportedArchs():
        pytest.skip(f"this NVRTC does not compile for {arch}")
    names = kernels_of_a_t4() if arch == "sm_75" else main_kernels(arch)
    assert set(MAIN) <= {name.split("<")[0] for name in names} and len(names) > 16
    names = [name for name in names if which in name]
    for name, kernel in gpu.compile(arch, names).items():
        assert kernel.spilled == 0 and kernel.registers > 0, name
        if "IN_REGISTERS" in name:  # as many warps as fit with 64 registers a thread, or 80
            threads, *_, blocks = map(int, re.findall(r"\d+", name))
            assert residency.resident_blocks(arch, threads, kernel.registers)[0] >= blocks


# A T4 has no bfloat16. Kernels that keep their sums in shared memory need not see float16, too:
# they read and write numbers by the same two conversions.
HALVES = [(name, name, "sm_75" if name == "float16" else "sm_90") for name in HALF_TYPES]
HALVES.append(("uint16", "float32", "sm_86"))


@needs_nvrtc
@pytest.mark.parametrize("x, gamma, arch", HALVES)
def test_half_types_compile_without_spills(x, gamma, arch):
    compiled = gpu.compile(arch, main_kernels(arch, x, gamma))
    assert all(kernel.spilled == 0 for kernel in compiled.values())


@needs_nvrtc
def test_occupancy_of_a_launch():
    full = gpu.occupancy("backward", 65536, 1024, "sm_90")
    assert full.kernel == "backward<32, 8, 4, 8, 2, IN_SHARED>" and full.spilled == 0
    assert full.resident == 2 and full.blocks == 512  # of 2 * 264: two full waves of 16 rows a warp
    assert full.bytes_in_flight == 2 * 8 * 2 * 1024 * 4
    assert gpu.occupancy("forward", 8192, 1024, "sm_90").waves > 1
    on_a_t4 = gpu.occupancy("backward", 8192, 4096, "sm_75")
    assert on_a_t4.resident == 2 and on_a_t4.bytes_in_flight == 2 * 8 * 4096
    twice = [gpu.occupancy(kernel, 2048, 16384, "sm_75") for kernel in ("row_means", "backward")]
    assert [one.blocks for one in twice] == [2048, 160]
    assert [one.bytes_in_flight for one in twice] == [2 * 4 * 16384, 4 * 256 * 32]


@needs_nvrtc
def test_vector_loads_shuffles_and_barriers_in_ptx():
    names = ["forward<64, 4, 4>", "forward<64, 16, 1>", "forward<32, 1, 4>"]
    wide, narrow, warp = (kernel.ptx for kernel in gpu.compile("sm_90", names).values())
    x_gamma_beta = 4 + 4 + 4
    assert wide.count("ld.global.nc.v4.f32") == x_gamma_beta
    assert wide.count("st.global.v4.f32") == 4
    assert narrow.count("ld.global.nc.f32") == 3 * 16 and "v4" not in narrow
    assert wide.count("shfl.sync.bfly") == 3 * (5 + 1) and wide.count("bar.sync") == 3
    assert warp.count("shfl.sync.bfly") == 3 * 5 and "bar.sync" not in warp


@needs_nvrtc
def test_spills_and_shared_memory_are_reported():
    name = "forward<64, 16, 1>"
    compiled = gpu.compile("sm_90", (one for one in [name]))
    assert compiled[name][1:3] == (0, 2 * 2 * 4)
    tight = gpu.read_source().replace("CAPPED ? 1024 / (THREADS * ROWS) : 0", "32")
    crowded = gpu.compile("sm_90", [name], tight)[name]
    assert crowded.registers <= 32 and crowded.spilled > 0


@needs_nvrtc
def test_what_a_kernel_calls_is_not_reported_for_it():
    source = """
    __noinline__ __device__ float called(float v) { return __sinf(v); }
    template <int N> __global__ void __launch_bounds__(1024, 2) crowded(float *x)
    {
        float kept[N];
        for (int k = 0; k < N; k++) kept[k] = x[k];
        x[0] = called(x[1]);
        __syncthreads();
        for (int k = 0; k < N; k++) x[N + k] = kept[k];
    }"""
    assert gpu.compile("sm_90", ["crowded<64>"], source)["crowded<64>"].spilled > 0


NOT_COMPILED = [
    ({"arch": "sm_1"}, "no kernel for sm_1: .*architecture"),
    ({"source": "__global__ void f() { x }", "kernels": ["f"]}, '"x" is undefined'),
    ({"kernels": ["forward<1>"]}, "no kernel for sm_90"),
]


@needs_nvrtc
@pytest.mark.parametrize("change, message", NOT_COMPILED)
def test_compiler_errors_are_passed_on(change, message):
    with pytest.raises(ValueError, match=message):
        gpu.compile(**change)


# ---- Nothing to run on, and a CuPy whose kernels run in the emulator -----------------------------


def test_status_says_what_is_there_or_missing():
    assert gpu.status().startswith("The kernels run on" if gpu.available() else "No GPU is used: ")


class FakeArray(np.ndarray):
    device = 0

    @property
    def data(self):
        return mock.Mock(ptr=self.ctypes.data, device_id=self.device)


@pytest.fixture
def fake_cupy(monkeypatch):
    """CuPy, whose kernels the emulator runs, unless .emulates is False."""

    def get_function(name):
        def launch(grid, block, arguments, shared_mem):
            assert shared_mem <= function.max_dynamic_shared_size_bytes
            assert {type(a) for a in arguments} <= {FakeArray, np.int32, np.int64, np.float32}
            named = {f"p{k}": a for k, a in enumerate(arguments)}
            launch = gpu.Launch(gpu.read_source(), name, *grid, *block, named, shared_mem)
            for argument, values in gpu.emulate(launch).items() if fake.emulates else ():
                named[argument][...] = values

        function = mock.Mock(side_effect=launch, max_dynamic_shared_size_bytes=48 * 1024)
        return function

    def raw_module(code, options, name_expressions):
        assert code == gpu.read_source() and options == nvrtc.options(name_expressions)
        fake.compiled.extend(name_expressions)
        return mock.Mock(get_function=get_function)

    fake = mock.MagicMock(ndarray=FakeArray, RawModule=raw_module, compiled=[], emulates=True)
    fake.__version__ = "0"
    fake.empty = lambda shape, dtype: emulated._empty(shape, dtype).view(FakeArray)
    fake.zeros = lambda *a: np.zeros(*a).view(FakeArray)
    fake.asarray = lambda a: a.view(FakeArray)
    cuda, properties = fake.cuda, dict(name=b"Fake", major=9, minor=0)
    cuda.runtime.driverGetVersion.return_value = 12090
    cuda.runtime.getDevice.return_value = 0
    properties |= dict(multiProcessorCount=2, l2CacheSize=5)
    cuda.runtime.getDeviceProperties.return_value = properties
    cuda.nvrtc.getVersion.return_value = 12, 9
    attributes = {"MultiProcessorCount": 2, "MaxSharedMemoryPerBlockOptin": 232448}
    cuda.Device.return_value.attributes = attributes
    cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor.return_value = 1
    cuda.get_elapsed_time.side_effect = itertools.count(0.001, 0.001)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    for cached in (live.backend, live._function):
        monkeypatch.setattr(live, cached.__name__, functools.cache(cached.__wrapped__))
    return fake


@pytest.mark.parametrize("D, kernel", [(40, "backward_single"), (1024, "backward")])
def test_launching(fake_cupy, D, kernel):
    """The longer rows ask for more shared memory than a kernel has without asking."""
    case = arrays((3, D), offset=1e4)
    dy, x, gamma, beta = (a.view(FakeArray) for a in case)
    for _ in range(2):
        y, cache = gpu.layer_norm_forward(x, gamma, beta)
        assert_promise((y, *gpu.layer_norm_backward(dy, cache, kernel=kernel)), *case)
    assert len(fake_cupy.compiled) == len(set(fake_cupy.compiled)) <= 3  # each once
    assert set(fake_cupy.compiled) <= set(dispatch.every(232448))


def test_launching_checks_first(fake_cupy):
    assert gpu.available() and gpu.status().endswith("GPU: Fake, compute capability 9.0.")
    x, row, elsewhere = (a.view(FakeArray) for a in (X, ROW, ROW))
    with pytest.raises(TypeError, match="x must be a .*FakeArray, got ndarray"):
        gpu.layer_norm_forward(X, row, row)
    elsewhere.device = 1
    with pytest.raises(ValueError, match="beta must be on the current device, 0, got device 1"):
        gpu.layer_norm_forward(x, row, elsewhere)
    assert fake_cupy.compiled == []


INSTALL = r"pip install -e '\.\[gpu\]'"
MISSING = {  # what of CuPy answers how: what the message says
    "cupy": (None, rf"CuPy is not installed \({INSTALL}; not on macOS\)"),
    "cuda.runtime.driverGetVersion": (lambda: 0, "there is no NVIDIA driver"),
    "cuda.runtime.getDeviceCount": (lambda: 1 / 0, r"CUDA does not start \(division by zero\)"),
    "cuda.nvrtc.getVersion": (lambda: 1 / 0, rf"NVRTC, .*, is missing: {INSTALL} \(division"),
    "RawKernel": (lambda *words: 1 / 0, rf"headers: {INSTALL} \(division by zero\)"),
}


@pytest.mark.parametrize("part", MISSING)
def test_messages_name_the_missing_part_and_the_command(fake_cupy, monkeypatch, part):
    answer, message = MISSING[part]
    if part == "cupy":
        monkeypatch.setitem(sys.modules, "cupy", None)
    else:
        *home, name = part.split(".")
        monkeypatch.setattr(functools.reduce(getattr, home, fake_cupy), name, answer)
    assert not gpu.available() and re.search(message, gpu.status())
    with pytest.raises(RuntimeError, match=message):
        gpu.layer_norm_forward(X, ROW, ROW)
    if part in ("cupy", "cuda.nvrtc.getVersion"):
        with pytest.raises(RuntimeError, match=message):
            gpu.compile()


def test_benchmark_of_the_fake(fake_cupy, monkeypatch, tmp_path, capsys):
    """Every rung is timed and recorded; times and results mean nothing here."""
    fake_cupy.emulates = False
    for name, value in (("REPEATS", 2), ("FLUSH", 1024)):
        monkeypatch.setattr(benchmark, name, value)
    path = tmp_path / "new" / "record.json"
    assert benchmark.main(["--save", str(path), "--shapes", "9x32"]) == 0
    assert "two stages" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert [record[k] for k in ("device", "nvrtc", "multiprocessors")] == ["Fake", "12.9", 2]
    rungs = {(one["pass"], one["dtype"], one["rung"]): one for one in record["measured"]}
    assert len(rungs) == len(record["measured"]) == 12 + 3 * 10
    failed = {rung for (*_, rung), one in rungs.items() if "failed" in one}
    assert failed == {"atomics", "single launch"}  # of half types
    for (which, dtype, rung), one in rungs.items():
        if rung in failed and dtype != "float32":
            continue
        wide, parameters = 2 if "float16" in dtype else 4, 4 if "float32" in dtype else 2
        size = (2 if which == "forward" else 3) * (288 * wide + 32 * parameters) + 108
        assert one["GB/s"] == pytest.approx(size / one["microseconds"] / 1e3)
        assert one["p10"] <= one["microseconds"] <= one["p90"]
        copy = rungs[which, dtype, "copy"]["microseconds"]
        assert one["fraction of copy"] == pytest.approx(copy / one["microseconds"])


def test_benchmark_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert benchmark.main([]) == 1
    assert capsys.readouterr().out.startswith("No GPU is used: CuPy is not installed")


# ---- On a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def a_gpu():
    if not gpu.available():  # asked here: it takes a second to import CuPy
        pytest.skip("needs a GPU")


needs_gpu = pytest.mark.usefixtures("a_gpu")


def on_gpu(dy, x, gamma, beta, kernel="backward", width=None):
    import cupy as cp

    dy, x, gamma, beta = map(cp.asarray, (dy, x, gamma, beta))
    y, cache = gpu.layer_norm_forward(x, gamma, beta, width=width)
    return [a.get() for a in (y, *gpu.layer_norm_backward(dy, cache, kernel=kernel, width=width))]


@needs_gpu
@pytest.mark.parametrize("D", SIZES)
@pytest.mark.parametrize("offset", [0, 1e3, 1e6, 1e7])
def test_promise_on_the_gpu(D, offset):
    case = arrays((300, D), seed=D, offset=offset)
    assert_promise(on_gpu(*case), *case)
    assert_promise(on_gpu(*case, width=1), *case)


@needs_gpu
@pytest.mark.parametrize("kernel", BACKWARD)
def test_every_kernel_on_the_gpu(kernel):
    case = arrays((600 if kernel == "backward_single" else 5000, 520), offset=1e4)
    results = [on_gpu(*case, kernel=kernel) for _ in range(3)]
    # float32 sums one by one over 5000 rows: up to 4.5e-6 in simulations of many orders
    assert_promise(results[0], *case, sums=1e-5 if kernel == "backward_atomic" else AT_LARGE)
    if kernel != "backward_atomic":
        for again in results[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(results[0], again))


@needs_gpu
@pytest.mark.parametrize("name", HALF_TYPES)
@mixed_types
@pytest.mark.parametrize("kernel", ["backward", "backward_looping"])
@pytest.mark.parametrize("D", SIZES)
def test_half_types_on_the_gpu(name, mixed, kernel, D):
    for width in (None, 1):
        run = functools.partial(on_gpu, kernel=kernel, width=width)
        assert_rounded_once(run, name, mixed, 300, D)


@needs_gpu
@pytest.mark.parametrize("D", [500, 768, 1000, 1024, 4096, 8192, 16384])
def test_both_places_of_the_sums_on_the_gpu(monkeypatch, D):
    """A GPU with much shared memory runs what one with little would, too."""
    case = arrays((300, D), seed=D, offset=1e4)
    here = live.backend()

    def check(limit):
        other = here._replace(shared_limit=lambda: limit)
        monkeypatch.setattr(live, "backend", lambda: other)
        assert_promise(on_gpu(*case), *case)

    check(T4)
    check(here.shared_limit())


@needs_gpu
def test_a_million_rows_on_the_gpu():
    case = arrays((1_000_000, 8), offset=1e7)
    case[0][:] += 5
    assert_promise(on_gpu(*case), *case)


@needs_gpu
def test_the_gpu_refuses_what_it_cannot_read():
    import cupy as cp

    with pytest.raises(TypeError, match="x must be a cupy.ndarray"):
        gpu.layer_norm_forward(X, ROW, ROW)
    x = cp.ones((4, 4), cp.float32)
    with pytest.raises(ValueError, match="x must be C-contiguous"):
        gpu.layer_norm_forward(x[:, ::2], x[0, :2], x[0, :2])
