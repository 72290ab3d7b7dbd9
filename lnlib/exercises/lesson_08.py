"""Lesson 08: what a thread loads, a row in one warp, barriers, and a fused residual addition."""

import re

import numpy as np

from ..checker import BadResult, NotChecked, Score, mistakes
from ..checker.edits import replaced
from ..gpu import read_source
from ..gpu.listing import function_source
from ..layernorm import layer_norm_forward
from .data import layer
from .kernels import EMULATOR_HINTS, TEMPLATES, Trial, code_of, source_of
from .registry import exercise

THREAD_CASES = {
    "thread 25 of 64": (25, 64, 4, 1000),
    "thread 57 of 64, which has the last vector": (57, 64, 4, 1000),
    "thread 58 of 64, the first with nothing in the last round": (58, 64, 4, 1000),
    "a row without padding": (3, 64, 4, 1024),
    "vectors of 1": (0, 32, 1, 77),
    "a thread past the end of the row": (11, 32, 4, 40),
    "a row with fewer vectors than threads": (3, 64, 4, 100),
}


@exercise("columns", THREAD_CASES, rtol=0)
@mistakes("""
    vectors = => n = -(-D // width // threads); vectors =
    thread, D // width, threads => thread * n, min(D // width, thread * n + n)
        one chunk for each thread: neighbours read far apart (uncoalesced, slow).
    return [ => return [*range(thread * (D // threads), (thread + 1) * (D // threads))]; [
        a chunk of columns for each thread: that is the lower picture in section 3. Here thread t
        loads vector t.
    return [ => return [*range(thread * D // threads, (thread + 1) * D // threads)]; [
        "
    return [ => return [k + j for k in range(thread, D, threads * width) for j in range(width)]; [
        thread 25 begins at column 100: a vector has width columns.
    return [ => return [k + j for k in range(thread * width, D, threads) for j in range(width)]; [
        the step is too short: from one of its vectors to the next, a thread moves threads * width
        columns.
    return [ => return [[vector * width + j for j in range(width)] for vector in vectors]; [
        a list for each vector: put all columns into one list.
    return [ => return [*range(thread, D, threads)]; [  # a thread loads width neighbours at a time.
    return [ => return list(vectors); [  # the numbers of the vectors; vector i begins at i * width.
    return [ => return [c for c in range(D) if c // width // threads == thread]; [
        thread t owns the vectors whose number leaves t when divided by threads: % and not //.
    return [ => return [thread * width + j for _ in vectors for j in range(width)]; [
        the same vector in every step: from one step to the next it moves on by `threads` vectors.
    range(width)] => [0]]  # the first column of each vector alone; it has width of them.
    D // width, threads) => D // width, 8)  # steps of 8, as in the picture; take `threads`.
    range(thread, D // width, threads) => [thread]  # only the first vector; thread t owns more.
    D // width, threads) => D // width // threads * threads, threads)
        the last round is missing, in which only some of the threads have a vector.
    return [ => return [vector * width + j for j in range(width) for vector in vectors]; [
        the right columns, but not in order: one vector after the other.
    D // width => D  # vectors are counted up to D; a row has D // width of them.
    D // width => D // width + 1  # one vector too many: the last one is D // width - 1.
    D // width => D // width + threads  # one round too many: the last column of a row is D - 1.
    D // width => -(-D // (width * threads)) * threads  # past the row's end: padding is not loaded.
""")
def columns_of(thread, threads, width, D):
    """Return the columns that a thread loads, in order: a list of integers."""
    vectors = range(thread, D // width, threads)
    return [vector * width + j for vector in vectors for j in range(width)]


EPS = 3e-4  # not the usual one
SPREADS = np.array([1.0, 0.004, 3.0, 0.02, 0.5])[:, None]  # (5, 1): where eps counts, and not
ROWS_OF_32 = (0.7 + SPREADS * np.random.default_rng(62).standard_normal((5, 32))).astype(np.float32)
# (5, 32): one centring still has four digits; the mean of the squares has none
FAR_ROWS = 400 + ROWS_OF_32
ROW_KERNEL = """
__global__ void rows_of_32(const float *x, float *y, float eps)
{
    const int i = blockIdx.x * 32 + threadIdx.x;
    y[i] = normalise(x[i], eps);
}"""


def _normalise_trial(rows):
    return Trial(
        "rows_of_32", blocks=len(rows), threads=32, inputs={"x": rows}, outputs={"y": rows.shape},
        numbers={"eps": np.float32(EPS)}, after=ROW_KERNEL,
    )  # fmt: skip


def _run_normalise(function, rows=ROWS_OF_32):
    return lambda: _normalise_trial(rows).run(source_of(function(), "normalise"))["y"]


def _judge_normalised(function):
    """Say if rows with a large mean come out wrong, or what was tried."""
    x = FAR_ROWS[[0, 2]].astype(np.float64)  # (2, 32): the spreads of 1 and 3
    y = _run_normalise(function, FAR_ROWS[[0, 2]])()
    error = np.abs(y - (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS))
    if not error.max() < 1e-3:
        return (
            f"Right for rows with a mean near 1. For a mean of 400 it is off by {error.max():.0e}: "
            "differences of squares lose their digits there (lesson 04). Centre before you square."
        )
    source = source_of(function(), "normalise")
    if problem := _normalise_trial(FAR_ROWS).problem_on_a_gpu(source):
        return problem
    score = "In three orders of the lanes, and also for rows with a mean of 400."
    if "__shared__" in code_of(source):
        score += " Inside a warp the shuffles of section 4 need no shared memory."
    return Score(score)


def _lanes(values, *steps, partner=np.bitwise_xor, send_first=False, own=1):
    """Return what each lane holds after these steps of a sum."""
    lanes, total = np.arange(32), values
    for bits in steps:
        other = partner(lanes, bits)
        other = np.where((other >= 0) & (other < 32), other, lanes)  # past the end: its own value
        total = own * total + (values if send_first else total)[..., other]
    return total


@exercise("y", {"five rows of 32": ()}, rtol=1e-4, prepare=_run_normalise, judge=_judge_normalised)
@mistakes("""
    / 32 => * (1 // 32)  # all sums are 0 times 1 / 32, which is 0 in C: both are whole numbers.
    x - _lanes(x, 1, 2, 4, 8, 16) / 32 => x
        no mean is subtracted. Or is it 0, as 1 / 32 is in C between whole numbers?
    1, 2, 4, 8, 16 => *range(1, 32)
        bits counts up by 1 here. It doubles from step to step: bits *= 2.
    1, 2, => 2,  # a step is missing: without bits = 1 even lanes hear of even ones only.
    , 16) => )  # a step is missing: each half of the warp has a sum of its own. 16 joins them.
    16) => 16, 32)  # every sum is doubled. Does bits go up to 32? There is no such lane.
    16) => 16, send_first=True)  # each step must send the sum so far, not its first value.
    1, 2, 4, 8, 16 => 16, 8, 4, 2, 1, partner=np.add  # lane 0 alone has the sums (down from 16).
    16) => 16, partner=np.add)  # lane 0 alone has the sums: shuffles down hand them down.
    16) => 16, partner=lambda lanes, bits: 0 * lanes + bits)
        every lane reads lane number bits. Pass bits alone: the GPU works out the lane from it.
    1, 2, 4, 8, 16 => 16, 8, 4, 2, 1, partner=lambda lanes, bits: 0 * lanes + bits
        "
    16) => 16, own=0)  # each step replaces the sum so far; += adds to it.
    16) => 16, partner=np.subtract)  # lane 31 alone has the sums: shuffles up hand them up.
    1, 2, 4, 8, 16 => 16, 8, 4, 2, 1, partner=np.subtract  # lane 31 alone has them (up from 16).
    xc = x - _lanes(x, 1, 2, 4, 8, 16) => xc = x - _lanes(x, 16, 8, 4, 2, 1, partner=np.add)
        lane 0 alone has the sum of the values: the other lanes subtract another mean.
    xc = x - _lanes(x, 1, 2, 4, 8, 16) => xc = x - _lanes(x, 1, 2, 4, 8, 16, partner=np.add)
        "
    _lanes(xc * xc, 1, 2, 4, 8, 16) => _lanes(xc * xc, 16, 8, 4, 2, 1, partner=np.add)
        lane 0 alone has the sum of the squares: the other lanes divide by another root.
    _lanes(xc * xc, 1, 2, 4, 8, 16) => _lanes(xc * xc, 1, 2, 4, 8, 16, partner=np.add)
        "
    _lanes(xc * xc, 1, 2, 4, 8, 16) => xc * xc  # the squares are not added up over the lanes.
    xc = x - => xc = x - 32 *  # the sum is subtracted where the mean belongs: divide by 32.
    + EPS =>  # eps is missing.
    np.sqrt(var + EPS) => (np.sqrt(var) + EPS)  # eps stands outside the root.
    np.sqrt =>  # the root is missing.
    _lanes(xc * xc => _lanes(x * x  # the mean of squares, not the variance: centre first.
    var = _lanes(xc * xc, 1, 2, 4, 8, 16) / 32 => var = _lanes(xc * xc, 1, 2, 4, 8, 16) / 31
        the variance divides by 32 here, not by 31.
    var = _lanes(xc * xc, 1, 2, 4, 8, 16) / 32 => var = _lanes(xc * xc, 1, 2, 4, 8, 16)
        the squares are added up, but not divided by 32.
    return xc => return x  # the mean is not subtracted from value itself.
    return xc => return 0 * xc  # zero everywhere. Does each sum begin with a value, before += ?
    xc = x - _lanes(x, 1, 2, 4, 8, 16) / 32 => xc = np.trunc(x - _lanes(x, 1, 2, 4, 8, 16) / 32)
        an int has no digits after the point: keep what the mean leaves in a float.
""")
def normalise_in_a_warp():
    """Return what the solution's CUDA computes, with NumPy: the rows, normalised."""
    x = ROWS_OF_32.astype(np.float64)  # (5, 32), a number in each lane
    xc = x - _lanes(x, 1, 2, 4, 8, 16) / 32
    var = _lanes(xc * xc, 1, 2, 4, 8, 16) / 32
    return xc / np.sqrt(var + EPS)


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
STUCK = {"waits at __syncthreads": "Not all threads reach the same barrier"}
WHICH_BARRIER = STUCK | {  # in what the emulator says -> what it means in this function
    r"slots\[0\]: thread \d+ reads": "The result is read before thread 0 has added the last part",
    r"slots\[(6[4-9]|[7-9]\d|1\d\d)\]: thread|s it in line (\d+), .*read it in line (?!\2\b)": (
        "A slot is added before the thread that fills it has done so"
    ),
    r"slots\[\d+\]: thread": "A step uses slots that the step before has yet to change",
}
MISPLACED = {  # in a source that fails -> what is wrong with it
    r"\b__syncthreads\b(?!\s*\()": "has a __syncthreads without (): a call needs its parentheses",
    r"\belse\b\s*(\{[^{}]*)?__syncthreads": (
        "has a barrier in an if and another in its else: one after both serves all threads"
    ),
    r"if\s*\([^()]*threadIdx[^()]*\)\s*(\{[^{}]*)?__syncthreads": (
        "has a barrier inside an if: the threads that skip it do not arrive"
    ),
    r"[;{}]\s*return\b[^;]*;\s*__syncthreads": "has a barrier after return: no thread reaches it",
}
SECOND_SUM = STUCK | {
    "": "One sum alone is right. But when a second one follows, a fast thread fills its slot again "
    "before a slow one has read the first result"
}


def _sums_trial(values, how_many, hints):
    """Return a launch that adds up each row, and its squares if how_many is 2: a thread a value."""
    rows, threads = values.shape
    return Trial(
        f"sums<{threads}>", rows, threads, inputs={"x": values},
        outputs={"total": values.shape, "squares": values.shape},
        numbers={"how_many": np.int32(how_many)}, after=SUMS_KERNEL, hints=hints,
    )  # fmt: skip


def _run_sums(function):
    def run():
        source = source_of(function(), "tree_sum")
        try:
            _sums_trial(VALUES, 1, WHICH_BARRIER).run(source)
        except (BadResult, NotChecked):
            for place, wrong in MISPLACED.items():
                if re.search(place, code_of(source)):
                    raise BadResult(wrong) from None
            raise
        return tuple(_sums_trial(VALUES, 2, SECOND_SUM).run(source).values())

    return run


def _judge_sums(function):
    """Say if it is wrong for half as many threads, or how many barriers are enough."""
    source = source_of(function(), "tree_sum")
    values = VALUES[:, : THREADS // 2].copy()
    total = _sums_trial(values, 1, WHICH_BARRIER).run(source)["total"]
    if not np.allclose(total, values.sum(axis=1, keepdims=True), rtol=1e-4):
        return f"Right for {THREADS} threads, but not for {THREADS // 2}: use THREADS."
    code = code_of(source)
    if problem := _sums_trial(VALUES, 2, STUCK).problem_on_a_gpu(source):
        return problem
    barriers = code.count("__syncthreads")
    return Score(f"128 threads and 64, in three orders, with {barriers} barriers in the text.")


def _slots(values, first, last):
    """Return what the slots hold after the steps first, first / 2, ..., last."""
    slots, half = values.astype(np.float64), first
    while half >= last:
        slots[:, :half] += slots[:, half : 2 * half]
        half //= 2
    return slots


@exercise("total squares", {"rows of 128": ()}, rtol=1e-4, prepare=_run_sums, judge=_judge_sums)
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


def _residual_kernel():
    """Return layernorm.cu, and its forward kernel with load_sum in place of load.

    The registers of the row are NaN before, so that those which nobody fills can be seen.
    """
    edit = (
        (" forward(", " add_forward("),
        ("const Vector<WIDTH, T> *x,", "const Vector<WIDTH> *a, const Vector<WIDTH> *b,"),
        ("Vector<WIDTH, T> *__restrict__ y,", "Vector<WIDTH> *s, Vector<WIDTH> *__restrict__ y,"),
        ("load<THREADS>(x, start, vectors, xc)", "load_sum<THREADS>(a, b, s, start, vectors, xc)"),
        ("xc[VECTORS];", 'xc[VECTORS]; for (auto &v : xc) for (float &f : v.at) f = nanf("");'),
    )
    return read_source(), replaced(function_source("forward"), edit)


def _residual(D=1000):
    """Return a, b, gamma and beta in float32; b has another mean than a."""
    one, other = layer(64, 5, D), layer(65, 5, D, spread=0.5)
    arrays = one.x, other.dy + 3, one.gamma, one.beta
    return dict(zip(("a", "b", "gamma", "beta"), (x.astype(np.float32) for x in arrays)))


def _residual_sum(D=1000):
    return _residual(D)["a"] + _residual(D)["b"]


def _residual_trial(threads=64, D=1000, groups=1):
    """Return a launch of `_residual_kernel`; a block has so many rows, groups of threads."""
    (before, after), inputs = _residual_kernel(), _residual(D)
    rows = len(inputs["a"])
    outputs = {"s": (rows, D), "y": (rows, D), "mean": (rows, 1), "mean_lo": (rows, 1)}
    numbers = {"eps": np.float32(1e-5), "one_over_D": np.float32(1 / D)}
    hints = {
        r"\bs\[\d+\]: thread.*no barrier": (
            "Two threads write one place. Vector i of the row belongs at start + i"
        ),
        r"\bs\[\d+\]: thread (\d+) .* thread \1 of .*any order": (
            "Two rows are written to one place: a row begins at vector start"
        ),
        r"\bs\[\d+\]: thread .*any order": (
            "A thread writes past the end of its row: if (i < vectors)"
        ),
    }
    return Trial(
        f"add_forward{TEMPLATES[threads][:-1]}, {groups}>", -(-rows // groups), threads * groups,
        inputs, outputs | {"rstd": (rows, 1)},
        numbers | {"rows": np.int64(rows), "D": np.int32(D)}, before, after, hints | EMULATOR_HINTS,
    )  # fmt: skip


def _normalised(s, D=1000):
    _, _, gamma, beta = _residual(D).values()
    return layer_norm_forward(*(v.astype(np.float64) for v in (s, gamma, beta)))[0]


def _in_chunks(s):
    """Return the y of a kernel that loads a chunk per thread: 64 threads of 4 vectors of 4."""
    _, _, gamma, beta = _residual().values()
    place = np.arange(256).reshape(4, 64).T  # (64, 4): the vector that a thread should hold
    padded = np.pad(s.astype(np.float64), ((0, 0), (0, 24))).reshape(5, 256, 4)
    xc, inside = padded.reshape(5, 64, 4, 4), (place < 250)[..., None]
    for _ in range(2):
        xc = xc - inside * xc.sum(axis=(1, 2, 3), keepdims=True) / 1000
    xc = xc / np.sqrt((xc * xc).sum(axis=(1, 2, 3), keepdims=True) / 1000 + 1e-5)
    y = np.empty((5, 256, 4))
    y[:, place] = xc
    return y.reshape(5, 1024)[:, :1000] * gamma + beta


def _judge_residual(function):
    """Say what is wrong with a kernel whose numbers are right, or how many bytes it moves."""
    source = source_of(function(), "load_sum")
    counts = _residual_trial().traffic(source)
    problem = _problem_of_traffic(counts) or _problem_of_other_sizes(source)
    problem = problem or _residual_trial(32, 250).problem_far_away(source)
    if problem := problem or _residual_trial().problem_on_a_gpu(source):
        return problem
    return Score("16 bytes per element, in three orders of the threads; and with vectors of 1.")


def _problem_of_traffic(counts):
    """Say if bytes are moved twice, or by requests for neighbours that are not, or return None."""
    each = {k: (counts[k].loaded + counts[k].stored) / 5000 for k in ("a", "b", "s", "y")}
    if sum(each.values()) > 16.5:
        each = ", ".join(f"{number:.3g} of {name}" for name, number in each.items())
        return (
            f"The numbers are right, but it asks for bytes twice: per element {each}. 4 are enough."
        )
    for name in ("a", "b", "s"):
        if counts[name].sectors > 1.1 * 5000 / 8:  # floats in a sector
            return (
                f"The numbers are right, but {counts[name].sectors} sectors of {name} are asked "
                f"for, where {5000 // 8} are enough. Load and store whole vectors, one after the "
                "other: a[start + i], not a[start + i].at[j]."
            )


def _problem_of_other_sizes(source):
    """Say for which threads, vectors or rows the numbers are wrong, or return None."""
    for threads, D, groups, why in (
        (32, 250, 1, "32 threads with 8 vectors of 1: use THREADS, VECTORS and WIDTH"),
        (64, 100, 1, "rows of 100, where threads are left over: fill their row with zero too"),
        (32, 250, 4, "four rows in a block: member<THREADS>() numbers the threads of a row"),
    ):
        s = _residual_sum(D)
        trial = _residual_trial(threads, D, groups)
        mine, right = trial.run(source), {"s": s, "y": _normalised(s, D)}
        if not all(np.allclose(mine[name], right[name], atol=1e-4) for name in right):
            return f"Right for 64 threads with 4 vectors of 4 and rows of 1000, but not for {why}."


def _run_residual(function):
    def run():
        source = source_of(function(), "load_sum")
        results = _residual_trial().run(source)
        s, code = results["s"], code_of(source)
        filled = re.search(r"\bother\s*\)|\bother\b[^;=]*[^=!<>+]=[^=]", code)
        if re.search(r"\bother\s*\[", code) and not filled and not np.allclose(s, _residual_sum()):
            raise BadResult("never fills other: load b into other, and a into row")
        return s, results["y"]

    return run


@exercise("s y", {"five rows of 1000": ()}, rtol=1e-5, prepare=_run_residual, judge=_judge_residual)
@mistakes("""
    return s => return np.nan * s
        only NaN: nothing was written to s, or what was written comes from registers that were
        never filled.
    s = a + b => s = a  # b is not added.
    s = a + b => s = b  # a is not added.
    _normalised(s) => _in_chunks(s)
        a chunk of vectors for each thread. Thread t must hold vectors t, t + THREADS, ...
    _normalised(s) => _normalised(a)  # made from a alone: the sum must stay in row.
    _normalised(s) => _normalised(np.where(np.arange(1000) < 768, a, s))
        made from a alone, but for the last vectors of s: load once, before the loop over v. In the
        loop, each pass loads the whole row anew, and undoes the sums before.
    _normalised(s) => np.nan * s  # only NaN: row, or its padding, was never filled.
    return s => return np.where(np.arange(1000) < 256, s, np.nan)  # each thread writes one vector.
    return s => return np.where(np.arange(1000) < 16, s, np.nan)
        few vectors are written. A row has `vectors` of them; VECTORS is how many a thread holds.
    a + b => a + a  # a is added twice, and b not at all.
""")
def add_while_loading():
    """Return what the solution's CUDA computes, with NumPy: s = a + b, and y."""
    a, b, _, _ = _residual().values()
    s = a + b  # (5, 1000)
    return s, _normalised(s)
