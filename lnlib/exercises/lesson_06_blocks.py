"""Lesson 06: barriers in a sum over a block, and a residual addition fused into the kernel."""

import re

import numpy as np

from ..gpu import read_source
from ..layernorm import layer_norm_forward
from .checker import exercise
from .data import layer
from .kernels import Stopped, launch, source_of

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
    r"waits at __syncthreads": "Not all threads reach the same barrier.",
    r"slots\[0\]: thread \d+ reads": "The result is read before thread 0 has added the last part.",
    r"slots\[(6[4-9]|[7-9]\d|1\d\d)\]: thread": (
        "A slot is added before the thread that fills it has done so."
    ),
    r"slots\[\d+\]: thread": "A step uses slots that the step before has yet to change.",
}


def _which_barrier(said, source):
    if re.search(r"if\s*\([^()]*threadIdx[^()]*\)\s*(\{[^{}]*)?__syncthreads", source):
        return "A barrier stands inside an if: the threads that skip it do not arrive."
    return next((m for words, m in WHICH_BARRIER.items() if re.search(words, said)), "")


def _sums(source, values, how_many):
    """Return the sums of each row and, if how_many is 2, of its squares: a thread a value."""
    rows, threads = values.shape
    return launch(
        ("", source, SUMS_KERNEL), f"sums<{threads}>", rows, threads, {"x": values},
        {"total": values.shape, "squares": values.shape}, {"how_many": np.int32(how_many)},
    )  # fmt: skip


def _run_sums(function):
    def run():
        source = source_of(function(), "tree_sum")
        try:
            _sums(source, VALUES, 1)
        except Stopped as error:
            raise Stopped(f"{error}. {_which_barrier(str(error), source)}".rstrip(". ")) from None
        try:
            results = _sums(source, VALUES, 2)
        except Stopped as error:
            raise Stopped(
                f"{error}. One sum alone is right. But when a second one follows, a fast thread "
                "fills its slot again before a slow one has read the first result"
            ) from None
        return results["total"], results["squares"]

    return run


def _other_threads(function):
    """Say if a sum that is right for THREADS threads is not so for half as many."""
    half, values = THREADS // 2, np.ascontiguousarray(VALUES[:, : THREADS // 2])
    total = _sums(source_of(function(), "tree_sum"), values, 1)["total"]
    if not np.allclose(total, values.sum(axis=1, keepdims=True), rtol=1e-4):
        return f"Right for {THREADS} threads, but not for {half}: use THREADS."
    return None


def _slots(values, first=THREADS // 2, last=1):
    """Return what the slots hold after the steps first, first / 2, ..., last."""
    slots = values.astype(np.float64)
    half = first
    while half >= last:
        slots[:, :half] += slots[:, half : 2 * half]
        half //= 2
    return slots


def _both(sum_of):
    return lambda: (sum_of(VALUES), sum_of(VALUES.astype(np.float64) ** 2))


def _everywhere(a):
    return np.repeat(a[:, :1], THREADS, axis=1)


@exercise(
    "total squares",
    lambda: {"three rows": ()},
    {
        "each thread gets its own slot; the sum is in slots[0].": _both(_slots),
        "the last step, half = 1, is missing.": _both(lambda v: _everywhere(_slots(v, last=2))),
        "the first step is missing: half begins at THREADS / 2.": _both(
            lambda v: _everywhere(_slots(v, first=THREADS // 4))
        ),
    },
    rtol=1e-4,
    prepare=_run_sums,
    judge=_other_threads,
)
def sum_with_barriers():
    """Return, for each thread, the sums of its row and of the squares."""
    return _both(lambda v: _everywhere(_slots(v)))()


def _residual_kernel():
    """Return layernorm.cu, and its forward kernel with load_sum in place of load.

    The registers of the row are NaN before, so that those which nobody fills can be seen.
    """
    source = read_source()
    head = "template <int THREADS, int VECTORS, int WIDTH>\n__global__ void"
    first = source.index(head + " __launch_bounds__(THREADS) forward(")
    kernel = source[first : source.index("\n}\n", first) + 3]
    for old, new in (
        (" forward(", " add_forward("),
        ("const Vector<WIDTH> *x,", "const Vector<WIDTH> *a, const Vector<WIDTH> *b,"),
        ("Vector<WIDTH> *__restrict__ y,", "Vector<WIDTH> *s, Vector<WIDTH> *__restrict__ y,"),
        ("load<THREADS>(x, start, vectors, xc)", "load_sum<THREADS>(a, b, s, start, vectors, xc)"),
        (
            "xc[VECTORS];\n",
            'xc[VECTORS];\n    for (auto &v : xc) for (float &f : v.at) f = nanf("");\n',
        ),
    ):
        assert kernel.count(old) == 1
        kernel = kernel.replace(old, new)
    return source, kernel


def _residual(D=1000):
    """Return a, b, gamma and beta in float32; b has another mean than a."""
    one, other = layer(64, 5, D), layer(65, 5, D, spread=0.5)
    arrays = one.x, other.dy + 3, one.gamma, one.beta
    return dict(zip(("a", "b", "gamma", "beta"), (x.astype(np.float32) for x in arrays)))


def _launch_residual(function, threads, vectors, width, D, counts=None):
    before, after = _residual_kernel()
    pieces, inputs = (before, source_of(function(), "load_sum"), after), _residual(D)
    rows = len(inputs["a"])
    # `mean` is a float64 in the kernel: two float32 numbers
    shapes = {"s": (rows, D), "y": (rows, D), "mean": (rows, 2), "rstd": (rows, 1)}
    kernel = f"add_forward<{threads}, {vectors}, {width}>"
    numbers = {"eps": np.float32(1e-5), "D": np.int32(D)}
    try:
        results = launch(pieces, kernel, rows, threads, inputs, shapes, numbers, counts)
    except Stopped as error:
        if not re.search("out of range|any order", str(error)):
            raise
        raise Stopped(
            f"{error}. Each row begins at start and has as many vectors as the argument says; a "
            "thread must not touch more of it"
        ) from None
    return results["s"], results["y"]


def _normalised(s, D=1000):
    _, _, gamma, beta = _residual(D).values()
    s = s.astype(np.float32)
    return s, layer_norm_forward(*(v.astype(np.float64) for v in (s, gamma, beta)))[0]


def _of(s_of, y_from=None):
    """Vary s, and what y is made from."""

    def answer():
        a, b, *_ = _residual().values()
        s = s_of(a, b)
        return s, _normalised(s if y_from is None else y_from(a, b))[1]

    return answer


def _first_vectors(a, b):
    s = a + b
    s[:, 64 * 4 :] = np.nan
    return s


def _still_too_much(function):
    """Say what is still wrong with a kernel whose numbers are right, or None."""
    counts = {}
    _launch_residual(function, 64, 4, 4, 1000, counts)
    each = {k: (counts[k].loaded + counts[k].stored) / 5000 for k in ("a", "b", "s", "y")}
    if sum(each.values()) > 16:
        more = [f"{each[name]:.0f} of {name}" for name in each if each[name] > 4]
        back = " What is written to s is still in registers." if counts["s"].loaded else ""
        return (
            f"The numbers are right, but it moves {sum(each.values()):.0f} bytes per element, "
            f"{', '.join(more)}, where 16 are enough, 4 of each array.{back}"
        )
    others = {  # threads, vectors, width, D -> what may be wrong if they are
        (32, 8, 1, 250): "32 threads with 8 vectors of 1: use THREADS, VECTORS and WIDTH",
        (64, 4, 4, 100): "rows of 100, where threads are left over: fill their row with zero too",
    }
    for (threads, vectors, width, D), why in others.items():
        right = _normalised(_residual(D)["a"] + _residual(D)["b"], D)
        mine = _launch_residual(function, threads, vectors, width, D)
        if not all(np.allclose(a, b, atol=1e-4) for a, b in zip(mine, right)):
            return f"Right for 64 threads with 4 vectors of 4 and rows of 1000, but not for {why}."
    return None


@exercise(
    "s y",
    lambda: {"five rows": ()},
    {
        "nobody writes it.": _of(lambda a, b: np.full_like(a, np.nan), np.add),
        "b is not added.": _of(lambda a, b: a),
        "a is not added.": _of(lambda a, b: b),
        "made from a alone: the sum must stay in row.": _of(np.add, lambda a, b: a),
        "made from b alone: the sum must stay in row.": _of(np.add, lambda a, b: b),
        "written without b: add first.": _of(lambda a, b: a, np.add),
        "in padding, or everywhere, row is not filled. Padding must be zero: it is added up.": _of(
            np.add, lambda a, b: a * np.nan
        ),
        "only the first vector of each thread is written.": _of(_first_vectors, np.add),
        "a is added twice, and b not at all.": _of(lambda a, b: 2 * a),
        "b is added twice.": _of(lambda a, b: a + 2 * b),
        "b is subtracted.": _of(np.subtract),
        "row 0 of b is added to every row: b begins at start too.": _of(lambda a, b: a + b[:1]),
    },
    rtol=1e-5,
    prepare=lambda function: lambda: _launch_residual(function, 64, 4, 4, 1000),
    judge=_still_too_much,
)
def add_while_loading():
    """Return s = a + b, and y, the normalised s."""
    return _of(np.add)()
