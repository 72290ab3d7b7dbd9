"""Lesson 06: arithmetic, bytes and time by formula; a backward pass for less."""

import tracemalloc

import numpy as np

from ..checker import NotChecked, Score, Terms, mistakes
from ..layernorm import LayerNormCache
from ..trace import trace
from .data import layer, museum
from .registry import exercise

COST_CASES = {
    "float32 (once per row does not count, nor do gamma and beta)": (2048, 256, 4),
    "float64": (96, 770, 8),
}
COST_TERMS = Terms("1", "N * D; N * D * itemsize; N; N * itemsize; N * D * 4")


@exercise("flops counted moved", COST_CASES, terms=COST_TERMS)
@mistakes("""
    flops * N => 9 * N  # 2 too many. That is the textbook's count: no second mean hides here.
    flops * N => 8 * N  # 1 too many. mean * mean happens once per row.
    flops * N => 6 * N  # 1 is missing. Did you count the product x * x, and the sums of both means?
    flops * N * D => flops  # for one element: multiply by the N * D elements.
    values * N * D * itemsize => values * itemsize  # for one element: multiply by N * D.
    flops * N * D => flops * (N * D + N)  # once per row does not count here: N * D terms alone.
    values * N * D => (values * N * D + 2 * D)  # gamma and beta, D numbers each, do not count here.
    values * N => 15 * N  # that is the textbook's count. No second mean hides here.
    values * N => 11 * N  # 1 is missing. x * x writes an array, and its mean reads it: count both.
    values * N => 10 * N  # 2 are missing. x * x writes an array, and its mean reads it: count both.
    values * N => 13 * N  # 1 too many. x * x names x twice but reads it once.
    values * N => 17 * N  # with the reads of write-allocate; here a write counts once.
    values * N => 7 * N  # only what is read; each operation also writes its result.
    values * N => 5 * N  # only what is written; each operation also reads its operands.
    values * N => 2 * N  # that is one kernel's. NumPy finishes one operation before the next.
    (values + anew) => values  # without write-allocate: what is written to must be read, too.
    (values + anew) => 16  # 1 is missing. Five arrays are written, and each is read before.
    (values + anew) => 13
        not yet: all that is counted, and one more read for each of the five written arrays.
    (values + anew) => 15
        2 are missing: extra reads of the five written arrays, or what x * x reads and writes.
    (values + anew) => 14
        3 are missing: extra reads of the five written arrays, or what x * x reads and writes.
    (values + anew) => 18  # 1 too many. x * x reads x once, and five arrays are written.
    (values + anew) => 24  # an extra read for each value? Only what is written is read first.
    (values + anew) => 20  # that is the textbook's. No second mean hides here.
    (values + anew) => 21  # that is section 1's table of the textbook. No second mean hides here.
    (values + anew) * N * D => (values + anew)  # for one element: multiply by N * D.
""")
def cost_of_one_pass(N, D, itemsize):
    """Return FLOPs, bytes counted and bytes moved by one_pass_forward for x of shape (N, D)."""
    flops = 1 + 2 + 2 + 2  # mean; x * x and its mean; subtract and scale; gain and shift
    values = 1 + (2 + 1) + (2 + 2) + (2 + 2)
    anew = 1 + 2 + 2  # arrays that are written: with write-allocate each is read, too
    return flops * N * D, values * N * D * itemsize, (values + anew) * N * D * itemsize


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
    for_arithmetic / seconds => for_arithmetic  # a time: divide it by the least time.
    for_arithmetic / seconds => 1 - for_arithmetic / seconds  # the share in which it waits.
    for_arithmetic / seconds => flops / nbytes  # the intensity in FLOP per byte, not a share.
""")
def seconds_at_least(flops, nbytes, bandwidth, arithmetic):
    """Return the least time, and the share of it in which arithmetic is busy."""
    for_memory = nbytes / bandwidth
    for_arithmetic = flops / arithmetic
    seconds = np.maximum(for_memory, for_arithmetic)
    return seconds, for_arithmetic / seconds


MOST_VALUES, MOST_HELD = 18, 2


def _judge_counts(function):
    """Say which count of an answer, whose gradients are right, is still too high."""
    x = layer(61, 500, 600)
    arrays = [np.float32(a) for a in (x.dy, *x.cache)]
    dx = np.asarray(function(*arrays)[0])
    if dx.dtype != np.float32:
        return f"The gradients are right, but dx is {dx.dtype} where dy is float32."
    steps = trace(function, *arrays)[1]
    # check itself fills what np.empty gives
    spans = [span for s in steps if s.name != "fill" for span in s.reads + s.writes]
    values = sum(size for _, size in spans) / dx.nbytes
    held = _peak(function, arrays) / dx.nbytes
    if values < 5:
        raise NotChecked(
            "The gradients are right, but the tracer cannot see how you read dy and x_hat."
        )
    counts = f"{values:.0f} values per element are counted, and the peak is {held:.1f} arrays"
    questions = []
    if values > MOST_VALUES + 0.5:
        questions.append("Is an array written only to be summed, or to be copied?")
        questions.append("(In blocks of rows, each of them counts as well.)")
        questions.append("Or could an operation on all N * D numbers work on N numbers, or D?")
    if held > MOST_HELD + 0.3:
        questions.append("Which result can be written over an array that you have made?")
    if not questions:
        return Score(f"{counts}. The textbook has 21 and 3.")
    question = " ".join(questions)
    limits = f"At most {MOST_VALUES} and {MOST_HELD} are asked."
    return f"The gradients are right, but {counts}. {limits} {question}"


def _peak(function, arrays):
    """Return the bytes that a call allocates at once, its results included."""
    began = not tracemalloc.is_tracing()
    if began:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        function(*arrays)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if began:
            tracemalloc.stop()


def _lean_cases():
    for what, N, D, spread in ("", 5, 7, 1.0), (", tiny spread", 6, 4, 0.004), (", one", 1, 9, 1.0):
        a = layer(62, N, D, spread=spread)
        yield f"rows of {D}{what}", (a.dy, *a.cache)


@exercise("dx dgamma dbeta", _lean_cases, judge=_judge_counts)
@mistakes("""
    dx *= rstd => dx *= rstd * gamma  # gamma once more; g = dy * gamma holds it already.
    ->d", dy => ->d", dy * gamma  # dgamma from dy * gamma; it needs dy alone.
    ->n", dx => ->n", dy  # along from dy; it needs g = dy * gamma.
""")
@mistakes(museum(lambda x_hat, rstd, gamma: LayerNormCache(x_hat, rstd, gamma)))
def lean_backward(dy, x_hat, rstd, gamma):
    """Return dx, dgamma and dbeta; dy and x_hat are (N, D), rstd is (N, 1), gamma (D,)."""
    dbeta = dy.sum(axis=0)  # (D,)
    dgamma = np.einsum("nd,nd->d", dy, x_hat)  # (D,): no array of products
    dx = dy * gamma  # (N, D): g, and step by step dx
    along = np.einsum("nd,nd->n", dx, x_hat) / dy.shape[1]  # (N,)
    dx -= dx.mean(axis=-1, keepdims=True)
    dx -= x_hat * along[:, None]
    dx *= rstd
    return dx, dgamma, dbeta
