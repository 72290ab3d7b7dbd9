"""Lesson 05: arithmetic, bytes, time and memory by formula; the last exercise has its own file."""

import numpy as np

from .checker import exercise, mistakes


@exercise(
    "flops nbytes",
    lambda: {
        "float32 (once per row does not count, nor do gamma and beta)": (2048, 256, 4),
        "float64": (96, 770, 8),
        "float16": (5, 7, 2),
    },
)
@mistakes("""
    flops * N => 9 * N  # 2 too many. mean * mean is one number per row, for instance.
    flops * N => 6 * N  # 1 is missing. Did you count the product x * x, and the sums of both means?
    flops * N => 9 * N
    values * N => 15 * N  # that is the textbook's count. No second mean hides here.
    values * N => 7 * N  # only what is read; each operation also writes its result.
    values * N => 5 * N  # only what is written; each operation also reads its operands.
    values * N => 2 * N  # that is one kernel's. NumPy finishes one operation before the next.
    N * D => N  # counted per row, and each row has D elements.
    * N * D * itemsize => * N * D  # values, not bytes: each takes itemsize bytes.
    * itemsize => * 4  # 4 bytes for every value; itemsize says how many.
""")
@mistakes(
    {
        f"per element, {abs(n)} too {'many' if n > 0 else 'few'}.": [
            (("flops * N", f"{7 + n} * N"), ("values * N", f"{12 + n} * N"))
        ]
        for n in (-9, -6, -5, -4, -3, -2, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    }
)
def cost_of_one_pass(N, D, itemsize):
    """Return FLOPs and bytes moved by one_pass_forward for x of shape (N, D)."""
    flops = 1 + 2 + 2 + 2  # mean; x * x and its mean; subtract and scale; gain and shift
    values = 1 + (2 + 1) + (2 + 2) + (2 + 2)
    return flops * N * D, values * N * D * itemsize


@exercise(
    "seconds busy",
    lambda: {
        "one layer": (3.7e8, 5.2e8, 2.1e10, 9.5e10),
        "a matrix product": (2.15e9, 1.26e7, 2.1e10, 9.5e10),
        "an array of passes, one of them a copy": (
            np.array([4.1e9, 0.0, 6.3e8, 2.9e10]),
            np.array([2.3e8, 7.7e8, 9.1e8, 4.4e7]),
            *(3.3e11, 1.9e13),
        ),
        "an array of machines": (
            *(6.1e9, 1.7e9),
            np.array([2.1e10, 3.35e12, 4.8e12]),
            np.array([1.7e9, 6.0e13, 6.7e12]),
        ),
    },
)
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


@exercise(
    "with_x_hat with_rows",
    lambda: {
        "many tokens": (64 * 4 * 12_347, 64, 96, 4),
        "float64": (5 * 8 * 25_309, 5, 97, 8),
        "few tokens": (5 * 4 * 1795, 5, 512, 4),
        "one layer": (2 * 4996, 1, 300, 2),
    },
)
@mistakes("""
    ) - D => )  # gamma is missing: each layer keeps D numbers that do not depend on the tokens.
    ) - D => ) - D // layers  # gamma is taken off once; each layer keeps its own.
    (D + 1) => D  # rstd is missing: x_hat comes with one number per token.
    (D + 1) => (D + 2)  # x_hat needs no mean: it comes with rstd alone.
    (D + 1) => (D + 3)  # three numbers per row are the other way; x_hat needs rstd alone.
    // 3 => // 2  # the mean takes two numbers per token, and rstd is the third.
    // 3 => // (D + 3)  # x is kept by somebody else; count mean, mean_lo and rstd alone.
    // 3 => // 1  # three numbers per token, not one.
    (layers * itemsize) => itemsize  # for one layer; all of them must fit.
    * itemsize => * 4  # 4 bytes for every number; itemsize says how many.
    (layers * itemsize) => layers  # memory is in bytes, and each number takes itemsize of them.
    // => /  # not rounded down to whole tokens.
    numbers // (D + 1), numbers // 3 => -(-numbers // (D + 1)), -(-numbers // 3)
        rounded up; the last token does not fit.
""")
def tokens_that_fit(memory, layers, D, itemsize):
    """Return how many tokens fit, with x_hat kept and with three numbers per row kept."""
    numbers = memory // (layers * itemsize) - D  # for each layer, gamma stored
    return numbers // (D + 1), numbers // 3
