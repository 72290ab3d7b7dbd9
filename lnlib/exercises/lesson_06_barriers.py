"""Lesson 06: barriers in a sum over a block."""

import re

import numpy as np

from .checker import Score, exercise, mistakes
from .data import layer
from .kernels import code_of, launch, source_of

THREADS = 128
VALUES = layer(63, 3, THREADS).x.astype(np.float32)  # (3, THREADS)
SUMS_KERNEL = """
template <int THREADS>
__global__ void sums(const float *x, float *total, float *squares, int how_many)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    const float value = x[i];
    total[i] = tree_sum<THREADS>(value);
    if (how_many == 2)
        squares[i] = tree_sum<THREADS>(value * value);
}"""
WHICH_BARRIER = {  # in what the emulator says -> what it means in this function
    r"waits at __syncthreads": "Not all threads reach the same barrier",
    r"slots\[0\]: thread \d+ reads": "The result is read before thread 0 has added the last part",
    r"slots\[(6[4-9]|[7-9]\d|1\d\d)\]: thread": (
        "A slot is added before the thread that fills it has done so"
    ),
    r"slots\[\d+\]: thread": "A step uses slots that the step before has yet to change",
}
BARRIER_IN_AN_IF = r"if\s*\([^()]*threadIdx[^()]*\)\s*(\{[^{}]*)?__syncthreads"
SKIPPED = {"": "A barrier stands inside an if: the threads that skip it do not arrive"}
SECOND_SUM = {
    "": "One sum alone is right. But when a second one follows, a fast thread fills its slot again "
    "before a slow one has read the first result"
}


def _sums(source, values, how_many, hints=WHICH_BARRIER):
    """Return the sums of each row and, if how_many is 2, of its squares: a thread a value."""
    rows, threads = values.shape
    return launch(
        ("", source, SUMS_KERNEL), f"sums<{threads}>", rows, threads, {"x": values},
        {"total": values.shape, "squares": values.shape}, {"how_many": np.int32(how_many)},
        hints=hints,
    )  # fmt: skip


def _run_sums(function):
    def run():
        source = source_of(function(), "tree_sum")
        _sums(source, VALUES, 1, SKIPPED if re.search(BARRIER_IN_AN_IF, source) else WHICH_BARRIER)
        results = _sums(source, VALUES, 2, SECOND_SUM)
        return results["total"], results["squares"]

    return run


def _other_threads(function):
    """Say if it is wrong for half as many threads, or how many barriers are enough."""
    source = source_of(function(), "tree_sum")
    half, values = THREADS // 2, np.ascontiguousarray(VALUES[:, : THREADS // 2])
    total = _sums(source, values, 1)["total"]
    if not np.allclose(total, values.sum(axis=1, keepdims=True), rtol=1e-4):
        return f"Right for {THREADS} threads, but not for {half}: use THREADS."
    barriers = code_of(source).count("__syncthreads")
    return Score(f"128 threads and 64, in three orders, with {barriers} barriers in the text.")


def _slots(values, first, last):
    """Return what the slots hold after the steps first, first / 2, ..., last."""
    slots, half = values.astype(np.float64), first
    while half >= last:
        slots[:, :half] += slots[:, half : 2 * half]
        half //= 2
    return slots


@exercise(
    "total squares",
    lambda: {"three rows of 128": ()},
    rtol=1e-4,
    prepare=_run_sums,
    judge=_other_threads,
)
@mistakes("""
    [:, :1] + 0 * total =>
    [:, :1] + 0 * squares =>  # each thread gets its own slot; the sum is in slots[0].
    // 2, 1) => // 2, 2)  # the last step, half = 1, is missing.
    // 2, 1) => // 4, 1)  # the first step is missing: half begins at THREADS / 2.
""")
def sum_with_barriers():
    """Return what the solution's CUDA computes, with NumPy: for each thread, both sums."""
    total = _slots(VALUES, THREADS // 2, 1)  # (3, THREADS)
    squares = _slots(VALUES.astype(np.float64) ** 2, THREADS // 2, 1)  # (3, THREADS)
    return total[:, :1] + 0 * total, squares[:, :1] + 0 * squares
