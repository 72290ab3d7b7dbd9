"""Lesson 07, section 8: RMSNorm's kernels, written by the learner and run by the emulator.

A stub gets the head of a kernel and returns the kernel. The checker launches it behind the text of
layernorm.cu, so that it can use what stands there. In the right answers and in the mistakes below a
`Launch` comes where the stub has the head.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from ..gpu import emulator, passes
from .checker import exercise
from .data import layer
from .kernels import launch, source_of
from .lesson_07 import WRONG_BACKWARD, rms_backward, rms_forward, wrong_dgamma

FORWARD_HEAD = """template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) rms_forward(
    const Vector<WIDTH> *x, const Vector<WIDTH> *gamma,
    Vector<WIDTH> *__restrict__ y, float *__restrict__ rstd, float eps, int D)
"""
BACKWARD_HEAD = """template <int THREADS, int VECTORS, int WIDTH>
__global__ void __launch_bounds__(THREADS) rms_backward(
    const Vector<WIDTH> *x, const Vector<WIDTH> *dy, const Vector<WIDTH> *gamma,
    const float *rstd, Vector<WIDTH> *__restrict__ dx, Vector<WIDTH> *__restrict__ partial,
    long long rows, int D)
"""


class Launch(NamedTuple):
    """What a kernel is launched with.

    Attributes
    ----------
    threads, vectors, width : int
        The three numbers of its template.
    inputs : dict of str to ndarray
        float32, in the order of its arguments.
    eps : float
    """

    threads: int
    vectors: int
    width: int
    inputs: dict
    eps: float


def _run(kernel, text, given, blocks, outputs, numbers, counts=None):
    """Run one kernel; outputs: {name: shape}."""
    pieces = passes.read_source(), source_of(text, kernel), ""
    expression = f"{kernel}<{given.threads}, {given.vectors}, {given.width}>"
    return launch(pieces, expression, blocks, given.threads, given.inputs, outputs, numbers, counts)


def run_forward(text, given, counts=None):
    """Return y and rstd of a forward kernel; counts as for `lnlib.gpu.emulate_forward`."""
    N, D = given.inputs["x"].shape
    numbers = {"eps": np.float32(given.eps), "D": np.int32(D)}
    shapes = {"y": (N, D), "rstd": (N, 1)}
    return tuple(_run("rms_forward", text, given, N, shapes, numbers, counts).values())


def run_backward(text, given, counts=None):
    """Return dx and dgamma of a backward kernel, whose blocks leave partial sums of dgamma."""
    N, D = given.inputs["x"].shape
    numbers = {"rows": np.int64(N), "D": np.int32(D)}
    shapes = {"dx": (N, D), "partial": (emulator.BLOCKS, D)}
    done = _run("rms_backward", text, given, emulator.BLOCKS, shapes, numbers, counts)
    return done["dx"], done["partial"].sum(axis=0, dtype=np.float64)


def _prepared(run, head):
    def prepare(function):
        return lambda given: run(function(head), given)

    return prepare


def _bytes_judge(run, head, names, **once):
    """Judge a kernel by its traffic; once: {array: what may happen to each byte only once}."""

    def judge(function):
        (given,), counts = _launches(names)["rows of 1000"], {}
        run(function(head), given, counts)
        for name, way in once.items():
            times = getattr(counts[name], way) / given.inputs["x"].nbytes
            if times > 1.1:
                return (
                    f"The numbers are right, but {name} is {way} {times:.3g} times. Once is "
                    "enough: keep the row in registers."
                )

    return judge


def _launches(names):
    """Return {what is special: (Launch,)}: two warps and vectors of 4, one warp and single ones."""
    launches = {}
    for D, *template, eps in ((1000, 64, 4, 4, 1e-5), (201, 32, 8, 1, 0.1)):
        a = layer(D, 5, D)
        arrays = a._asdict() | {"rstd": rms_forward(a.x, a.gamma, eps)[2]}
        inputs = {name: arrays[name].astype(np.float32) for name in names}
        launches[f"rows of {D}"] = (Launch(*template, inputs, eps),)
    return launches


# The mistakes below are functions of one argument: the launch's arrays in float64, D, and `launch`.


def _wide(launch):
    arrays = {name: array.astype(np.float64) for name, array in launch.inputs.items()}
    return SimpleNamespace(**arrays, D=arrays["x"].shape[1], launch=launch)


def _parts(values, launch, threads):
    """Return the sums that groups of so many threads have of each row, at every entry."""
    group = np.arange(values.shape[1]) // launch.width % launch.threads // threads  # (D,)
    return np.stack([np.bincount(group, row)[group] for row in values])  # (N, D)


# ---- 7.7 -----------------------------------------------------------------------------------------


def _forward(change):
    """Return a forward pass with change(a) for y and rstd; a also has eps and the right rstd."""

    def mistake(head):
        a = _wide(head)
        a.eps, a.rstd = head.eps, rms_forward(a.x, a.gamma, head.eps)[2]
        return change(a)

    return mistake


def _divided_by_root_of(square):
    """Take square(a), (N, 1) or (N, D), for the mean square plus eps."""
    return _forward(lambda a: (a.gamma * a.x / np.sqrt(square(a)), 1 / np.sqrt(square(a))[:, :1]))


def _is_layer_norm(a):
    z, r = a.x - a.x.mean(axis=1)[:, None], 1 / np.sqrt(a.x.var(axis=1) + a.eps)[:, None]
    return a.gamma * z * r, r


FORWARD_INPUTS = ("x", "gamma")


@exercise(
    "y rstd",
    lambda: _launches(FORWARD_INPUTS),
    {
        "this is LayerNorm: RMSNorm subtracts no mean.": _forward(_is_layer_norm),
        "the sum of the squares is not divided by D.": _divided_by_root_of(
            lambda a: np.sum(a.x**2, axis=1)[:, None] + a.eps
        ),
        "the sum, not the sum of squares, is under the root.": _divided_by_root_of(
            lambda a: a.x.mean(axis=1)[:, None] + a.eps
        ),
        "every thread has only its own part of the sum: block_sum adds them up.": (
            _divided_by_root_of(lambda a: _parts(a.x**2, a.launch, 1) / a.D + a.eps)
        ),
        "every warp has only its own part of the sum: block_sum adds them up.": (
            _divided_by_root_of(lambda a: _parts(a.x**2, a.launch, 32) / a.D + a.eps)
        ),
        "eps is added outside the root.": _forward(
            lambda a: (lambda r: (a.gamma * a.x * r, r))(
                1 / (np.sqrt(np.mean(a.x**2, axis=1)[:, None]) + a.eps)
            )
        ),
        "eps is added twice: reciprocal_std does it.": _divided_by_root_of(
            lambda a: np.mean(a.x**2, axis=1)[:, None] + 2 * a.eps
        ),
        "eps is missing.": _divided_by_root_of(lambda a: np.mean(a.x**2, axis=1)[:, None]),
        "gamma is missing.": _forward(lambda a: (a.x * a.rstd, a.rstd)),
        "the mean is subtracted from x. Here nothing is centred.": _forward(
            lambda a: (a.gamma * (a.x - a.x.mean(axis=1)[:, None]) * a.rstd, a.rstd)
        ),
        "every block works on row 0: its own begins at blockIdx.x * vectors.": _forward(
            lambda a: (a.gamma * a.x[:1] * a.rstd[:1] + 0 * a.x, a.rstd[:1] + 0 * a.rstd)
        ),
        "rstd is missing: this is gamma * x.": _forward(lambda a: (a.gamma * a.x, a.rstd)),
        "this is the root of the mean square; rstd is its reciprocal.": _forward(
            lambda a: (a.gamma * a.x * a.rstd, 1 / a.rstd)
        ),
        "it is never written: the emulator fills outputs with NaN.": _forward(
            lambda a: (np.nan * a.x, np.nan * a.rstd)
        ),
    },
    rtol=3e-6,
    prepare=_prepared(run_forward, FORWARD_HEAD),
    judge=_bytes_judge(run_forward, FORWARD_HEAD, FORWARD_INPUTS, x="loaded", y="stored"),
)
def rms_forward_kernel(head):
    """Return the text of a kernel: head, then its body in braces."""
    a = _wide(head)
    y, _, rstd = rms_forward(a.x, a.gamma, head.eps)
    return y, rstd


# ---- 7.8 -----------------------------------------------------------------------------------------


def _backward(mistake):
    """Return mistake(dy, x_hat, rstd, gamma) as a function of a launch."""

    def backward(head):
        a = _wide(head)
        return mistake(a.dy, a.x * a.rstd, a.rstd, a.gamma)

    return backward


def _along_of(threads):
    """Return a backward pass in which groups of threads keep their sums for themselves."""

    def mistake(head):
        a = _wide(head)
        x_hat, g = a.x * a.rstd, a.gamma * a.dy  # (N, D) each
        along = _parts(g * x_hat, head, threads) / a.D  # (N, D)
        return a.rstd * (g - x_hat * along), np.sum(a.dy * x_hat, axis=0)

    return mistake


def _first_rows_only(dy, x_hat, rstd, gamma):
    dx, _ = rms_backward(dy, x_hat, rstd, gamma)
    dx[emulator.BLOCKS :] = np.nan
    return dx, np.sum((dy * x_hat)[: emulator.BLOCKS], axis=0)


BACKWARD_INPUTS = ("x", "dy", "gamma", "rstd")


@exercise(
    "dx dgamma",
    lambda: _launches(BACKWARD_INPUTS),
    {
        "every thread has only its own part of the sum: block_sum adds them up.": _along_of(1),
        "every warp has only its own part of the sum: block_sum adds them up.": _along_of(32),
        "x stands where x_hat = x * rstd belongs.": _backward(
            lambda dy, x_hat, rstd, gamma: rms_backward(dy, x_hat / rstd, rstd, gamma)
        ),
        "only the first row of each block is there: go on to row + gridDim.x.": _backward(
            _first_rows_only
        ),
        "only the last row of each block is in it: its sum begins anew with every row.": _backward(
            wrong_dgamma(lambda dy, x_hat, gamma: np.sum((dy * x_hat)[-emulator.BLOCKS :], axis=0))
        ),
        "it is never written, or not by every block: the emulator fills outputs with NaN.": (
            _backward(lambda dy, x_hat, rstd, gamma: (np.nan * dy, np.nan * gamma))
        ),
        **{
            text: _backward(mistake)
            for text, mistake in WRONG_BACKWARD.items()
            if "over the rows" not in text and "along each row" not in text
        },
    },
    rtol=3e-6,
    prepare=_prepared(run_backward, BACKWARD_HEAD),
    judge=_bytes_judge(
        run_backward, BACKWARD_HEAD, BACKWARD_INPUTS, x="loaded", dy="loaded", dx="stored"
    ),
)
def rms_backward_kernel(head):
    """Return the text of a kernel: head, then its body in braces."""
    a = _wide(head)
    return rms_backward(a.dy, a.x * a.rstd, a.rstd, a.gamma)
