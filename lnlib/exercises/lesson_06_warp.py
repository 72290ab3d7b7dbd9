"""Lesson 06: which thread loads what; a row in one warp."""

import numpy as np

from .checker import Score, exercise, mistakes
from .kernels import launch, source_of


@exercise(
    "columns",
    lambda: {
        "thread 25 of 64": (25, 64, 4, 1000),
        "thread 57 of 64, which has the last vector": (57, 64, 4, 1000),
        "thread 58 of 64, the first with nothing in the last round": (58, 64, 4, 1000),
        "vectors of 2": (3, 64, 2, 514),
        "vectors of 1": (0, 32, 1, 77),
        "a thread past the end of the row": (11, 32, 4, 40),
    },
)
@mistakes("""
    vectors = => n = -(-D // width // threads); vectors =
    thread, D // width, threads => thread * n, min(D // width, thread * n + n)
        one chunk for each thread: neighbours read far apart (uncoalesced, slow).
    return [ => n = D // threads; return [*range(thread * n, thread * n + n)]; [
        one chunk for each thread: neighbours read far apart (uncoalesced, slow).
    return [ => return [*range(thread, D, threads * width)]; [
        thread 25 begins at column 100: a vector has width columns.
    thread, D // width, threads) => 0, D // width, threads)
    vector * width => thread + vector * width
        thread 25 begins at column 100: a vector has width columns.
    return [ => return [*range(thread, D, threads)]; [  # a thread loads width neighbours at a time.
    return [ => return list(vectors); [  # the numbers of the vectors; vector i begins at i * width.
    range(width)] => [0]]  # the first column of each vector alone; it has width of them.
    D // width, threads) => D // width, 8)  # steps of 8, as in the picture; take `threads`.
    range(thread, D // width, threads) => [thread]  # only the first vector; thread t owns more.
    D // width => D  # vectors are counted up to D; a row has D // width of them.
    D // width => -(-D // (width * threads)) * threads  # past the row's end: padding is not loaded.
""")
def columns_of(thread, threads, width, D):
    """Return the columns that a thread loads, in order: a list of integers."""
    vectors = range(thread, D // width, threads)
    return [vector * width + j for vector in vectors for j in range(width)]


EPS = 3e-4  # not the usual one
SPREADS = np.array([1.0, 0.004, 3.0, 0.02, 0.5])[:, None]  # (5, 1): where eps counts, and not
ROWS = 0.7 + SPREADS * np.random.default_rng(62).standard_normal((5, 32))  # (5, 32)
ROWS = ROWS.astype(np.float32)
FAR = 400 + ROWS  # (5, 32): one centring still has four digits; the mean of the squares has none
ROW_KERNEL = """
__global__ void rows_of_32(const float *x, float *y, float eps)
{
    const int i = blockIdx.x * 32 + threadIdx.x;
    y[i] = normalise(x[i], eps);
}"""


def _run_normalise(function, rows=ROWS):
    def run():
        pieces = "", source_of(function(), "normalise"), ROW_KERNEL
        shapes, numbers = {"y": rows.shape}, {"eps": np.float32(EPS)}
        return launch(pieces, "rows_of_32", len(rows), 32, {"x": rows}, shapes, numbers)["y"]

    return run


def _far_rows(function):
    """Say if rows with a large mean come out wrong, or what was tried."""
    x = FAR[[0, 2]].astype(np.float64)  # (2, 32): the spreads of 1 and 3
    y = _run_normalise(function, FAR[[0, 2]])()
    error = np.abs(y - (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS))
    if not error.max() < 1e-3:
        return (
            f"Right for rows with a mean near 1. But for a mean of 400 and a spread of 1 it is off "
            f"by {error[0].max():.0e}. The mean of the squares minus the square of the mean loses "
            "its digits there (lesson 04): centre before you square."
        )
    return Score("In three orders of the lanes, and also for rows with a mean of 400.")


def _lanes(values, *steps, partner=np.bitwise_xor, send_first=False):
    """Return what each lane holds after these steps of a sum."""
    lanes, total = np.arange(32), values
    for bits in steps:
        other = partner(lanes, bits)
        other = np.where(other < 32, other, lanes)  # past the end: its own value
        total = total + (values if send_first else total)[..., other]
    return total


@exercise("y", lambda: {"five rows of 32": ()}, rtol=1e-4, prepare=_run_normalise, judge=_far_rows)
@mistakes("""
    / 32 => * (1 // 32)  # all sums are 0 times 1 / 32, which is 0 in C: both are whole numbers.
    1, 2, => 2,  # a step is missing: without bits = 1 even lanes hear of even ones only.
    , 16) => )  # a step is missing: each half of the warp has a sum of its own. 16 joins them.
    16) => 16, 32)  # every sum is doubled. Does bits go up to 32? There is no such lane.
    1, 2, 4, 8, 16 => *range(1, 32)  # bits goes up by one, where it must double: 1, 2, 4, 8, 16.
    16) => 16, send_first=True)  # each step must send the sum so far, not its first value.
    1, 2, 4, 8, 16 => 16, 8, 4, 2, 1, partner=np.add  # lane 0 alone has the sums (down from 16).
    16) => 16, partner=np.add)  # lane 0 alone has the sums: shuffles down hand them down.
    _lanes(xc * xc, 1, 2, 4, 8, 16) => xc * xc  # the squares are not added up over the lanes.
    xc = x - => xc = x - 32 *  # the sum is subtracted where the mean belongs: divide by 32.
    var + EPS => 32 * var + EPS  # the sum of the squares where their mean belongs: divide by 32.
    + EPS =>  # eps is missing.
    np.sqrt(var + EPS) => (np.sqrt(var) + EPS)  # eps stands outside the root.
    np.sqrt =>  # the root is missing.
    return xc => return x  # the mean is not subtracted from what is divided.
    _lanes(xc * xc => _lanes(x * x  # the mean of squares, not the variance: centre first.
""")
def normalise_in_a_warp():
    """Return what the solution's CUDA computes, with NumPy: the rows, normalised."""
    x = ROWS.astype(np.float64)  # (5, 32), a number in each lane
    xc = x - _lanes(x, 1, 2, 4, 8, 16) / 32
    var = _lanes(xc * xc, 1, 2, 4, 8, 16) / 32
    return xc / np.sqrt(var + EPS)
