"""Faults that give right numbers in some order are refused in all; what is valid CUDA passes."""

import re

import numpy as np
import pytest
from layers import data
from oracle import assert_promise
from test_emulator import launch_one, one_of, source_of

from lnlib import gpu
from lnlib.emulator import FLUSHES, EmulationError, Launch, Unsupported, run
from lnlib.exercises.kernels import ORDERS
from lnlib.gpu import emulated, nvrtc, passes
from lnlib.gpu.dispatch import FORWARD

T = np.arange(64)
SUM = "out[t] = partial[t] + partial[64 + t] + partial[128 + t];"
HEAD = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ int total;
__device__ unsigned ticket;
__device__ float results[192];
#line 100
float twice(float v) { return 2 * v; }
__device__ float thrice(float v) { return 3 * v; }
int rows_of(int n) { return n / 2; }  // never called by a kernel
struct Pair {
    float a, b;
    __device__ float sum() const
    {
        return a + b;
    }
    float difference() const { return a - b; }
};
__device__ bool last_block(int *counter, bool fences = true)
{
    __shared__ bool last;
    if (fences)
        __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(counter, 1) == gridDim.x - 1;
    __syncthreads();
    if (fences)
        __threadfence();
    return last;
}
"""
PARAMETERS = "float *out, float *partial, int *counter"


def launch(bodies, body, order):
    """Run one of the bodies by three blocks of 64 threads; return out."""
    arrays = {
        "out": np.full(192, np.nan, np.float32), "partial": np.arange(192, dtype=np.float32),
        "counter": np.zeros(64, np.int32),
    }  # fmt: skip
    return launch_one(bodies, body, PARAMETERS, arrays, blocks=3, order=order, head=HEAD)


def report(before, after):
    """Return a body in which the last block to report adds up what all have written."""
    return (
        f"partial[i] = t; __shared__ bool last;\n{before}\n"
        f"if (t == 0) last = atomicAdd(counter, 1) == gridDim.x - 1;\n{after}\nif (last) {SUM}"
    )


# ---- Faults: body -> what the emulator says, in every order -------------------------------------

FAULTS = {
    # the last block by its number
    f"partial[i] = t;\nlast_block(counter);\nif (b == gridDim.x - 1)\n{SUM}":
        r"partial\[\d+\]: .* in line (4|7), and .* in line (4|7): blocks run in any order",
    # ... with the answer stored, and not asked
    f"partial[i] = t;\nbool last = last_block(counter);\nif (last || b == 2)\n{SUM}":
        r"partial\[\d+\]: .* in line (4|7), and .* in line (4|7): blocks run in any order",
    # a counter per block
    f"partial[i] = t;\nlast_block(counter + b);\nif (b == gridDim.x - 1)\n{SUM}":
        r"partial\[\d+\]: .* in line (4|7), and .* in line (4|7): blocks run in any order",
    # another integer than the one that counts
    f"partial[i] = t;\natomicAdd(counter + b, 1);\nif (last_block(counter + 9, false))\n{SUM}":
        r"partial\[\d+\]: .* in line 7, .* in line 4 with no __threadfence before that",
    # __ldg
    "partial[i] = t;\n__syncthreads();\nout[i] = __ldg(&partial[i ^ 1]);":
        r"partial\[\d+\]: .* reads it by __ldg in line 6, .* line 4: __ldg is for what no thread",
    "partial[i] = t;\nout[i] = __ldg(&partial[i]);": "by __ldg in line 5, .* line 4: __ldg",
    "float v = __ldg(&partial[i ^ 1]);\n__syncthreads();\npartial[i] = v;":
        "writes it in line 6, and __ldg reads it in line 4: __ldg is for what no thread",
    # __device__ variables
    "total += 1;": "a __device__ variable: thread .* in line 4, and .* with no barrier in between",
    "if (t == 0)\ntotal += 1;": "a __device__ variable: .* line 5, .* line 5: blocks run in any",
    "results[t] = t;\nout[i] = results[t ^ 1];":
        "a __device__ variable: .* line (4|5), .* line (4|5), with no barrier",
    "if (b == 0)\nresults[t] = t;\nelse\nout[i] = results[t];":
        "a __device__ variable: .* line (5|7), .* line (5|7): blocks run in any order",
    # functions of the host
    "out[i] = thrice(twice(t));": r"thread \d+ of block \d calls the function in line 100",
    "Pair p = {1, 2};\nout[i] = p.difference();": "calls the function in line 109",
    # a write after a read
    "if (b == 0)\nout[i] = partial[64 + t];\nif (b == 1)\npartial[i] = t;":
        r"partial\[\d+\]: .* in line (5|7), and .* in line (5|7): blocks run in any order",
    "float v = partial[i ^ 1];\npartial[i] = v;":
        r"partial\[\d+\]: .* in line (4|5), and .* in line (4|5), with no barrier in between",
    "if (t < 32)\nout[i] = partial[0];\nif (b == 2 && t == 63)\npartial[0] = 1;":
        r"partial\[0\]: thread \d+ (of block \d )?(reads|writes) it in line (5|7), and thread",
    # one warp speaks for the other
    f"if (t > 31) partial[i] = t;\n__threadfence();\n__syncwarp();\n"
    f"if (t == 0) atomicAdd(counter, 1);\n__threadfence();\nif (b == 2)\n{SUM}":
        r"partial\[\d+\]: .* (with no barrier before that|blocks run in any order)",
    # an answer that its warp has, and the other has not
    f"partial[i] = t;\n__threadfence();\n__syncthreads();\nint n = 0;\n"
    f"if (t == 0) n = atomicAdd(counter, 1);\n__threadfence();\nif (t > 31 && b == 2)\n{SUM}":
        r"partial\[\d+\]: .*: blocks run in any order",
    "__shared__ float slots[64]; slots[t] = 0; __syncthreads();\nif (t < 32)\n"
    "out[i] = slots[t + 32];\nelse\nslots[t] = 1;":
        r"slots\[\d+\]: thread \d+ (reads|writes) it in line (6|8), .* line (6|8), with no barrier",
    report("__syncthreads();", "__syncthreads(); __threadfence();"):
        "no __threadfence before that",
    report("__threadfence();", "__syncthreads(); __threadfence();"):
        "no barrier before that block's",
    report("__threadfence(); __syncthreads();", "__syncthreads();"):
        "no __threadfence between this block's atomicAdd and here",
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("body", FAULTS)
def test_refused_in_every_order(body, order):
    with pytest.raises(EmulationError, match=FAULTS[body]):
        launch(FAULTS, body, order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bound", ["32", "THREADS / 2", "THREADS, 2"])
def test_launch_bounds(bound, order):
    source = f"""template <int THREADS>
    __global__ void
    __launch_bounds__({bound}) test(float *out)
    {{
        out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    }}"""
    arguments = {"out": np.zeros(192, np.float32)}
    given = Launch(source, "test<64>", 3, 64, arguments)
    if bound == "THREADS, 2":
        assert run(given, order)["out"].all()
        return
    message = "launched with 64 threads, and the kernel's __launch_bounds__ in line 4 allows 32"
    with pytest.raises(EmulationError, match=message):
        run(given, order)
    assert run(given._replace(threads=32), order)["out"].sum() == 96


# ---- Valid kernels: body -> out, in every order --------------------------------------------------

S = T + 0.0
ALL = np.concatenate([S, S, S])
SUMS = np.concatenate([3 * S, np.full(128, np.nan)])
FENCED = "__threadfence(); __syncthreads();"
VALID = {
    report(FENCED, "__syncthreads(); __threadfence();"): SUMS,
    # one thread's fence covers what the barrier has brought together
    report("__syncthreads(); if (t == 0) __threadfence();",
           "if (t == 0) __threadfence(); __syncthreads();"): SUMS,
    report(f"{FENCED} if (t != 0) __threadfence();",
           "__threadfence(); if (t == 0) __shfl_sync(1, t, 0); __syncthreads();"): SUMS,
    "partial[i] = t; if (last_block(counter)) " + SUM: SUMS,
    "results[i] = t; if (last_block(&total)) out[t] = results[t] + results[64 + t]"
    " + results[128 + t];": SUMS,
    # a counter that is ready for the next launch
    f"partial[i] = t; {FENCED} __shared__ bool last; if (t == 0) last = atomicInc(&ticket,"
    f" gridDim.x - 1) == gridDim.x - 1; __syncthreads(); __threadfence(); if (last) {SUM}": SUMS,
    f"partial[i] = t; if (last_block(counter)) {{ {SUM} if (t == 0) *counter = 0; }}": SUMS,
    # the last block writes where the others have read and written
    "float v = partial[i]; partial[i] = t + 0 * v; bool last = last_block(counter);"
    " if (last) for (int k = t; k < 192; k += 64) { partial[k] *= 2; out[k] = partial[k]; }":
        2 * ALL,
    # a ticket in place of blockIdx
    "__shared__ int mine; if (t == 0) mine = atomicAdd(counter, 1); __syncthreads();"
    " out[mine * 64 + t] = t;": ALL,
    # two levels of counters: the block that ends a pair adds it up
    "partial[i] = t; __shared__ int role; __threadfence(); __syncthreads(); if (t == 0)"
    " role = atomicAdd(counter + (b > 1), 1); __syncthreads(); __threadfence();"
    " if (b < 2 && role == 1) results[t] = partial[t] + partial[64 + t];"
    " if (b < 2 ? role == 1 : true) { if (b == 2) results[64 + t] = partial[i];"
    " __threadfence(); __syncthreads(); if (t == 0) role = 10 + atomicAdd(counter + 5, 1);"
    " __syncthreads(); __threadfence(); if (role == 11) out[t] = results[t] + results[64 + t]; }":
        SUMS,
    # the last warp of all
    "partial[i] = t; __syncwarp(); __threadfence(); int n = 0; if (lane == 0) n ="
    " atomicAdd(counter, 1); n = __shfl_sync(~0u, n, 0); __threadfence(); if (n == 5)"
    " for (int k = lane; k < 64; k += 32) out[k] = partial[k] + partial[64 + k]"
    " + partial[128 + k];":
        SUMS,
    # the last thread of all
    "partial[i] = t; __threadfence(); int n = atomicAdd(counter, 1); __threadfence();"
    " if (n == 191) for (int k = 0; k < 64; k++) out[k] = partial[k] + partial[64 + k]"
    " + partial[128 + k];": SUMS,
    # sums of a block
    "__shared__ float s[64]; s[t] = 1; for (int n = 32; n > 0; n /= 2) { __syncthreads();"
    " if (t < n) s[t] += s[t + n]; } __syncthreads(); out[i] = s[0];": np.full(192, 64),
    "float v = 1; for (int n = 16; n > 0; n /= 2) v += __shfl_down_sync(~0u, v, n);"
    " __shared__ float s[2]; if (lane == 0) s[t / 32] = v; __syncthreads(); out[i] = s[0] + s[1];":
        np.full(192, 64),
    "float v = t; for (int n = 1; n < 32; n *= 2) { float u = __shfl_up_sync(~0u, v, n);"
    " if (lane >= n) v += u; } out[i] = v;":
        np.tile(np.cumsum(S.reshape(2, 32), axis=1).ravel(), 3),
    "unsigned m = lane < 16 ? 0xffff : 0xffff0000; float v = t; if (lane < 16) v ="
    " __shfl_xor_sync(m, v, 1); else v = __shfl_xor_sync(m, v, 2); out[i] = v;":
        np.tile(np.where(T % 32 < 16, T ^ 1, T ^ 2), 3),
    # two buffers in turn, one barrier a round
    "__shared__ float s[2][64]; float v = t; for (int k = 0; k < 6; k++) { s[k % 2][t] = v;"
    " __syncthreads(); v = s[k % 2][(t + 1) % 64]; } out[i] = v;": np.tile((T + 6) % 64, 3),
    "partial[i] = t; for (int k = 0; k < 4; k++) { __syncthreads(); float v = partial[i ^ 1];"
    " __syncthreads(); partial[i] = v + 1; } out[i] = partial[i];": ALL + 4,
    # a warp works on global memory alone
    "partial[i] = t; __syncwarp(); float v = partial[i ^ 1]; __syncwarp(); partial[i] = v;"
    " out[i] = partial[i];": np.tile(T ^ 1, 3),
    # a histogram, of the block and of all
    "__shared__ int bins[4]; if (t < 4) bins[t] = 0; __syncthreads(); atomicAdd(&bins[t % 4], 1);"
    " __syncthreads(); if (t < 4) atomicAdd(&counter[t], bins[t]); if (last_block(counter + 9))"
    " out[t] = t < 4 ? atomicAdd(&counter[t], 0) : 0;":
        np.concatenate([np.where(T < 4, 48, 0), np.full(128, np.nan)]),
    # lanes that happen to be together
    "int n = 0; if (t % 3 == 0) { unsigned m = __activemask(); int first = __ffs(m) - 1;"
    " if (lane == first) n = atomicAdd(counter, __popc(m)); n = __shfl_sync(m, n, first);"
    " n += __popc(m & ((1u << lane) - 1)); out[n] = 1; }":
        np.where(np.arange(192) < 66, 1, np.nan),
    "out[i] = __popc(__activemask()) + (t < 32 ? 0 : __activemask() != ~0u);": np.full(192, 32),
    # __ldg of what nobody writes, by all blocks
    "out[i] = __ldg(&partial[t]) + __ldg(&partial[t]);": 2 * ALL,
    # all bits, and a lock-free maximum
    "__shared__ unsigned m[5]; if (t < 5) m[t] = t == 1 || t == 3 ? ~0u : 0; __syncthreads();"
    " atomicOr(&m[0], 1u << lane); atomicAnd(&m[1], ~(1u << lane)); atomicXor(&m[2], 1u << lane);"
    " atomicMin(&m[3], 7u + t); atomicSub(&m[4], 1u); __syncthreads(); out[i] = (m[0] == ~0u)"
    " + 2 * (m[1] == 0) + 4 * (m[2] == 0) + 8 * (m[3] == 7) + 16 * (m[4] == -64u);":
        np.full(192, 31),
    "__shared__ int most; if (t == 0) most = 0; __syncthreads(); int seen = 0, old; do {"
    " old = seen; seen = atomicCAS(&most, old, max(old, t)); } while (seen != old);"
    " __syncthreads(); out[i] = most;": np.full(192, 63),
    # words
    "char4 c = make_char4(1, 2, -3, 4); uchar4 u = make_uchar4(1, 2, 3, 255); float s, k;"
    " sincosf(0, &s, &k); out[i] = c.z + u.w + s + k + sizeof(short4);": np.full(192, 261),
    "Pair p = {1, 2}; auto f = [](float v) -> float { return v + 1; };"
    " if (t < 64) { out[i] = f(p.sum()); } else if (t > 70) { out[i] = 0; }": np.full(192, 4),
    # half types: 2049 is no float16, nor is 257 a bfloat16
    "__half2 a = __floats2half2_rn(2048, 1), c = __hadd2(a, __float2half2_rn(1));"
    " __half2 d = __hfma2(a, a, c); __half h = __hadd(__float2half(1), __high2half(c));"
    " out[i] = __low2float(c) + __half22float2(c).y + float(h) + __hlt(h, a.x)"
    " + isinf(__low2float(d));": np.full(192, 2048 + 2 + 3 + 1 + 1),
    "__nv_bfloat162 a = __floats2bfloat162_rn(256, 1); a = __hmul2(a, a) + a;"
    " __nv_bfloat16 s = __hadd(__low2bfloat16(__bfloat162bfloat162(256)), __float2bfloat16(1));"
    " out[i] = __low2float(a) / 256 + float(s) + float(__hneg(a.y));": np.full(192, 256 + 256 - 2),
}  # fmt: skip


@pytest.mark.parametrize("order", [*ORDERS, 2, 3])
@pytest.mark.parametrize("body", VALID)
def test_valid_kernels_pass_in_every_order(body, order):
    assert np.array_equal(launch(VALID, body, order), VALID[body], equal_nan=True)


def test_the_compiler_of_cuda_agrees():
    """NVRTC takes the valid kernels, and refuses what does not compile here."""
    hosts = "float twice.*|int rows_of.*|float difference.*"  # NVRTC takes none, called or not
    valid = source_of(one_of(VALID), f"{PARAMETERS}, int which", HEAD)
    source = re.sub(hosts, "", valid)
    given = Launch(source, "test", 1, 1, {})
    if nvrtc.is_valid(given) is None:
        pytest.skip("no NVRTC")
    assert nvrtc.is_valid(given)
    assert not nvrtc.is_valid(given._replace(source=valid))
    wrong = source.replace("switch (which)", "float v[t + 1]; v[0] = 0; switch (which)")
    assert not nvrtc.is_valid(given._replace(source=wrong))


@pytest.mark.parametrize("head", ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>"])
def test_words_of_the_half_types_that_are_not_known_are_unsupported(head):
    kind = "__half2" if "fp16" in head else "__nv_bfloat162"
    source = f"{head}\n__global__ void test({kind} *a) {{ *a = __hadd2_sat(*a, *a); }}"
    given = Launch(source, "test", 1, 1, {"a": np.zeros(2, np.float16)})
    for emulate in gpu.emulate, run:  # with NVRTC to ask, where it is here, and without
        with pytest.raises(Unsupported, match="__hadd2_sat"):
            emulate(given)


# ---- Small numbers -------------------------------------------------------------------------------

flushing = pytest.mark.skipif(not FLUSHES, reason="this processor is not known to flush")


def flushed(a):
    """Return float32 numbers, of which those below 2**-126 are zero."""
    return np.where(np.abs(a) < 2.0**-126, np.copysign(0, a), a).astype(np.float32)


@pytest.mark.parametrize("flush", [pytest.param(True, marks=flushing), False])
def test_arithmetic_flushes_and_nothing_else(flush):
    rng = np.random.default_rng(0)
    a, b = (2.0 ** rng.uniform(-80, -40, (2, 64)) * rng.choice([-1, 1], (2, 64))).astype(np.float32)
    a[:32] *= np.float32(2.0**-60)
    half = rng.integers(0, 0x400, 64, dtype=np.uint16).view(np.float16)  # subnormal
    source = """#include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void test(const float *a, const float *b, const __half *h, float *product,
        float *sum, float *fused, float *copy, float *wide, __half *narrow, __nv_bfloat16 *brain)
    {
        const int t = threadIdx.x;
        product[t] = a[t] * b[t];
        sum[t] = a[t] + 0.0f;
        fused[t] = fmaf(a[t], b[t], 0.0f);
        copy[t] = __shfl_xor_sync(~0u, a[t], 0);
        wide[t] = h[t];
        narrow[t] = wide[t];
        brain[t] = a[t];
    }"""
    results = {name: np.empty_like(a) for name in ("product", "sum", "fused", "copy", "wide")}
    results |= {"narrow": np.empty_like(half), "brain": np.empty(64, np.uint16)}
    given = Launch(source, "test", 1, 64, {"a": a, "b": b, "h": half, **results})
    got = run(given, flush=flush)
    kept = flushed if flush else np.float32
    product = kept(kept(a) * kept(b).astype(np.float64))
    assert np.array_equal(got["product"], product) and np.array_equal(got["fused"], product)
    assert np.array_equal(got["sum"], kept(a)) and (np.count_nonzero(got["sum"]) < 64) == flush
    assert np.array_equal(got["copy"], a)
    assert np.array_equal(got["wide"], half) and np.array_equal(got["narrow"], half)
    bits = a.view(np.uint32)
    assert np.array_equal(got["brain"], bits + 0x7FFF + (bits >> 16 & 1) >> 16)


# ---- Offsets beyond 2**31 ------------------------------------------------------------------------


FAR = [(kernel, emulated.SHARED_LIMIT) for kernel in ("row_means", "backward_columns")]
FAR += [(kernel, emulated.SHARED_LIMIT) for kernel in (*FORWARD, "backward", "backward_atomic")]
FAR += [("backward", 64 * 1024)]  # a T4's, where the sums are in registers


def last_row(source, chosen, blocks, inputs, outputs, numbers):
    """Run a kernel as a `Backend` does, where more than 2**31 vectors, 1024 a row, come before."""
    arguments, begins = inputs | outputs | numbers, {}
    before = 0 if chosen.kernel == "column_sums" else 2**31 // 1024 + 2  # rows
    if before:
        whole = {"gamma", "beta", "dgamma", "dbeta"}
        begins = {k: before * a.size for k, a in (inputs | outputs).items() if k not in whole}
        arguments["rows"] = np.int64(before + 1)
        assert max(begins.values()) > 2**31
    given = Launch(source, chosen.expression, (before + 1) * blocks, chosen.threads, arguments,
                   chosen.shared_bytes, first_block=before * blocks, begins=begins)  # fmt: skip
    for name, array in run(given).items():
        if name in outputs:
            outputs[name][...] = array


@pytest.mark.parametrize("kernel, shared", FAR)
def test_offsets_beyond_32_bits(kernel, shared):
    case = dy, x, gamma, beta = data((1, 4096), np.float32)
    usual = emulated.backend()._replace(shared_limit=lambda: shared)
    way = "backward_looping" if kernel in ("row_means", "backward_columns") else kernel

    def both(changed):
        def run(chosen, *rest):
            last_row(changed if chosen.kernel == kernel else source, chosen, *rest)

        far = usual._replace(run=run)
        if kernel in FORWARD:
            y, cache = passes.forward(far, x, gamma, beta, 1e-5, way)
            return y, *passes.backward(usual, dy, cache)
        y, cache = passes.forward(usual, x, gamma, beta, 1e-5)
        return y, *passes.backward(far, dy, cache, way)

    source = gpu.read_source()
    assert_promise(both(source), *case)
    with pytest.raises(EmulationError, match="out of range|no array holds|crashed|seems to run"):
        both(source.replace("long long", "int"))
