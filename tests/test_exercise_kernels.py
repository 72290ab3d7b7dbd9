"""Exercises whose answers are CUDA source: right and wrong ones, and what the emulator says."""

import re

import numpy as np
import pytest
from answers import altered, expect
from launches import needs_nvrtc
from wrong_answers.kernels import WRONG

from lnlib import gpu
from lnlib.exercises import EXERCISES, check
from lnlib.exercises.kernels import COMPILER_HINTS, Trial, message_for_learner

NORMALISE, SUM, ADD = "normalise_in_a_warp", "sum_with_barriers", "add_while_loading"
FORWARD, BACKWARD = "rms_forward_kernel", "rms_backward_kernel"
LONG_START = "const long long start = (long long)blockIdx.x * vectors;"
READ = "    __syncthreads();  // all have read it, and the slots may be filled again\n"
CLEAR = "for (int v = 0; v < VECTORS; v++) total[v] = Vector<WIDTH>();"
OTHER_RIGHT_KERNELS = [
    (  # at column 0, a brace in a comment and in a string, CUDA's own words
        NORMALISE,
        ("    for (int bits = 1; bits < 32; bits *= 2)", "int k = 1;\nwhile(k < warpSize) { // {"),
        ("value, bits);", "value, k, 32); k *= 2; }"),
        ("sqrtf(var + eps)", "__fsqrt_rn(max(var, 0.0f) + eps)"),
        ("__device__ float sum", "__forceinline__ __device__ float sum"),
        ("return xc", 'const char *text = "\'{"; return xc'),
    ),
    (NORMALISE, ("int bits = 1; bits < 32; bits *= 2", "int bits = 16; bits; bits >>= 1")),
    (  # one barrier as the first line
        SUM,
        ("__shared__ float", "volatile __shared__ float other[2],"),
        ("    slots[threadIdx.x] = value", "    __syncthreads();\n    slots[threadIdx.x] = value"),
        (READ, "    __threadfence_block();\n"),
    ),
    (  # a pointer to a slot
        SUM,
        ("slots[threadIdx.x] = value;", "float *mine = slots + threadIdx.x; *mine = value;"),
        ("slots[threadIdx.x] +=", "*mine +="),
    ),
    (  # clamped instead of padded
        ADD,
        ("load<THREADS>(b, start, vectors, other);", "const int last = vectors - 1;"),
        (
            "() + v * THREADS;",
            "() + v * THREADS;\n        other[v] = b[start + min(i, last)];",
        ),
        ("+= other[v].at[j]", "+= i < vectors ? other[v].at[j] : 0.0f"),
    ),
    (FORWARD, (LONG_START, "const size_t start = static_cast<size_t>(blockIdx.x) * vectors;")),
    (
        BACKWARD,
        ("long long n = blockIdx.x;", "int n = blockIdx.x;"),
        ("n * v", "(long long)n * v"),
        ("partial[(long long)blockIdx.x * vectors", "partial[(int)blockIdx.x * vectors"),
        (CLEAR, "for (auto &one : total)\n        one = Vector<WIDTH>();"),
    ),
    (  # start in a long long, and a remainder of it in a bool
        ADD,
        ("const int i =", "const bool odd = start % 2; const long long i = odd * 0 + start +"),
        ("i < vectors", "i < start + vectors"),
        ("s[start + i]", "s[i]"),
    ),
]


@pytest.mark.parametrize("name, changes", [(one[0], one[1:]) for one in OTHER_RIGHT_KERNELS])
def test_other_right_kernels(name, changes):
    expect(check(altered(name, *changes)), "right")


NOT_COMPILED = [
    (NORMALISE, "xc * xc", "xc ** 2", "line 11, const float var = sum_of_lanes(xc ** 2) / 32;"),
    (NORMALISE, "0xffffffff, value", "value, 0xffffffff", "with the mask first"),
    (NORMALISE, "value, bits);", "value, bits;", "with 7 ( and 6 ): one is missing"),
    (NORMALISE, "__device__ float sum", "float sum", "has no __device__ in front"),
    (NORMALISE, "__device__ float n", "__global__ float n", "normalise is __global__, a kernel"),
    (NORMALISE, "float normalise(", "float normalize(", "a text without the function normalise"),
    (NORMALISE, "(int bits", "(bits", "line 3, for (bits = 1; bits < 32; bits *= 2): "),
    (ADD, "load<THREADS>(a,", "load(a,", "as in load<THREADS>(...)"),
]


WHAT_RIGHT_NUMBERS_HIDE = [
    (FORWARD, LONG_START, "const int start = blockIdx.x * vectors;", "needs a long long"),
    (FORWARD, "reciprocal_std(ms, eps)", "1.0f / sqrtf(ms + eps)", "come out finite and wrong"),
    (FORWARD, "reciprocal_std(ms, eps)", "1.0f / (sqrtf(ms) + eps)", "eps is outside the root"),
    (BACKWARD, "long long n = blockIdx.x;", "int n = blockIdx.x;", "needs a long long"),
    (BACKWARD, "total[v] = Vector<WIDTH>();", ";", "adds to total, which never got a value"),
    (FORWARD, LONG_START, "const long long start = blockIdx.x * vectors;", "needs a long long"),
]
TICKET = "__device__ int tickets;\n__device__ float normalise("
ONLY_IN_ONE_ORDER = [  # when lane 0 comes first, last, or neither
    "ticket == 0",
    "ticket == 31",
    "ticket > 0 && ticket < 31",
]


@pytest.mark.parametrize("when", ONLY_IN_ONE_ORDER)
def test_numbers_must_not_depend_on_the_order_of_threads(when):
    ticket = f"const int ticket = atomicAdd(&tickets, 1) % 32;\n    if ({when} && threadIdx.x == 0)"
    answer = altered(
        NORMALISE,
        ("__device__ float normalise(", TICKET),
        ("    return xc", f"    {ticket} return 7;\n    return xc"),
    )
    expect(check(answer), "wrong", "gives other numbers where the threads take turns in another")


@pytest.mark.parametrize("name, old, new, words", WRONG + NOT_COMPILED + WHAT_RIGHT_NUMBERS_HIDE)
def test_wrong_kernel_is_diagnosed(name, old, new, words):
    expect(check(altered(name, (old, new))), "wrong", words)


@pytest.mark.parametrize(
    "line, words",
    [
        ("__syncthread();", "the barrier is called __syncthreads"),
        ("syncthreads();", "the barrier is called __syncthreads"),
        ("# variance", "begins with //"),
        ("a = 1;  # one", "begins with //"),
        ("v += __shfl_xor_sync(v, 1);", "with the mask first"),
        ("v += __shfl_xor(v, 1);", "a shuffle is __shfl_xor_sync("),
        ("return np.sqrt(v);", "the root is sqrtf"),
        ("if v > 0:", "if (...) has no colon"),
        ("return None;", "this is Python"),
    ],
)
def test_lines_that_are_never_right(line, words):
    text = message_for_learner(
        "k does not compile: your source:2: error: ...", "k", f"int f()\n{line}"
    )
    assert text == f"does not compile: line 2, {line}: " + text.split(": ")[-1] and words in text
    fine_lines = "#pragma unroll|__syncthreads();|a[i] **p;|# define TWO 2|int xor = 1;"
    for fine in fine_lines.split("|"):
        assert message_for_learner("k: stopped", "k", fine) == "fails in the emulator: stopped"


@pytest.mark.parametrize(
    "message, words",
    [
        ("no matching function for call to ‘load(const Vector<4>*&)’", "as in load<THREADS>"),
        ("no matching function for call to 'load'", "as in load<THREADS>"),
        ("no match for ‘operator+=’ (types are ‘Vector<4>’ and ‘float’)", "no number: .at[j]"),
        ("no viable overloaded '+='", "no number: .at[j]"),
        ("invalid operands of types ‘float’ and ‘int’ to binary ‘operator^’", "a square is c * c"),
    ],
)
def test_hints_for_two_compilers(message, words):
    hints = [hint for pattern, hint in COMPILER_HINTS.items() if re.search(pattern, message)]
    assert words in hints[0]  # which is added


def test_a_compilers_words_are_kept_and_folders_are_not():
    error = "your source:1: error: expected primary-expression before ‘/’ token"
    said = message_for_learner(f"k does not compile: /tmp/a b/{error}", "k", "x = / 2;")
    assert said == "does not compile: line 1, x = / 2;: " + error.split("error: ")[1]


def test_what_the_emulator_does_not_know_is_not_checked():
    verdict = check(altered(NORMALISE, ("return xc", "return 0 * tex1Dfetch<float>(0, 1) + xc")))
    expect(verdict, "not checked", "does not know tex1Dfetch")


def answer(name, text):
    """Return a function of that name that returns the text."""
    exec(f"def {name}(): return {text!r}", names := {})
    return names[name]


@pytest.mark.parametrize("name", [NORMALISE, SUM, ADD])
def test_without_a_compiler_it_is_not_checked(name, monkeypatch):
    monkeypatch.setattr(gpu, "emulator_available", lambda: False)
    monkeypatch.setattr(gpu, "emulator_status", lambda: "no compiler: install g++")
    expect(check(altered(name)), "not checked", "install g++")
    expect(check(answer(name, "// your turn")), "not done yet")
    expect(check(answer(name, "something else")), "wrong")


@pytest.mark.parametrize(
    "body, words",
    [
        ("for (;;) __syncwarp();", "it seems to run forever"),
        ("__syncthreads(); return *(volatile float *)0;", ""),
        ("if (value > 0.7f) __syncthreads(); __syncwarp(); return 0;", "in the emulator: block 0"),
    ],
)
def test_what_the_emulator_says_reaches_the_learner(body, words):
    source = f"__device__ float normalise(float value, float eps) {{\n{body}\n}}"
    verdict = check(answer(NORMALISE, source))
    expect(verdict, "wrong", words)
    assert "/" not in repr(verdict) and "\n\n" not in repr(verdict)


@needs_nvrtc
@pytest.mark.parametrize(
    "name, changes, words",
    [
        (
            NORMALISE,
            [
                ("__device__ float sum", "float N = 32;\n__device__ float sum"),
                ("xc) / 32", "xc) / N"),
            ],
            "line 1, float N = 32;: a variable outside",
        ),
        (NORMALISE, [("__device__ float sum", "constexpr float sum")], "needs __device__ in front"),
        (NORMALISE, [("sqrtf(", "__builtin_sqrtf(")], "__builtin_sqrtf"),
    ],
)
def test_what_only_the_emulator_takes_is_not_right(name, changes, words):
    verdict = check(altered(name, *changes))
    expect(verdict, "wrong", "NVIDIA's compiler refuses line")
    expect(verdict, "wrong", words)


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
    order = Trial(
        f"owners<{threads}, {vectors}, {width}>", 1, threads, {"x": x},
        {"order": (threads, vectors * width)}, {"D": np.int32(D)}, gpu.read_source(), OWNERS,
    ).run("")["order"]  # fmt: skip
    for thread in range(threads):
        loaded = [int(column) - 1 for column in order[thread] if column]
        assert loaded == EXERCISES["columns_of"].right(thread, threads, width, D)
