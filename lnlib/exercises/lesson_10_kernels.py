"""Lesson 10, sections 8 and 9: RMSNorm's kernels, written by the learner and run by the emulator.

A stub gets the head of a kernel and returns the kernel. The checker launches it behind the text of
layernorm.cu, so that it can use what stands there. In the answers below, which NumPy works out, a
`LaunchInputs` comes where the stub has the head.
"""

import re
from typing import NamedTuple

import numpy as np

from ..checker import BadResult, Score, mistakes
from ..gpu import read_source
from .data import layer
from .kernels import EMULATOR_HINTS, TEMPLATES, Trial, code_of, source_of
from .lesson_10_rms import rms_backward, rms_forward
from .registry import exercise

FORWARD_HEAD = """template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) rms_forward(
    const Vector<WIDTH> *x, const Vector<WIDTH> *gamma,
    Vector<WIDTH> *__restrict__ y, float *__restrict__ rstd, float eps, int D)
"""
BACKWARD_HEAD = """template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) rms_backward(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const float *rstd, Vector<WIDTH> *__restrict__ dx,
    Vector<WIDTH> *__restrict__ partial, long long rows, int D)
"""
IDLE_HINTS = {"takes no part": "All threads must call block_sum, those without vectors too"}
N_ROWS = 11


class LaunchInputs(NamedTuple):
    """What a kernel is launched with.

    Attributes
    ----------
    threads, width : int
        Of its template.
    inputs : dict of str to ndarray
        float32, in the order of its arguments.
    eps : float
    blocks : int
        Of a backward kernel.
    """

    threads: int
    width: int
    inputs: dict
    eps: float
    blocks: int


def _trial(given):
    """Return the launch of a forward kernel, or of a backward one if a dy is given."""
    N, D = given.inputs["x"].shape
    if "dy" in given.inputs:  # whose blocks leave partial sums of dgamma
        kernel, blocks = "rms_backward", given.blocks
        outputs = {"dx": (N, D), "partial": (blocks, D)}
        numbers = {"rows": np.int64(N), "D": np.int32(D)}
    else:
        kernel, blocks, outputs = "rms_forward", N, {"y": (N, D), "rstd": (N, 1)}
        numbers = {"eps": np.float32(given.eps), "D": np.int32(D)}
    kernel += TEMPLATES[given.threads]
    return Trial(
        kernel, blocks, given.threads, given.inputs, outputs, numbers, read_source(),
        hints=IDLE_HINTS | EMULATOR_HINTS,
    )  # fmt: skip


def _source(text, trial):
    """Return the CUDA source in a text, see `source_of`."""
    source = source_of(text, trial.kernel.partition("<")[0])
    if name := _never_cleared(code_of(source)):
        raise BadResult(f"adds to {name}, which never got a value: {name}[v] = Vector<WIDTH>()")
    return source


def _run_rms(text, given):
    """Return y and rstd of a forward kernel, or dx and dgamma of a backward one."""
    trial = _trial(given)
    results = trial.run(_source(text, trial))
    if "partial" in results:
        results["partial"] = results["partial"].sum(axis=0, dtype=np.float64)
    return tuple(results.values())


def _never_cleared(code):
    """Return the name of an array of vectors which only += changes, or None."""
    code = re.sub(r"\bstore\s*<[^;]*;", "", code)  # which passes it on, but sets nothing
    for declared in re.findall(r"Vector<WIDTH>\s+([^;(=*]*);", code):
        for name in re.findall(r"(\w+)\s*\[VECTORS\]", declared):
            made = rf"\b{name}\s*\[[^;]*?\]\s*(\.at\[[^;]*?\]\s*)?=(?!=)"  # assigned, or passed on
            passed = rf"[(,&:]\s*{name}\s*([,)]|\[(?!VECTORS))|=\s*{name}\s*;"
            added = re.search(rf"\b{name}\s*\[[^;]*\+=", code)
            if added and not re.search(f"{made}|{passed}", code):
                return name


def _finite_and_wrong(function, head, given):
    """Say if a row whose squares leave the range of float32 gives finite numbers, wrong ones."""
    large = given.inputs | {"x": given.inputs["x"] * np.float32(1e25)}
    y, _ = _run_rms(function(head), given._replace(inputs=large))
    right, _ = rms_forward_kernel(given._replace(inputs=large))
    if np.any(np.isfinite(y) & (np.abs(y - right) > 1e-3 * np.abs(right).max())):
        return (
            "Right numbers, but rows near 1e25, whose squares leave the range of float32, come out "
            "finite and wrong. reciprocal_std gives NaN there, which can be seen."
        )


def _kernel(head, names, **once):
    """Return the options of an exercise about a kernel.

    Parameters
    ----------
    head : str
        What the learner's function gets.
    names : str
        The inputs, in the order of the kernel's arguments.
    **once : str
        Array -> what may happen to each of its bytes only once.
    """

    def judge(function):
        (given,), (narrow,), _ = _launches(names).values()
        trial = _trial(given)
        source = _source(function(head), trial)
        counts = trial.traffic(source)
        for name, way in once.items():
            size = given.blocks / N_ROWS if name == "partial" else 1  # of that of x
            times = getattr(counts[name], way) / given.inputs["x"].nbytes / size
            if times > 1.1:
                return f"Right numbers, but {name} is {way} {times:.3g} times. Once will do."
        if problem := _trial(narrow).problem_far_away(source):
            return problem
        if "y" in once and (problem := _finite_and_wrong(function, head, given)):
            return problem
        if problem := trial.problem_on_a_gpu(source):
            return problem
        ways = ", ".join(f"{name} {way} once" for name, way in once.items())
        return Score(f"In three orders of the threads and blocks: {ways}.")

    def prepare(function):
        return lambda given: _run_rms(function(head), given)

    return {"cases": lambda: _launches(names), "rtol": 3e-6, "prepare": prepare, "judge": judge}


def _launches(names):
    """Return {what is special: (inputs,)}: two warps and vectors of 4, one warp and single ones.

    In the third launch most threads have no vector, and the rows are so small that eps counts.
    """
    launches = {}
    for D, threads, width, eps, size, blocks in (
        (1000, 64, 4, 0.1, 1, 4),  # an even number of blocks: n % 2 is no buffer
        (201, 32, 1, 1e-5, 1, 4),
        (100, 64, 4, 1e-4, 0.01, 3),
    ):
        a = layer(D, N_ROWS, D)
        a = a._replace(x=size * a.x)
        arrays = a._asdict() | {"rstd": rms_forward(a.x, a.gamma, eps)[2]}
        inputs = {name: arrays[name].astype(np.float32) for name in names.split()}
        launches[f"rows of {D}"] = (LaunchInputs(threads, width, inputs, eps, blocks),)
    return launches


def _wide(head):
    """Return the input arrays in float64, in the order of the kernel's arguments."""
    return (array.astype(np.float64) for array in head.inputs.values())


def _row_sums(values, head, threads=None):
    """Return the sum of each row at every entry, or what groups of so many threads have of it."""
    if threads is None:
        return 0 * values + values.sum(axis=1, keepdims=True)
    group = np.arange(values.shape[1]) // head.width % head.threads // threads  # (D,)
    return np.stack([np.bincount(group, row)[group] for row in values])  # (N, D)


def _on_inputs(function):
    """Return a wrong pass of lesson_10_rms as a function of `LaunchInputs`."""

    def mistake(head, **number):
        values = list(_wide(head))
        if len(values) == 2:  # x, gamma
            y, _, rstd = function(*values, head.eps, **number)
            return y, rstd
        x, dy, gamma, rstd = values
        return function(dy, x * rstd, rstd, gamma, **number)

    return mistake


@exercise("y rstd", **_kernel(FORWARD_HEAD, "x gamma", x="loaded", y="stored"))
@mistakes("""
    return y, rstd => return np.nan * y, np.nan * rstd
        all NaN: never written, or += on memory or registers that were never set.
    x * x, head => x, head  # the sum, not the sum of squares, is under the root.
    x * x, head) => x * x, head, threads=1)  # every thread has only its own part: use block_sum.
    x * x, head) => x * x, head, threads=32)  # every warp has only its own part: use block_sum.
    gamma * =>  # gamma is missing.
    ms + head.eps => ms  # eps is missing.
    y = gamma * (x => y = gamma * ((x - x.mean(1)[:, None])  # x is centred; in RMSNorm nothing is.
    ms = => x = x[:1] + 0 * x; ms =  # every block works on row 0, not on row blockIdx.x.
""")
@mistakes([(words, _on_inputs(wrong)) for words, wrong in rms_forward.mistakes])
def rms_forward_kernel(head):
    """Return what the solution's CUDA computes, with NumPy: y and rstd."""
    x, gamma = _wide(head)  # (N, D), (D,)
    ms = _row_sums(x * x, head) / x.shape[1]  # (N, D)
    rstd = 1 / np.sqrt(ms + head.eps)
    y = gamma * (x * rstd)
    return y, rstd[:, :1]


UNSEEN = "eps is", "divided by len", "multiplied by gamma"  # in float32, or in rows of (N, D)
BACKWARD_ONCE = {"x": "loaded", "dy": "loaded", "dx": "stored", "partial": "stored"}


@exercise("dx dgamma", **_kernel(BACKWARD_HEAD, "x dy gamma rstd", **BACKWARD_ONCE))
@mistakes("""
    return dx, (dy => return np.nan * dx, np.nan * (dy
        all NaN: never written, += on memory never set, or 0 / 0 past the end of the row.
    x_hat, head) => x_hat, head, threads=1)  # every thread has only its own part: use block_sum.
    x_hat, head) => x_hat, head, threads=32)  # every warp has only its own part: use block_sum.
    x_hat, g = x * rstd => x_hat, g = x  # x stands where x_hat = x * rstd belongs.
    x_hat, g = x * rstd => rstd = rstd[np.arange(len(x)) % head.blocks]; x_hat, g = x * rstd
        rstd is that of row blockIdx.x; row n needs its own.
    dx = rstd => b = head.blocks; dx = rstd
    dx = rstd => [along[n].__iadd__(along[n - b]) for n in range(b, len(x))]; dx = rstd
        the sum of the row before is still in it: begin each row with 0.
    dx = rstd => k, b = head.threads / x.shape[1], head.blocks; dx = rstd
    dx = rstd => [along[n].__iadd__(k * along[n - b]) for n in range(b, len(x))]; dx = rstd
        "
    g - x_hat * along => g + x_hat * along  # the sign in front of x_hat is wrong.
    - x_hat * along => - along  # x_hat is missing in front of the mean of g * x_hat.
    return dx, (dy * x_hat) => b = head.blocks; dx[b:] = np.nan; return dx, (dy * x_hat)[:b]
        only the first row of each block is there: go on to row + gridDim.x.
    (dy * x_hat).sum => (dy * x_hat)[-head.blocks:].sum
        only the last row of each block: clear it once.
""")
@mistakes(
    [(words, _on_inputs(f)) for words, f in rms_backward.mistakes if not words.startswith(UNSEEN)]
)
def rms_backward_kernel(head):
    """Return what the solution's CUDA computes, with NumPy: dx and dgamma."""
    x, dy, gamma, rstd = _wide(head)  # (N, D), (N, D), (D,), (N, 1)
    x_hat, g = x * rstd, gamma * dy  # (N, D) each
    along = _row_sums(g * x_hat, head) / x.shape[1]  # (N, D)
    dx = rstd * (g - x_hat * along)
    return dx, (dy * x_hat).sum(axis=0)
