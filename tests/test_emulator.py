"""The emulator: what it lets a kernel do, what it reports, what it counts, and what it needs."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

from lnlib import emulator
from lnlib.emulator import EmulationError, Launch, Unsupported, build, compiler, run
from lnlib.exercises.kernels import ORDERS

# ---- The words of CUDA, one small kernel each ----------------------------------------------------


def source_of(body, parameters, head=""):
    """Return a kernel with this body, which begins in line 4."""
    places = "int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t, lane = t % 32;"
    source = f"__global__ void test({parameters})\n{{ {places}\n\n{body}\n}}\n"
    return f"{head}\n#line 1\n{source}" if head else source


def one_of(bodies):
    """Return a body that runs the one of these whose number is `which`; each begins in line 4."""
    cases = [f"case {k}: {{\n#line 4\n{body}\n}} break;" for k, body in enumerate(bodies)]
    return "\n".join(["switch (which) {", *cases, "}"])


def launch_all(body, parameters="float *out", arrays=(), threads=64, blocks=1, order="forward",
               shared=0, counts=None, seconds=300, head="", is_valid=None, **numbers):  # fmt: skip
    """Run a kernel with this body; return its arrays."""
    source = source_of(body, parameters, head)
    arguments = {"out": np.full(64, np.nan, np.float32), **dict(arrays), **numbers}
    given = Launch(source, "test", blocks, threads, arguments, shared)
    return run(given, order, counts, seconds, is_valid)


def launch(*arguments, **how):
    """Run a kernel as `launch_all` does; return the 64 numbers that it leaves in out."""
    return launch_all(*arguments, **how)["out"]


def launch_one(bodies, body, parameters="float *out", *arguments, **how):
    """Run one of these bodies, which are compiled together."""
    which = np.int32([*bodies].index(body))
    return launch(one_of(bodies), f"{parameters}, int which", *arguments, which=which, **how)


LANES = np.arange(64)
ROW_STRUCT = "template <class T, int N> struct Row { T at[N]; };"
WORDS = {  # body of a kernel: what the 64 threads leave in out
    "out[t] = __shfl_xor_sync(0xffffffff, t, 3);": LANES ^ 3,
    "out[t] = __shfl_xor_sync(0xffffffff, t, 3, 16);": LANES ^ 3,
    "out[t] = __shfl_sync(0xffffffff, t, 7);": LANES // 32 * 32 + 7,
    "out[t] = __shfl_sync(0xffffffff, (float)t, 7, 4);": LANES // 4 * 4 + 3,
    "out[t] = __shfl_down_sync(~0u, t, 5);": np.where(LANES % 32 < 27, LANES + 5, LANES),
    "out[t] = __shfl_up_sync(~0u, t, 1, 8);": np.where(LANES % 8 == 0, LANES, LANES - 1),
    "out[t] = __popc(__ballot_sync(~0u, t % 4 == 0));": np.full(64, 8),
    "out[t] = __any_sync(~0u, t == 3) + 2 * __all_sync(~0u, t < 32);": np.repeat([3, 0], 32),
    "if (t % 2) return; out[t] = __shfl_xor_sync(0x55555555, t, 2);": np.where(
        LANES % 2, np.nan, LANES ^ 2
    ),
    "out[t] = __syncthreads_count(t < 9) + 100 * __syncthreads_or(t == 3)"
    " + 1000 * __syncthreads_and(t < 63) + 2000 * __syncthreads_and(t < 64);": np.full(64, 2109),
    "if (t >= 32) { out[t] = 1; return; } __syncthreads(); out[t] = 2;": np.repeat([2, 1], 32),
    "__syncwarp(0xffffffff); __threadfence_block(); out[t] = warpSize;": np.full(64, 32),
    "out[t] = __fsqrt_rn(max(4.0f, 0.0f)) + min(t, 3) + rsqrtf(0.25f) + fminf(1, 2) + abs(-1.5f);":
        6.5 + np.minimum(LANES, 3),
    "__shared__ float a[64], b[2][32]; a[t] = t; b[t / 32][t % 32] = 1; __syncthreads();"
    " out[t] = a[63 - t] + b[1 - t / 32][t % 32];": 64 - LANES,
    "__shared__ float a[64]; a[t] = t; a[t]++; a[t] /= 2; float *p = a + t; *p *= 4;"
    " float &r = a[t]; r += 1; out[t] = *p;": 2 * LANES + 3,
    "volatile __shared__ float a[64]; a[t] = t; out[t] = a[t];": LANES,
    "__shared__ float2 s[2][32]; s[t / 32][t % 32].x = t; out[t] = s[t / 32][t % 32].x;": LANES,
    "__shared__ unsigned int n; if (t == 0) n = 0; __syncthreads(); atomicAdd(&n, 1u);"
    " __syncthreads(); out[t] = n;": np.full(64, 64),
    "extern __shared__ __align__(16) float d[]; reinterpret_cast<float4 *>(d)[t].w = 9;"
    " __syncthreads(); out[t] = d[4 * t + 3];": np.full(64, 9),
    "if (t < 16) reinterpret_cast<float4 *>(out)[t] = make_float4(1, 2, 3, 4);": LANES % 4 + 1,
    "__stcs(&out[t], __ldcs(&out[t]) == __ldg(out + t) ? 1.0f : 2.0f);": np.full(64, 2),
    "auto next = [](float v) { return v + 1; }; out[t] = next(t); // { a __shared__ brace;":
        LANES + 1,
    "if (t == 0) printf(\"out 1 2 3 4 %d\\n\", 5); out[t] = \"ü\"[0] != 0;": np.ones(64),
    "float4 v = make_float4(1, 2, 3, 4); out[t] = rsqrtf(v.w) + 0 * v.x;": np.full(64, 0.5),
    "__shared__ Row<float, 64> a, b[2]; a.at[t] = b[1].at[t] = t; out[t] = a.at[t];": LANES,
    "__shared__ float a[64]; a[t] = t; __syncwarp(); out[t] = a[t ^ 1];": LANES ^ 1,
}  # fmt: skip


@pytest.mark.parametrize("body", WORDS)
def test_words(body, capfd):
    for order in ORDERS if "sync" in body else ["forward"]:
        out = launch_one(
            WORDS, body, order=order, shared=1024 * ("extern" in body), head=ROW_STRUCT
        )
        assert np.array_equal(out, WORDS[body], equal_nan=True)
    assert capfd.readouterr().out.startswith("out 1 2 3 4 5\n" if "printf" in body else "")


FAULTS = {  # body of a kernel: what the emulator says
    "float v[4]; for (int k = 0; k <= 4; k++) v[k] = t; out[t] = v[0];":
        r"index 4 is out of range for an array of type 'float ?\[4\]': thread 0 of block 0, line 4",
    "__shared__ float a[2][8]; a[1][t] = 1; out[t] = 0;": "index 8 is out of range",
    "__shared__ float a[8]; float *p = a; p[t] = 1; out[t] = 0;":
        r"a\[8\] is out of range: thread 8 .* in line 4, and the shared array a has 8 elements",
    "out[t - 1] = 0;": r"out\[-1\] is out of range: thread 0 of block 0 wants to write it in",
    "float *p = out + 4096 * t; if (*p == 0) out[t] = 1;": r"out\[4096\] is out of range",
    "float4 *v = reinterpret_cast<float4 *>(out + 1); v[t / 8] = make_float4(1, 2, 3, 4);":
        "not a multiple of 16 as .*, in line 4|in line 4 at an address that is not a multiple",
    "__shared__ float big[20000]; big[t] = 1; out[t] = big[t];":
        "the shared arrays of a block have 80000 bytes: more than 49152 must be asked for",
    "__shared__ int n; if (t == 0) { n = 0; }\n__syncthreads(); atomicAdd(&n, 1);\nout[t] = n;":
        "n: thread 1 adds to it in line 5, and thread 0 read it in line 6, with no barrier in",
    "atomicAdd(&out[0], 1.0f);\nout[t] = out[0];":
        r"out\[0\]: thread 1 adds to it in line 4, and thread 0 wrote it in line 5",
    "__shared__ float a[64]; a[t] = t; __shfl_xor_sync(~0u, a[t], 1);\nout[t] = a[t ^ 1];":
        r"a\[1\]: thread 0 reads it in line 5, and thread 1 wrote it in line 4",
    "__shared__ float a[64]; a[t] = t;\n__syncwarp(); out[t] = a[t ^ 32];": "no barrier in between",
    "__shared__ float a[1]; if (t == 0) a[0] = 1;\n__syncthreads(); float v = a[0];\n"
    "if (t == 63) a[0] = v;": "thread 63 writes it .*, and thread 0 read it",
    "out[0] = 1;":
        r"out\[0\]: thread 1 writes it in line 4, and thread 0 wrote it in line 4, with no barrier",
    "if (t < 32)\n__syncthreads();\nelse\n__syncthreads();":
        "block 0 is stuck: thread 0 waits at __syncthreads in line 5, but thread 32 .* in line 7",
    "if (t < 32) __syncthreads(); else __syncthreads();":
        "block 0 is stuck: thread 0 waits at __syncthreads in line 4, but thread 32 .* in line 4",
    "if (t % 2)\n__shfl_xor_sync(~0u, t, 1);\nelse\n__shfl_xor_sync(~0u, t, 1);":
        "thread 0 waits for its warp in line 7, but thread 1 waits for its warp in line 5",
    "out[t] = __shfl_xor_sync(t * 1.0f, ~0u, 1);":
        "thread 0, line 4: it is not in the mask of its own shuffle",
    "out[t] = __shfl_sync(~0u, t, 1, 12);": "the width of a shuffle is 1, .* or 32, not 12",
}  # fmt: skip
NOT_COMPILED = {  # the same
    "out[t] = __syncthread();":
        r"compile: kernel.cu:4: error: .*__syncthread.*\n    out\[t\] = __syncthread\(\);",
    "out[t] = 1\n;out[t] = 2 out;": r"kernel.cu:5: error: expected .*\n    ;out\[t\] = 2 out;",
    "auto f = [](float v) -> float { v + 1; }; out[t] = f(t);": "compile: kernel.cu:4: error: n",
    "float v[t + 1]; out[t] = v[0] = t;": r"kernel.cu:4: error: .*\n    float v",
    "# variance\nout[t] = 1;": r"cu:4: error: invalid preprocessing directive.*\n    # variance",
}  # fmt: skip


@pytest.mark.parametrize("body", FAULTS)
def test_faults(body):
    with pytest.raises(EmulationError, match=FAULTS[body]):
        launch_one(FAULTS, body)


@pytest.mark.parametrize("body", NOT_COMPILED)
def test_what_does_not_compile(body):
    with pytest.raises(EmulationError, match=NOT_COMPILED[body]):
        launch(body)


def test_registers_that_nobody_has_set():
    out = launch("float total; for (int k = 0; k < 3; k++) total += k; out[t] = total;")
    assert not (np.abs(out) < 1e30).any()


def test_who_and_where():
    body = "out[blockIdx.x * blockDim.x + t] = gridDim.x * 100 + t;"
    assert np.array_equal(launch(body, threads=32, blocks=2), 200 + np.arange(64) % 32)


def test_atomics_and_numbers():
    given = np.zeros(8, np.float32)
    sums = launch_all(
        "atomicAdd(&sums[n], x * yes);", "float *out, float *sums, long long n, float x, bool yes",
        {"sums": given}, blocks=3, n=np.int64(5), x=np.float32(0.5), yes=True,
    )["sums"]  # fmt: skip
    assert sums.tolist() == [0, 0, 0, 0, 0, 96, 0, 0]
    assert not given.any()  # nothing is changed in place


def test_shared_memory_is_poisoned_for_every_block():
    body = """
    __shared__ float slot;
    if (blockIdx.x == 0 && t == 0) slot = 1;
    __syncthreads();
    out[blockIdx.x * 32 + t] = slot;
    """
    got = launch(body, threads=32, blocks=2)
    assert (got[:32] == 1).all() and np.isnan(got[32:]).all()


@pytest.mark.parametrize(
    "error, message, how",
    [
        (ValueError, "blocks must be at least 1, got 0", {"blocks": 0}),
        (ValueError, 'must be "forward", "reverse" or an int >= 0, got', {"order": "sideways"}),
        (TypeError, "n must be an array or a number, got str", {"n": "1"}),
        (EmulationError, "argument 1 must be an array", {"parameters": "float *a, int *n", "n": 1}),
        (EmulationError, "argument 0 must be a number", {"parameters": "int out"}),
        (EmulationError, "at most 32 arguments", {f"n{k}": k for k in range(32)}),
        (EmulationError, "a block has 1 to 1024 threads, not 2048", {"threads": 2048}),
        (EmulationError, "at most 232448 bytes of shared memory, not 3000", {"shared": 300000}),
    ],
)
def test_too_much_is_asked_for(error, message, how):
    numbers = "".join(f", int {name}" for name in how if name[0] == "n")
    with pytest.raises(error, match=message):
        launch("", **{"parameters": f"float *out{numbers}"} | how)


# ---- Numbers of two bytes ------------------------------------------------------------------------


def test_half_types():
    every = np.arange(2**16, dtype=np.uint16)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 2**16, dtype=np.uint32).view(np.float32)
    values[:1000] = 2.0**-25 * np.arange(1000) / 2  # subnormal in float16, and ties
    values[1000:3000] = rng.normal(size=2000)
    values[3000:3007] = 65504, 65519.9, 65520, np.inf, -np.inf, 1 + 2**-11, 1 + 3 * 2**-11
    arrays = {
        "values": values, "every": every, "widened": np.empty(2**16, np.float32),
        "half": np.empty(2**16, np.float16), "brain": np.empty(2**16, np.uint16),
    }  # fmt: skip
    arrays = launch_all(
        "for (; t < 65536; t += 64) { half[t] = __half(values[t]); brain[t] = __nv_bfloat16("
        "values[t]); widened[t] = float(every[t]); }",
        "float *out, const float *values, const __half *every, float *widened, __half *half, "
        "__nv_bfloat16 *brain", arrays,
    )  # fmt: skip
    with np.errstate(over="ignore"):
        assert np.array_equal(arrays["half"], values.astype(np.float16), equal_nan=True)
    assert np.array_equal(arrays["widened"], every.view(np.float16), equal_nan=True)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    numbers = ~np.isnan(values)
    assert np.array_equal(arrays["brain"][numbers], rounded[numbers])
    assert (arrays["brain"][~numbers] & 0x7FFF > 0x7F80).all()


# ---- The profile ---------------------------------------------------------------------------------


# body -> of an array: bytes loaded, stored, loads, stores, requests, sectors, bank conflicts
PROFILE = {
    "out[t] = x[t];": {"x": (256, 0, 64, 0, 2, 8, 0), "out": (0, 256, 0, 64, 2, 8, 0)},
    "out[t] = x[2 * t];": {"x": (256, 0, 64, 0, 2, 16, 0)},
    "out[t] = x[t * 8];": {"x": (256, 0, 64, 0, 2, 64, 0)},
    "out[t] = x[t + 1];": {"x": (256, 0, 64, 0, 2, 10, 0)},
    "out[t] = x[0];": {"x": (8, 0, 2, 0, 2, 2, 0)},
    "__shared__ float s[1056]; out[t] = s[t];": {"shared s": (0, 0, 0, 0, 2, 0, 0)},
    "__shared__ float s[1056]; out[t] = s[2 * t];": {"shared s": (0, 0, 0, 0, 2, 0, 2)},
    "__shared__ float s[1056]; out[t] = s[t % 32 * 32];": {"shared s": (0, 0, 0, 0, 2, 0, 2 * 31)},
    "__shared__ float s[1056]; out[t] = s[t % 32 * 33];": {"shared s": (0, 0, 0, 0, 2, 0, 0)},
    "__shared__ float s[1056]; out[t] = s[0];": {"shared s": (0, 0, 0, 0, 2, 0, 0)},
    # vectors have no conflicts: these are of the scalar loads, four floats apart
    "__shared__ float4 s[64]; s[t] = float4(); out[t] = s[t].w;":
        {"shared s": (0, 0, 0, 0, 4, 0, 2 * 3)},
}  # fmt: skip


@pytest.mark.parametrize("body", PROFILE)
def test_profile(body):
    counts = {}
    arrays = {"x": np.zeros(512, np.float32)}
    launch_one(PROFILE, body, "float *out, const float *x", arrays, counts=counts)
    assert {name: counts[name] for name in PROFILE[body]} == PROFILE[body]


# ---- The machine it runs on ----------------------------------------------------------------------


@pytest.mark.parametrize("other_compiler", [True, False, None])
def test_valid_cuda_is_never_called_wrong(other_compiler):
    def is_valid(given):
        assert given.kernel == "test" and "__" in given.source
        return other_compiler

    for word, listed in ("__dp4a", True), ("__dp5a", False):  # asked only if no compiler can be
        valid = listed if other_compiler is None else other_compiler
        error = Unsupported if valid else EmulationError
        message = f"does not know {word} .*:4: out" if valid else f"kernel.cu:4: .*{word}"
        with pytest.raises(error, match=message):
            launch(f"out[t] = {word}(1, 2, 3);", is_valid=is_valid)
    assert not issubclass(Unsupported, EmulationError)


@pytest.mark.parametrize(
    "head, body, word",
    [
        ("#include <cooperative_groups.h>", "out[t] = t;", "#include <cooperative_groups.h>"),
        ("#include <cub/cub.cuh>", "out[t] = t;", "#include <cub/cub.cuh>"),
        ("#include <cuda/std/cmath>", "out[t] = t;", "#include <cuda/std/cmath>"),
        ("#include <cmath>", "out[t] = std::sqrt(4.0f);", "std::"),
        ("", 'asm volatile("bar.sync 0;" ::: "memory"); out[t] = t;', "asm"),
    ],
)
def test_headers_of_others_and_assembly_are_not_called_wrong(head, body, word):
    with pytest.raises(Unsupported, match=f"does not know {word}"):
        launch(body, head=head)


def test_headers_that_say_nothing_new_are_ignored():
    head = "#include <device_launch_parameters.h>\n#include <cmath>"
    assert np.all(launch("out[t] = sqrtf(4);", head=head) == 2)


def test_a_hinted_load_takes_no_struct():
    with pytest.raises(EmulationError, match="does not compile: .*__ldg"):
        launch("Yours a; out[t] = __ldg(&a).at;", head="struct Yours { float at; };")


def test_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    assert compiler() == [sys.executable, "-m", "ziglang", "cc"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for words in ("apt install g", "pip install ziglang", "WSL"):
        assert not emulator.available() and words in emulator.status()
    with pytest.raises(EmulationError, match="found none: install one"):
        launch("out[t] = 0; // no compiler")


@pytest.mark.parametrize("command", ["no-such-compiler", "g++ '"])
def test_cxx_that_is_no_command(monkeypatch, command):
    """Then there is no compiler: another one would not be what was asked for."""
    monkeypatch.setenv("CXX", command)
    assert not emulator.available() and f"CXX={command} is no command" in emulator.status()


def test_cxx_that_is_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -c 1/0")
    with pytest.raises(EmulationError, match="does not compile the emulator: ZeroDivisionError"):
        launch("out[t] = 0; // not compiled")


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_a_compiler_of_c_is_enough(monkeypatch):
    monkeypatch.setenv("CXX", "gcc")
    assert (launch("out[t] = 1;") == 1).all()


def test_folder_that_runs_no_programs(monkeypatch):
    flags = getattr(os, "ST_NOEXEC", 8)
    monkeypatch.setattr(os, "statvfs", lambda folder: type("Flags", (), {"f_flag": flags}))
    assert not emulator.available() and "set TMPDIR to another folder" in emulator.status()


@pytest.fixture
def own_folder(monkeypatch, tmp_path):
    """A folder for what is compiled that no other test uses, with the emulator in it."""
    launch("out[t] = 1;")
    for compiled in build.folder().glob("emulator-*.o"):
        shutil.copy(compiled, tmp_path)
    monkeypatch.setenv(build.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def test_folder_deleted(own_folder):
    for _ in range(2):
        assert (launch("out[t] = 1;") == 1).all()
        shutil.rmtree(own_folder)


def test_first_use_by_many_threads():
    results = []
    body = "out[t] = 6; // by many"
    many = [threading.Thread(target=lambda: results.append(launch(body))) for _ in range(6)]
    for thread in many:
        thread.start()
    for thread in many:
        thread.join()
    assert len(results) == 6 and all((r == 6).all() for r in results)


def test_a_kernel_that_never_ends():
    with pytest.raises(EmulationError, match="test has not returned after 1 seconds"):
        launch("while (true) pause();", seconds=1, head='extern "C" int pause();')


IMPORTS = "from lnlib.emulator import EmulationError, Launch, build, run\n"


def test_text_beyond_ascii_in_any_locale():
    code = IMPORTS + (
        "source = '__global__ void test() { /* \\u00fc */ \"\\u00fc\" \\u00fc; }'\n"
        "try: run(Launch(source, 'test', 1, 1, {}))\n"
        "except EmulationError as error: print(ascii(error))"
    )
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "kernel.cu:1: error" in done.stdout, done


def test_what_was_compiled_is_removed_when_python_ends():
    code = IMPORTS + "build.folder().joinpath('program').touch(); print(build.folder())"
    environment = os.environ | {build.FOLDER_VARIABLE: ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    folder = done.stdout.strip()
    assert os.path.dirname(folder) == tempfile.gettempdir() and not os.path.exists(folder)


@pytest.mark.skipif(not shutil.which("pgrep"), reason="no pgrep")
def test_it_ends_without_the_one_that_started_it(own_folder):
    code = IMPORTS + (
        "source = 'extern \"C\" int pause(); __global__ void test() { while (true) pause(); }'\n"
        "run(Launch(source, 'test', 1, 1, {}), seconds=3)"
    )

    def running():
        return subprocess.run(["pgrep", "-f", own_folder], capture_output=True).stdout

    with subprocess.Popen([sys.executable, "-c", code]) as one:
        while not running():
            assert one.poll() is None
            time.sleep(0.1)
        one.send_signal(signal.SIGKILL)
    for _ in range(100):
        if not running():
            break
        time.sleep(0.1)
    assert not running()
