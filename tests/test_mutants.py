"""layernorm.cu with a mistake in it: none may leave the emulator with right numbers and no word."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from launches import LOOPING, arrays, emulate_backward_changed
from oracle import assert_promise
from test_promise import half_of_g_at_its_mean

from lnlib import gpu
from lnlib.exercises.kernels import ORDERS
from lnlib.gpu.dispatch import FORWARD

SOURCE = gpu.read_source()
RACE = "with no barrier in between"
SILENT = None  # no diagnosis: they are wrong


class Mutant(NamedTuple):
    """A mistake in a kernel: what the emulator says, the text, and what stands in its place."""

    kernel: str
    says: str | None
    old: str
    new: str
    nth: int = 0  # of several places with that text

    @property
    def source(self):
        parts = SOURCE.split(self.old)
        assert len(parts) > self.nth + 1, f"the source has no {self.old!r} at {self.nth}"
        head, tail = parts[: self.nth + 1], parts[self.nth + 1 :]
        return self.old.join(head) + self.new + self.old.join(tail)


# Rows have 900 entries: forward has 2 warps in a block, backward has 8, with a row each.
MUTANTS = {  # name: the fields of a `Mutant`
    "barrier of block_sum removed": ("forward", RACE, "    __syncthreads();\n", ""),
    "barrier between rows of sums removed": ("backward", RACE, "        __syncthreads();\n", ""),
    "barrier before the report removed": ("backward_single",
        "no (barrier|__threadfence) before that block's atomicAdd",
        "    __syncthreads();  // ... and", "    // ... and"),
    "barrier after the report removed": ("backward_single", "last: thread .*" + RACE,
        "    __syncthreads();\n    if (!last)", "    if (!last)"),
    "fence after the report removed": ("backward_single",
        "no __threadfence between this block's atomicAdd and here", "    __threadfence();", "", 1),
    "shuffles for fences": ("backward_single", "no __threadfence before that",
        "__threadfence();  // what", "__shfl_sync(0xffffffff, 0, 0);  // what"),
    "report forgotten": ("backward_single", "blocks run in any order",
        "atomicAdd(&counter[0], 1) ==", "blockIdx.x =="),
    "barrier that not all threads reach": ("forward", RACE,
        "    if (lane == 0)\n        slots[buffer][warp] = value;\n    __syncthreads();",
        "    if (lane == 0) {\n        slots[buffer][warp] = value;\n    __syncthreads(); }"),
    "a warp returns before the barrier": ("forward", SILENT, "    const int vectors = D / WIDTH;\n",
        "    const int vectors = D / WIDTH;\n    if (threadIdx.x >= 32) return;\n"),
    "one buffer for two sums": ("forward", RACE, "sum(xc), 1)", "sum(xc), 0)"),
    "one buffer for both sums of a row": ("row_means", RACE,
        "block_sum<THREADS>(make_float2(again.g, again.gx), 0)",
        "make_float2(block_sum<THREADS>(again.g, 0), block_sum<THREADS>(again.gx, 0))"),
    "one set of slots for both times": ("row_means", RACE,
        "const float2 sums = block_sum<THREADS>(make_float2(again.g, again.gx), 0);",
        "const Sums3 s = block_sum<THREADS>(again, 0); float2 sums = make_float2(s.g, s.gx);"),
    "first warp's sum only": ("forward", SILENT, "[lane % WARPS]", "[0]"),
    "a step for each lane, not for each warp": ("forward", SILENT, "warp_sum<WARPS>", "warp_sum"),
    "one step of the butterfly short": ("forward", SILENT, "bits < LANES", "bits < LANES / 2"),
    "half a warp shuffles": ("forward", "stuck: thread 0 waits for its warp",
        "    value = warp_sum(value);\n    if",
        "    if (threadIdx.x % 32 < 16) value = warp_sum(value);\n    if"),
    "a lane outside the mask is asked": ("forward",
        r"wants the value of lane \d+, which takes no part", "__shfl_xor_sync(0xffffffff,",
        "__shfl_xor_sync(1u << threadIdx.x % 32,"),
    "padding not masked": ("forward", SILENT, "if (member<THREADS>() + v * THREADS < vectors)",
        "if (true)"),
    "padding not zero": ("forward", SILENT, ": Vector<WIDTH>();", ": Vector<WIDTH>{1};"),
    "not centred again": ("forward", SILENT, "    subtract<THREADS>(xc, rest, vectors);\n", ""),
    "mean saved in float32": ("forward", SILENT, "mean_lo[n] = rest;",
        "mean_lo[n] = 0;"),
    "output outside the strided loop": ("forward_looping", "out of range",
        "    for (int i = threadIdx.x; i < vectors; i += THREADS) {",
        "    { const int i = threadIdx.x;", 1),
    "first vectors of the output only": ("forward", SILENT,
        "        if (i < vectors)\n            y[start",
        "        if (i < vectors && v == 0)\n            y[start"),
    "output not masked": ("forward",
        r"y\[\d+\] is out of range: thread \d+ of block . wants to write it|blocks run in any",
        "        if (i < vectors)\n            y[start", "            y[start"),
    "input not masked": ("forward",
        r"x\[\d+\] is out of range: .* wants to read it in line \d+, and x has 675 elements",
        "i < vectors ? wide(from[start + i]) : Vector<WIDTH>()", "wide(from[start + i])"),
    "every block the first row": ("forward", "blocks run in any order", "n * vectors;  //",
        "0 * n; //"),
    "one over D forgotten": ("forward", SILENT, "block_sum<THREADS>(sum(xc), 0) * one_over_D",
        "block_sum<THREADS>(sum(xc), 0)"),
    "first vector left out of the sum": ("forward", SILENT, "Vector<WIDTH> total = row[0];",
        "Vector<WIDTH> total = {};"),
    "first vector squared twice": ("forward", SILENT, "int v = 1; v < VECTORS",
        "int v = 0; v < VECTORS", 1),
    "sums of the neighbour": ("backward", RACE, "sums[(FOURS + k) * APART] = dbeta",
        "sums[((FOURS + k) * APART) ^ 1] = dbeta"),
    "sums past the end": ("backward",
        r"sums\[4\d+\] is out of range: .* the shared array shared_sums has 4096 elements",
        "for (int k = 0; k < 2 * FOURS; k++)\n        sums",
        "for (int k = 0; k <= 2 * FOURS; k++)\n        sums"),
    "sums not cleared": ("backward", SILENT, "        sums[k * APART] = Four();\n", "        ;\n"),
    "dbeta's sums in dgamma's place": ("backward", SILENT, "sums[(FOURS + k) * APART] = dbeta",
        "sums[k * APART] = dbeta"),
    "a group's sums forgotten": ("backward", SILENT, "int groups = ROWS / 2;",
        "int groups = ROWS / 4;"),
    "means of the first row": ("backward_columns", SILENT, "means[n]", "means[0]"),
    "means of every block in one place": ("row_means", "blocks run in any order",
        "means[blockIdx.x] = of", "means[0] = of"),
    "vectors counted twice": ("row_means", SILENT,
        "i += THREADS) {\n            const Vector<WIDTH> x_hat",
        "i += THREADS / 8) {\n            const Vector<WIDTH> x_hat"),
    "rows of all blocks in each": ("backward_columns", "blocks run in any",
        "first = blockIdx.x / across;", "first = 0;"),
    "columns of the first block": ("backward_columns", SILENT,
        "blockIdx.x % across * THREADS", "blockIdx.x * THREADS"),
    "rows of all columns' blocks": ("backward_columns", "blocks run in any|races",
        "n += gridDim.x / across", "n += 1"),
    "what is lost is added twice": ("backward_columns", SILENT, "more = term - lost",
        "more = term + 1e6f * lost"),
    "columns past the end": ("backward_columns", "out of range|blocks run in any",
        "    if (i >= vectors)\n        return;\n    const Vector<WIDTH> gain",
        "    const Vector<WIDTH> gain"),
    "dbeta in the next block's place": ("backward_columns", "out of range|blocks run in any",
        "first * 2 + 1) * vectors", "first * 2 + 2) * vectors"),
    "wrong atomic index": ("backward_atomic", SILENT, "dgamma[i * WIDTH + j]", "dgamma[i + j]"),
    "plain addition for atomicAdd": ("backward_atomic", "blocks run in any order",
        "atomicAdd(&dbeta[i * WIDTH + j], d[v].at[j])", "dbeta[i * WIDTH + j] += d[v].at[j]"),
    "dbeta over dgamma": ("backward", SILENT, "start + which * vectors", "start"),
    "rows of other blocks": ("backward", "blocks run in any order",
        "n < rows; n += gridDim.x * ROWS", "n < rows; n += ROWS"),
    "last row forgotten": ("backward", SILENT, "n < rows; n += gridDim.x * ROWS",
        "n < rows - 1; n += gridDim.x * ROWS"),
    "x_hat term forgotten": ("backward", SILENT, " - x_hat.at[j] * of.gx", ""),
    "gamma past the end": ("backward", r"gamma\[\d+\] is out of range",
        "bool there = i < vectors;", "bool there = true;"),
    "dx past the end": ("backward", "out of range|blocks run in any",
        "        if (i < vectors)\n            dx[start", "            dx[start"),
    "gamma's first vector for all": ("backward", SILENT, "there ? wide(gamma[i])",
        "there ? wide(gamma[0])"),
    "padding counted in the second sum": ("backward", SILENT, "there ? less : 0.0f", "less"),
    "first rows of partial sums only": ("column_sums", SILENT, "n < rows; n += THREADS / COLUMNS",
        "n < 1; n += THREADS / COLUMNS"),
    "overflow not noticed": ("forward", SILENT, "square < 3e38f", "true"),
    "null pointer": ("forward", r"thread \d+ of block \d uses a null pointer in line \d+",
        "    const int vectors = D / WIDTH;\n",
        "    const int *none = nullptr; const int vectors = *none;\n"),
    "crash": ("forward", r"forward<64, 4, 4, 1> crashed \(SIG(SEGV|BUS)\)",
        "    const int vectors = D / WIDTH;\n", "    const int vectors = *(volatile int *)64;\n"),
}  # fmt: skip


MUTANTS = {name: Mutant(*fields) for name, fields in MUTANTS.items()}


@functools.cache
def right_forward(rows):
    """Return rows and what the forward pass makes of them, as it should."""
    case = arrays((rows, 900), offset=1e7)
    return case, gpu.emulate_forward(*case[1:])


def both_passes(kernel, source, order, sigma=1):
    """Run both passes, with a source for one kernel; return what was given, and the results."""
    if kernel in FORWARD:
        case = arrays((3, 900), offset=1e7 * sigma, sigma=sigma)
        y, cache = gpu.emulate_forward(*case[1:], kernel=kernel, order=order, source=source)
        return case, (y, *gpu.emulate_backward(case[0], cache, order=order))
    # "backward" takes 24 rows at a time; these take one, in each of many more threads
    case, (y, cache) = right_forward(10 if kernel in LOOPING else 40)
    return case, (y, *emulate_backward_changed(source, kernel, case[0], cache, order))


@pytest.mark.parametrize("name, order", [(m, ORDERS[k % 3]) for k, m in enumerate(MUTANTS)])
def test_mutant_is_caught(name, order):
    mutant = MUTANTS[name]
    if mutant.says is SILENT:
        overflow = name == "overflow not noticed"
        sigma = 1e20 if overflow else 1
        case, results = both_passes(mutant.kernel, mutant.source, order, sigma)
        assert not overflow or np.isfinite(results[0]).any()
        with pytest.raises(AssertionError):
            assert_promise(results, *case)
    else:
        with pytest.raises(gpu.EmulationError, match=mutant.says):
            both_passes(mutant.kernel, mutant.source, order)


@pytest.mark.parametrize("kernel", dict.fromkeys(mutant.kernel for mutant in MUTANTS.values()))
def test_the_source_itself_passes_the_same_test(kernel):
    case, results = both_passes(kernel, SOURCE, "reverse")
    assert_promise(results, *case)


def far(level=1.3, size=1.0):
    """Return rows in which the mean of dy is 1000 times its spread, and gamma is constant."""
    dy, x, gamma, beta = arrays((7, 1100))
    return [a.astype(np.float32) for a in (size * (dy + 1e3), x, 0 * gamma + level, beta)]


def around_0():
    dy, *others = arrays((7, 1100))
    return [dy - dy.mean(axis=-1, keepdims=True), *others]


def rounded_alike():
    dy, x, gamma = half_of_g_at_its_mean(2048)
    return [a.astype(np.float32) for a in (dy[None], x[None], gamma, gamma)]


# What a row's backward pass takes for the mean of g, in rows of several warps.
OF_MEANS = {  # name: rows that show it, and the fields of a `Mutant` but its kernel
    "second sum never": (far, SILENT, "in_range && limit * mean * mean <= var", "true"),
    "limit for all lengths": (rounded_alike, SILENT, "fmaxf(2, 1 / (36 * one_over_D))", "2"),
    "squares of dy": (lambda: far(level=0.1), SILENT, "sum(product(g, g))", "sum(product(d, d))"),
    "squares that vanish": (lambda: far(size=1e-23), SILENT,
        "in_range = square > 1e-30f && ", "in_range = "),
    "squares that overflow": (lambda: far(size=1e15), SILENT, " && square < 3e38f;", ";"),
    "rest forgotten": (far, SILENT, "(g - of.rest - x_hat", "(g - x_hat"),
    "mean left in dx": (far, SILENT, "d.at[j], -of.mean)", "d.at[j], 0)"),
    "gamma * dy rounded before its mean goes": (far, SILENT,
        "fmaf(gain.at[j], d.at[j], -of.mean)", "gain.at[j] * d.at[j] - of.mean"),
    "mean left in the second sum": (far, SILENT, "d.at[j], -less)", "d.at[j], 0)"),
    "one buffer for all rows": (around_0, RACE, "        buffer = 1 - buffer;\n", ""),
    "one set of slots": (far, RACE, "const Sums3 again = sums_without(mean);",
        "const Sums3 again = block_sum<THREADS>(sums_without(mean), buffer);"),
}  # fmt: skip


# Each of them in "backward"; and in one of the two kernels of "backward_looping", if it is there.
IN_COLUMNS = "rest forgotten", "mean left in dx", "gamma * dy rounded before its mean goes"
KERNELS = [("backward", name) for name in OF_MEANS]
KERNELS += [
    ("backward_columns" if name in IN_COLUMNS else "row_means", name)
    for name, (_, says, *_) in OF_MEANS.items() if says is SILENT
]  # fmt: skip


@functools.cache
def right_rows(rows):
    """Return rows and their forward pass. The source itself keeps the promise there."""
    dy, *of_forward = case = rows()
    y, cache = gpu.emulate_forward(*of_forward)
    for kernel in "backward", "backward_looping":
        assert_promise((y, *gpu.emulate_backward(dy, cache, kernel=kernel)), *case)
    return case, y, cache


@pytest.mark.parametrize("kernel, name", KERNELS)
def test_mutant_of_the_means_is_caught(kernel, name):
    rows, *fields = OF_MEANS[name]
    mutant = Mutant(kernel, *fields)
    case, y, cache = right_rows(rows)
    given = mutant.source, kernel, case[0], cache, ORDERS[len(name) % 3]
    if mutant.says is SILENT:
        wrong = y, *emulate_backward_changed(*given)
        with pytest.raises(AssertionError):
            assert_promise(wrong, *case)
    else:
        with pytest.raises(gpu.EmulationError, match=mutant.says):
            emulate_backward_changed(*given)
