"""Lesson 06: arithmetic, bytes, time and memory by formula."""

import numpy as np

from ..checker import Terms, mistakes
from .registry import exercise

COST_CASES = {
    "float32 (once per row does not count, nor do gamma and beta)": (2048, 256, 4),
    "float64": (96, 770, 8),
}
COST_TERMS = Terms("1", "N * D; N * D * itemsize; N; N * itemsize; N * D * 4")


@exercise("flops nbytes", COST_CASES, terms=COST_TERMS)
@mistakes("""
    flops * N => 9 * N  # 2 too many. That is the textbook's count: no second mean hides here.
    flops * N => 6 * N  # 1 is missing. Did you count the product x * x, and the sums of both means?
    values * N * D => (values * N * D + 2 * D)  # gamma and beta, D numbers each, do not count here.
    values * N => 15 * N  # that is the textbook's count. No second mean hides here.
    values * N => 11 * N  # 1 is missing. x * x also writes an array, and its mean reads that array.
    values * N => 17 * N  # with the reads of write-allocate; here a write counts once.
    values * N => 7 * N  # only what is read; each operation also writes its result.
    values * N => 5 * N  # only what is written; each operation also reads its operands.
    values * N => 2 * N  # that is one kernel's. NumPy finishes one operation before the next.
""")
def cost_of_one_pass(N, D, itemsize):
    """Return FLOPs and bytes moved by one_pass_forward for x of shape (N, D)."""
    flops = 1 + 2 + 2 + 2  # mean; x * x and its mean; subtract and scale; gain and shift
    values = 1 + (2 + 1) + (2 + 2) + (2 + 2)
    return flops * N * D, values * N * D * itemsize


PASSES, BYTES = np.array([[4.1e9, 0.0, 6.3e8, 2.9e10], [2.3e8, 7.7e8, 9.1e8, 4.4e7]])
BANDWIDTHS, PEAKS = np.array([[2.1e10, 3.35e12, 4.8e12], [1.7e9, 6.0e13, 6.7e12]])


TIME_CASES = {
    "one layer": (3.7e8, 5.2e8, 2.1e10, 9.5e10),
    "a matrix product": (2.15e9, 1.26e7, 2.1e10, 9.5e10),
    "an array of passes, one of them a copy": (PASSES, BYTES, 3.3e11, 1.9e13),
    "an array of machines": (6.1e9, 1.7e9, BANDWIDTHS, PEAKS),
}


@exercise("seconds busy", TIME_CASES)
@mistakes("""
    seconds = => seconds = for_memory + for_arithmetic;  # the sum; but both work at the same time.
    np.maximum => np.minimum  # the shorter of the two times; the longer one decides.
    seconds = => seconds = for_memory;  # the time of memory, even where arithmetic's is longer.
    np.maximum(for_memory, for_arithmetic) => np.minimum(flops / nbytes * bandwidth, arithmetic)
        a rate, in FLOP per second: divide the FLOPs by it.
    nbytes / bandwidth => nbytes / arithmetic
    flops / arithmetic => flops / bandwidth  # bandwidth and arithmetic have changed places.
    nbytes / bandwidth => nbytes * bandwidth
    flops / arithmetic => flops * arithmetic  # work times pace; the time is work divided by pace.
    for_arithmetic / seconds => for_memory / seconds  # the share of memory, not of arithmetic.
    for_arithmetic / seconds => 1 - for_arithmetic / seconds  # the share in which it waits.
    for_arithmetic / seconds => flops / nbytes  # the intensity in FLOP per byte, not a share.
""")
def seconds_at_least(flops, nbytes, bandwidth, arithmetic):
    """Return the least time, and the share of it in which the arithmetic units have work."""
    for_memory = nbytes / bandwidth
    for_arithmetic = flops / arithmetic
    seconds = np.maximum(for_memory, for_arithmetic)
    return seconds, for_arithmetic / seconds


MEMORY_CASES = {
    "many tokens": (64 * 4 * 12_347, 64, 96, 4),
    "float64": (5 * 8 * 25_309, 5, 97, 8),
    "few tokens": (5 * 4 * 1795, 5, 512, 4),
    "one layer": (2 * 4996, 1, 300, 2),
}


@exercise("with_x_hat with_rows", MEMORY_CASES)
@mistakes("""
    ) - D => )
        gamma is missing: each layer keeps D numbers that do not depend on the tokens. Or it is
        rounded up, which may give the same number.
    ) - D => ) - D // layers  # gamma is taken off once; each layer keeps its own.
    memory // (layers * itemsize) - D => (memory // layers - D) // itemsize  # D bytes, not numbers.
    ) - D => ) - 2 * D  # beta is taken off too; no gradient needs it.
    (D + 1) => D  # rstd is missing: x_hat comes with one number per token.
    (D + 1) => (D + 2)  # x_hat needs no mean: it comes with rstd alone.
    (D + 1) => (2 * D + 1)  # x is counted beside x_hat, or a gamma for each token; x_hat is kept.
    // 3 => // 2  # the mean takes two numbers per token, and rstd is the third.
    // 3 =>  # three numbers per token, not one.
    // 3 => // (D + 3)  # x is kept by somebody else; count mean, mean_lo and rstd alone.
    (layers * itemsize) => itemsize  # for one layer; all of them must fit.
    * itemsize => * 4  # 4 bytes for every number; itemsize says how many.
    (layers * itemsize) => layers  # memory is in bytes, and each number takes itemsize of them.
    // => /  # not rounded down to whole tokens.
""")
def tokens_that_fit(memory, layers, D, itemsize):
    """Return how many tokens fit, with x_hat kept and with three numbers per row kept."""
    numbers = memory // (layers * itemsize) - D  # for each layer, gamma stored
    return numbers // (D + 1), numbers // 3
