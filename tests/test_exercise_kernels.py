"""Exercises whose answers are CUDA source: other right answers, other machines, what loads do."""

import numpy as np
import pytest

from lnlib import gpu
from lnlib.exercises import EXERCISES, check
from lnlib.exercises.kernels import launch
from lnlib.gpu import emulator


def answer(name, source):
    """Return a function of that name that returns the source."""
    names = {}
    exec(f"def {name}(): return {source!r}", names)
    return names[name]


TREE = """
template <int THREADS>
__device__ float tree_sum(float value)
{{
    __shared__ float slots[THREADS];
    {}
    slots[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half)
            slots[threadIdx.x] += slots[threadIdx.x + half];
    }}
    __syncthreads();
    {}
}}
"""
LOAD_SUM = """
template <int THREADS, int VECTORS, int WIDTH>
__device__ void load_sum(
    const Vector<WIDTH> *a, const Vector<WIDTH> *b, Vector<WIDTH> *__restrict__ s,
    long long start, int vectors, Vector<WIDTH> (&row)[VECTORS])
{
    for (int v = 0, i = threadIdx.x; v < VECTORS; v++, i += THREADS)
        if (i >= vectors) {
            row[v] = Vector<WIDTH>();
        } else {
            const Vector<WIDTH> one = a[start + i], other = b[start + i];
            for (int j = 0; j < WIDTH; j++)
                row[v].at[j] = one.at[j] + other.at[j];
            s[start + i] = row[v];
        }
}
"""
OTHER_RIGHT_ANSWERS = [
    (
        "normalise_in_a_warp",
        """
__device__ float normalise(float value, float eps)
{
    float mean = 0, var = 0;
    for (int lane = 0; lane < 32; lane++)
        mean += __shfl_sync(0xffffffff, value, lane) / 32;
    for (int lane = 0; lane < 32; lane++) {
        const float other = __shfl_sync(0xffffffff, value, lane) - mean;
        var += other * other / 32;
    }
    return (value - mean) * rsqrtf(var + eps);
}
""",
    ),
    (
        "normalise_in_a_warp",
        """
#define SUM(v) for (int bits = 16; bits; bits >>= 1) v += __shfl_xor_sync(~0u, v, bits);
__device__ float normalise(float value, float eps) {
    float sum = value; SUM(sum)
    value -= sum / 32;
    float squares = value * value; SUM(squares)
    return value / sqrtf(squares / 32 + eps);
}""",
    ),
    ("sum_with_barriers", TREE.format("__syncthreads();", "return slots[0];")),
    (
        "sum_with_barriers",
        TREE.format("", "value = slots[0]; __syncthreads(); return value;"),
    ),
    ("add_while_loading", LOAD_SUM),
]


@pytest.mark.parametrize("name, source", OTHER_RIGHT_ANSWERS)
def test_other_right_answers(name, source):
    assert check(answer(name, source)).status == "right"


@pytest.mark.parametrize("name", ["normalise_in_a_warp", "sum_with_barriers", "add_while_loading"])
def test_without_a_compiler_it_is_not_checked(name, monkeypatch):
    source = next(source for n, source in OTHER_RIGHT_ANSWERS if n == name)
    monkeypatch.setattr(emulator, "_compiler", lambda: None)
    verdict = check(answer(name, source))
    assert verdict.status == "not checked" and "install g++" in repr(verdict)
    assert check(answer(name, "// your turn")).status == "not done yet"
    assert check(answer(name, "something else")).status == "wrong"


@pytest.mark.parametrize(
    "body, said",
    [
        ("return value", "It does not compile: your source:2:"),
        ("struct { double d[4]; } wide; emulated::exchange(1, wide, 0, 0); return 0;", "compile"),
        ("for (;;) __syncwarp();", "it seems to run forever"),
        ("__syncthreads(); return *(volatile float *)0;", "It crashed (SIG"),
        ("if (value > 0.7f) __syncthreads(); return value;", "It fails in the emulator: block 0"),
    ],
)
def test_what_the_emulator_says_reaches_the_learner(body, said):
    source = f"__device__ float normalise(float value, float eps) {{\n{body}\n}}"
    verdict = check(answer("normalise_in_a_warp", source))
    assert verdict.status == "wrong" and said in " ".join(repr(verdict).split()), verdict
    assert "/" not in repr(verdict) and "\n\n" not in repr(verdict)


OWNERS = """
template <int THREADS, int VECTORS, int WIDTH>
__global__ void owners(const Vector<WIDTH> *x, float *order, int D)
{
    Vector<WIDTH> row[VECTORS];
    load<THREADS>(x, 0, D / WIDTH, row);
    for (int k = 0; k < VECTORS * WIDTH; k++)
        order[threadIdx.x * VECTORS * WIDTH + k] = row[k / WIDTH].at[k % WIDTH];
}"""


def test_columns_are_those_that_the_kernel_loads():
    threads, vectors, width, D = 32, 3, 4, 300
    x = np.arange(1, D + 1, dtype=np.float32)  # (D,); padding is zero
    order = launch(
        (gpu.read_source(), "", OWNERS),
        f"owners<{threads}, {vectors}, {width}>",
        *(1, threads, {"x": x}, {"order": (threads, vectors * width)}, {"D": np.int32(D)}),
    )["order"]
    for thread in range(threads):
        loaded = [int(column) - 1 for column in order[thread] if column]
        assert loaded == EXERCISES["columns_of"].right(thread, threads, width, D)
