"""Lesson 05: arithmetic, bytes, time and memory by formula; the last exercise has its own file."""

import numpy as np

from .checker import exercise


def one_pass_forward(x, gamma, beta, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)  # (N, 1)
    var = (x * x).mean(axis=-1, keepdims=True) - mean * mean  # (N, 1)
    rstd = 1 / np.sqrt(var + eps)  # (N, 1)
    x_hat = (x - mean) * rstd  # (N, D)
    return gamma * x_hat + beta  # (N, D)


def _counted(flops, values):
    return lambda N, D, itemsize: (flops * N * D, values * N * D * itemsize)


@exercise(
    "flops nbytes",
    lambda: {
        "float32 (once per row does not count, nor do gamma and beta)": (2048, 256, 4),
        "float64": (96, 770, 8),
        "float16": (5, 7, 2),
    },
    {
        "that is the textbook's count, of section 1. This code has no second mean in its variance, "
        "and it squares x itself.": _counted(9, 15),
        "2 per element too many. No second mean hides here, and a mean divides once per row, not "
        "once per element.": _counted(9, 12),
        "what happens once per row is counted for each element: the root, for instance.": (
            _counted(14, 12)
        ),
        "1 per element is missing. Did you count the product x * x, and the sums of both means?": (
            _counted(6, 12)
        ),
        "2 per element are missing. Each of the two means adds up a whole array, for instance.": (
            _counted(5, 12)
        ),
        "only what is read; each operation also writes its result.": _counted(7, 7),
        "only what is written; each operation also reads its operands.": _counted(7, 5),
        "1 value per element too many: x * x reads one array, not two.": _counted(7, 13),
        "1 value per element is missing. A mean reads a whole array, too.": _counted(7, 11),
        "2 values per element are missing. An array in between, such as x * x or x - mean, is "
        "written by one operation and read by the next.": _counted(7, 10),
        "the arrays in between are missing. Each is written by one operation and read by the "
        "next.": _counted(7, 4),
        "that is what one kernel would move. NumPy finishes one operation before the next, and "
        "each of them reads and writes whole arrays.": _counted(7, 2),
        "counted per row, and each row has D elements.": (
            lambda N, D, itemsize: (7 * N, 12 * N * itemsize)
        ),
        "counted per element, and x has N D of them.": lambda N, D, itemsize: (7, 12 * itemsize),
        "values, not bytes: each takes itemsize bytes.": (
            lambda N, D, itemsize: (7 * N * D, 12 * N * D)
        ),
        "4 bytes for every value; itemsize says how many.": (
            lambda N, D, itemsize: (7 * N * D, 12 * N * D * 4)
        ),
        **{
            f"per element, {abs(n)} too {'many' if n > 0 else 'few'}.": _counted(7 + n, 12)
            for n in (-5, -4, -3, 1, 3, 4, 5, 6, 8, 9)
        },
        **{
            f"values per element: {abs(n)} too {'many' if n > 0 else 'few'}.": _counted(7, 12 + n)
            for n in (-9, -6, -4, -3, 2, 4, 5, 6, 7, 8, 9)
        },
    },
)
def cost_of_one_pass(N, D, itemsize):
    """Return FLOPs and bytes moved by one_pass_forward for x of shape (N, D)."""
    return 7 * N * D, 12 * N * D * itemsize


def _timed(answer):
    """Make a mistake of answer(seconds for the memory, seconds for the arithmetic)."""
    return lambda flops, nbytes, bandwidth, arithmetic: answer(
        nbytes / bandwidth, flops / arithmetic
    )


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
    {
        "the two times are added; but memory and arithmetic work at the same time.": _timed(
            lambda m, a: (m + a, a / (m + a))
        ),
        "the shorter of the two times; the longer one decides.": _timed(
            lambda m, a: (np.minimum(m, a), a / np.minimum(m, a))
        ),
        "the time that memory needs, even where arithmetic needs longer.": _timed(
            lambda m, a: (m, a / m)
        ),
        "the time that arithmetic needs, even where memory needs longer.": _timed(
            lambda m, a: (a, a / a)
        ),
        "a rate, in FLOP per second: the roofline itself. Divide the FLOPs by it.": (
            lambda f, n, b, a: (np.minimum(f / n * b, a), f / a / np.minimum(f / n * b, a))
        ),
        "bandwidth and arithmetic have changed places: it is the bytes that bandwidth moves.": (
            lambda f, n, b, a: seconds_at_least(f, n, a, b)
        ),
        "work times pace; the time is work divided by pace.": (
            lambda f, n, b, a: (np.maximum(n * b, f * a), f * a / np.maximum(n * b, f * a))
        ),
        "the share of memory; that of arithmetic was asked for.": _timed(
            lambda m, a: (np.maximum(m, a), m / np.maximum(m, a))
        ),
        "arithmetic's time divided by memory's. Divide it by the whole time, which is the longer "
        "of the two.": _timed(lambda m, a: (np.maximum(m, a), a / m)),
        "whether arithmetic sets the pace, yes or no; its share of the time was asked for.": _timed(
            lambda m, a: (np.maximum(m, a), a >= m)
        ),
        "the share of the time in which the arithmetic units wait.": _timed(
            lambda m, a: (np.maximum(m, a), 1 - a / np.maximum(m, a))
        ),
        "the seconds in which they work; their share of the time was asked for.": _timed(
            lambda m, a: (np.maximum(m, a), a)
        ),
        "the FLOPs per second that are reached; a share of the time was asked for.": (
            lambda f, n, b, a: (np.maximum(n / b, f / a), f / np.maximum(n / b, f / a))
        ),
        "the intensity, in FLOP per byte; a share of the time was asked for.": (
            lambda f, n, b, a: (np.maximum(n / b, f / a), f / n)
        ),
    },
)
def seconds_at_least(flops, nbytes, bandwidth, arithmetic):
    """Return the least time, and the share of it in which the arithmetic units have work."""
    seconds = np.maximum(nbytes / bandwidth, flops / arithmetic)
    return seconds, flops / arithmetic / seconds


def _fitting(
    per_token=lambda D: D + 1, per_row=3, per_layer=1, layers_of=lambda layers: layers, size=None
):
    """Vary what is kept: numbers per token with x_hat or without, vectors of gamma per layer."""

    def answer(memory, layers, D, itemsize):
        numbers = memory / (layers_of(layers) * (size or itemsize)) - per_layer * D
        return numbers // per_token(D), numbers // per_row

    return answer


def _gamma_once(memory, layers, D, itemsize):
    free = memory - itemsize * D
    return free // (layers * itemsize * (D + 1)), free // (layers * itemsize * 3)


def _unrounded(memory, layers, D, itemsize):
    numbers = memory / (layers * itemsize) - D
    return numbers / (D + 1), numbers / 3


@exercise(
    "with_x_hat with_rows",
    lambda: {
        "many tokens": (64 * 4 * 12_347, 64, 96, 4),
        "float64": (5 * 8 * 25_309, 5, 97, 8),
        "few tokens": (5 * 4 * 1795, 5, 512, 4),
        "one layer": (2 * 4996, 1, 300, 2),
    },
    {
        "gamma is missing: each layer keeps D numbers that do not depend on the tokens.": (
            _fitting(per_layer=0)
        ),
        "gamma is taken off once; each layer keeps its own.": _gamma_once,
        "gamma is counted for each token; a layer keeps one.": (
            lambda memory, layers, D, itemsize: (
                memory // (layers * itemsize * (2 * D + 1)),
                memory // (layers * itemsize * (D + 3)),
            )
        ),
        "rstd is missing: x_hat comes with one number per token.": _fitting(lambda D: D),
        "x_hat needs no mean: it comes with rstd alone.": _fitting(lambda D: D + 2),
        "rest is missing: mean, rest and rstd, three numbers per token.": _fitting(per_row=2),
        "three numbers per token, not one.": _fitting(per_row=1),
        "x is in it, which somebody else keeps here.": (
            lambda memory, layers, D, itemsize: (
                (memory // (layers * itemsize) - D) // (D + 1),
                (memory // (layers * itemsize) - D) // (D + 3),
            )
        ),
        "for one layer; all of them must fit.": _fitting(layers_of=lambda layers: 1),
        "memory is in bytes, and each number takes itemsize of them.": _fitting(size=1),
        "4 bytes for every number; itemsize says how many.": _fitting(size=4),
        "gamma is taken off as D bytes; it has D numbers of itemsize bytes.": (
            lambda memory, layers, D, itemsize: (
                (memory // layers - D) // (itemsize * (D + 1)),
                (memory // layers - D) // (itemsize * 3),
            )
        ),
        "beta is counted too; the cache does not keep it.": _fitting(per_layer=2),
        "x is counted beside x_hat.": _fitting(lambda D: 2 * D + 1),
        "n // D + 1 is (n // D) + 1: parentheses.": (
            lambda memory, layers, D, itemsize: (
                (memory // (layers * itemsize) - D) // D + 1,
                (memory // (layers * itemsize) - D) // 3,
            )
        ),
        "two LayerNorms for each of the layers; count every LayerNorm as one layer here.": (
            _fitting(layers_of=lambda layers: 2 * layers)
        ),
        "not rounded down to whole tokens.": _unrounded,
        "rounded up; the last token does not fit.": (
            lambda *arguments: tuple(np.ceil(n) for n in _unrounded(*arguments))
        ),
        "the two have changed places.": lambda *arguments: _fitting()(*arguments)[::-1],
    },
)
def tokens_that_fit(memory, layers, D, itemsize):
    """Return how many tokens fit, with x_hat kept and with three numbers per row kept."""
    numbers = memory // (layers * itemsize) - D
    return numbers // (D + 1), numbers // 3
