"""Before and around a launch: arguments, configurations, CuPy without a GPU, the benchmark."""

import contextlib
import functools
import itertools
import json
import re
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from launches import HALF_TYPES, T4, arrays
from oracle import assert_promise

from lnlib import gpu
from lnlib.gpu import benchmark, dispatch, emulated, live, nvrtc, passes

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


# ---- Configurations ------------------------------------------------------------------------------


H100 = 227 * 1024  # bytes of shared memory that a block can have
BFLOAT16 = dispatch.types_of("uint16", "float32")
CHOSEN = [  # kernel, D, entries per load, shared memory, types: what is launched
    ("forward", 128, 4, H100, (), "forward<32, 1, 4, 4>"),
    ("forward", 16384, 4, H100, (), "forward<512, 8, 4, 1>"),
    ("forward", 16385, 1, H100, (), "forward_looping<256, 1>"),
    ("backward", 1024, 4, H100, (), "backward<32, 8, 4, 8, 2, IN_SHARED>"),
    ("backward", 16384, 4, H100, (), "backward<512, 8, 4, 1, 1, IN_SHARED>"),
    ("backward", 16384, 1, H100, (), "backward_columns<256, 1>"),
    ("backward_looping", 64, 4, H100, (), "backward_columns<256, 4>"),
    ("backward", 512, 4, T4, (), "backward<32, 4, 4, 8, 2, IN_SHARED>"),
    ("backward", 768, 4, T4, (), "backward<64, 3, 4, 1, 10, IN_REGISTERS>"),
    ("backward", 4096, 4, T4, (), "backward<512, 2, 4, 1, 2, IN_REGISTERS>"),
    ("backward", 8192, 4, 99 * 1024, (), "backward<1024, 2, 4, 1, 1, IN_REGISTERS>"),
    ("backward", 16384, 4, 99 * 1024, (), "backward_columns<256, 4>"),
    ("backward", 768, 8, T4, BFLOAT16,  # 12 entries are not a multiple of 8
     "backward<128, 1, 8, 1, 8, IN_REGISTERS, __nv_bfloat16, float>"),
]  # fmt: skip


@pytest.mark.parametrize("kernel, D, width, limit, types, expression", CHOSEN)
def test_what_is_launched(kernel, D, width, limit, types, expression):
    """Rows that are too long for the chip are read again; older GPUs have less shared memory."""
    assert dispatch.choose(kernel, D, width, limit, types).expression == expression


@pytest.mark.parametrize("kernel", ["backward_single", "backward_atomic"])
def test_what_a_kernel_was_not_written_for(kernel):
    with pytest.raises(ValueError, match=f"{kernel} cannot hold rows of 16385 entries"):
        dispatch.choose(kernel, 16385, 1)
    with pytest.raises(ValueError, match=f"{kernel} is for float32"):
        dispatch.choose(kernel, 64, 8, types=("__half",))


@pytest.mark.parametrize("limit", [T4, 99 * 1024, H100])
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
    attributes["ClockRate"] = 1_755_000  # kHz
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
    "RawKernel": (
        lambda *words: mock.Mock(compile=lambda: 1 / 0),
        rf"headers: {INSTALL} \(division by zero\)",
    ),
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
            gpu.compile("sm_90", ["forward<64, 4, 4>"])


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
    assert (record["arch"], record["clock GHz"]) == ("sm_90", 1.755)
    rungs = {(one["pass"], one["dtype"], one["rung"]): one for one in record["measured"]}
    assert len(rungs) == len(record["measured"]) == 12 + 3 * 10
    failed = {key for key, one in rungs.items() if "failed" in one}
    assert {rung for *_, rung in failed} == {"atomics", "single launch"}  # of half types
    assert len(failed) == 6
    copied = rungs["forward", "float32", "copy"]
    size = 2 * 4 * (9 * 32 + 32) + 9 * 3 * 4
    assert copied["GB/s"] == pytest.approx(size / copied["microseconds"] / 1e3)
    for which, dtype, rung in rungs.keys() - failed:
        one, copy = rungs[which, dtype, rung], rungs[which, dtype, "copy"]
        assert one["p10"] <= one["microseconds"] <= one["p90"] and one["GHz"] > 0
        assert one["fraction of copy"] == pytest.approx(copy["microseconds"] / one["microseconds"])
        # both move what a pass must: so their rates have the same quotient
        assert one["GB/s"] == pytest.approx(one["fraction of copy"] * copy["GB/s"])


def test_minimum_bytes():
    """Arrays and parameters as they are stored, and three numbers in float32 for each row."""
    x, gamma = np.ones((9, 32), np.float16), np.ones(32, np.float32)
    assert benchmark.minimum_bytes("forward", x, gamma) == 2 * (9 * 32 * 2 + 32 * 4) + 9 * 3 * 4
    assert benchmark.minimum_bytes("backward", x, gamma) == 3 * (9 * 32 * 2 + 32 * 4) + 9 * 3 * 4


def test_benchmark_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert benchmark.main([]) == 1
    assert capsys.readouterr().out.startswith("No GPU is used: CuPy is not installed")
