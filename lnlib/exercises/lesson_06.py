"""Lesson 06: which thread loads what; a row in one warp."""

import numpy as np

from .checker import exercise
from .kernels import launch, source_of


def _strided(first, end, step, width):
    return [i + j for i in range(first, end, step) for j in range(width)]


def _chunk(thread, threads, width, D, rounded_up=True):
    vectors = D // width // threads + rounded_up  # of each thread
    return [k for k in range(thread * vectors * width, (thread + 1) * vectors * width) if k < D]


@exercise(
    "columns",
    lambda: {
        "thread 25 of 32": (25, 32, 4, 1000),
        "thread 30 of 32": (30, 32, 4, 1000),
        "thread 26 of 32, the first with nothing in the last round": (26, 32, 4, 1000),
        "vectors of 2": (3, 64, 2, 514),
        "vectors of 1": (0, 32, 1, 77),
        "a thread past the end of the row": (11, 32, 4, 40),
    },
    {
        "one chunk for each thread. A sum would be right, but neighbouring threads would read far "
        "apart at the same moment: uncoalesced, and slow.": _chunk,
        "one chunk for each thread, and the last ones of the row for nobody. Threads take turns, "
        "vector by vector.": lambda *given: _chunk(*given, rounded_up=False),
        "the vectors are forgotten: a thread loads width neighbours at a time.": (
            lambda thread, threads, width, D: _strided(thread, D, threads, 1)
        ),
        "the numbers of the vectors. Vector i holds the columns from i * width on.": (
            lambda thread, threads, width, D: _strided(thread, D // width, threads, 1)
        ),
        "the first column of each vector alone; a vector has width of them.": (
            lambda thread, threads, width, D: _strided(thread * width, D, threads * width, 1)
        ),
        "thread t begins at column t, so that the vectors of neighbours overlap.": (
            lambda thread, threads, width, D: _strided(thread, D, threads * width, width)
        ),
        "steps of threads columns; all threads together load threads * width.": (
            lambda thread, threads, width, D: _strided(thread * width, D, threads, width)
        ),
        "the first vector alone; thread t also owns t + threads, t + 2 * threads, ...": (
            lambda thread, threads, width, D: _strided(thread * width, thread * width + 1, 1, width)
        ),
        "vectors are counted up to D; a row has D // width of them.": (
            lambda thread, threads, width, D: _strided(
                thread * width, D * width, threads * width, width
            )
        ),
        "past the end of the row: what has no column there is padding, and not loaded.": (
            lambda thread, threads, width, D: _strided(
                thread * width, -(-D // (threads * width)) * threads * width, threads * width, width
            )
        ),
        "the right columns in another order: all of one vector come first.": (
            lambda thread, threads, width, D: [
                i + j for j in range(width) for i in range(thread * width, D, threads * width)
            ]
        ),
    },
)
def columns_of(thread, threads, width, D):
    """Return the columns that a thread loads, in order."""
    return _strided(thread * width, D, threads * width, width)


EPS = 3e-4  # not the usual one
SPREADS = np.array([1.0, 0.004, 3.0, 0.02, 0.5])[:, None]  # (5, 1): where eps counts, and not
ROWS = 0.7 + SPREADS * np.random.default_rng(62).standard_normal((5, 32))  # (5, 32)
ROWS = ROWS.astype(np.float32)
ROW_KERNEL = """
__global__ void rows_of_32(const float *x, float *y, float eps)
{
    const int i = blockIdx.x * 32 + threadIdx.x;
    y[i] = normalise(x[i], eps);
}"""


def _run_normalise(function):
    def run():
        source = source_of(function(), "normalise")
        numbers = {"eps": np.float32(EPS)}
        pieces, shapes = ("", source, ROW_KERNEL), {"y": ROWS.shape}
        return launch(pieces, "rows_of_32", len(ROWS), 32, {"x": ROWS}, shapes, numbers)["y"]

    return run


def _steps(*steps, partner=np.bitwise_xor, send_first=False):
    """Return a function that gives what each lane holds after these steps."""
    lanes = np.arange(32)

    def held(values):
        total = values
        for bits in steps:
            other = partner(lanes, bits)
            other = np.where(other < 32, other, lanes)  # past the end: its own value
            total = total + (values if send_first else total)[..., other]
        return total

    return held


_sum = _steps(1, 2, 4, 8, 16)


def _one_warp(sum_of=_sum, *, of_squares=None, root=lambda var: np.sqrt(var + EPS), parts=(32, 32)):
    """Vary a row in one warp: what the sums are, what they are divided by, and the root."""

    def normalise():
        x = ROWS.astype(np.float64)
        xc = x - sum_of(x) / parts[0]  # (5, 32)
        return xc / root((of_squares or sum_of)(xc * xc) / parts[1])

    return normalise


def _uncentred():
    x = ROWS.astype(np.float64)
    return x / np.sqrt(_sum((x - _sum(x) / 32) ** 2) / 32 + EPS)


def _squares_of_x():
    x = ROWS.astype(np.float64)
    return (x - _sum(x) / 32) / np.sqrt(_sum(x * x) / 32 + EPS)


@exercise(
    "y",
    lambda: {"five rows": ()},
    {
        "a step is missing: with bits 1, 2, 4 and 8 each half of the warp has a sum of its own. "
        "16 joins them.": _one_warp(_steps(1, 2, 4, 8)),
        "a step is missing: without bits = 1 even lanes hear of even ones only.": _one_warp(
            _steps(2, 4, 8, 16)
        ),
        "each step must send the sum so far. Here it sends what the lane began with, and a lane "
        "hears of five others only.": _one_warp(_steps(1, 2, 4, 8, 16, send_first=True)),
        "lane 0 alone has the sums: __shfl_down_sync hands them down (from 16 to 1), "
        "__shfl_xor_sync exchanges them.": _one_warp(_steps(16, 8, 4, 2, 1, partner=np.add)),
        "lane 0 alone has the sums: __shfl_down_sync hands them down (from 1 to 16), "
        "__shfl_xor_sync exchanges them.": _one_warp(_steps(1, 2, 4, 8, 16, partner=np.add)),
        "the squares are not added up over the lanes.": _one_warp(of_squares=lambda s: s),
        "the sum is subtracted where the mean belongs: divide by 32.": _one_warp(parts=(1, 32)),
        "the sum of the squares where their mean belongs: divide by 32.": _one_warp(parts=(32, 1)),
        "neither of the two sums is divided by 32.": _one_warp(parts=(1, 1)),
        "the variance is divided by 31; the layer divides by D.": _one_warp(parts=(32, 31)),
        "eps is missing.": _one_warp(root=np.sqrt),
        "eps is not the argument but fixed at 1e-5.": _one_warp(
            root=lambda var: np.sqrt(var + 1e-5)
        ),
        "the root of the variance is missing altogether: only the mean is subtracted.": _one_warp(
            root=lambda var: 1
        ),
        "eps stands outside the root.": _one_warp(root=lambda var: np.sqrt(var) + EPS),
        "the root is missing.": _one_warp(root=lambda var: var + EPS),
        "multiplied by the root, where it is divided by it.": _one_warp(
            root=lambda var: 1 / np.sqrt(var + EPS)
        ),
        "the mean is not subtracted from what is divided.": _uncentred,
        "the mean of the squares, not the variance: centre before you square.": _squares_of_x,
    },
    rtol=1e-4,
    prepare=_run_normalise,
)
def normalise_in_a_warp():
    """Return the rows, normalised."""
    return _one_warp()()
