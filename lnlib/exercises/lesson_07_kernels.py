"""Lesson 07, section 8: RMSNorm's kernels, written by the learner and run by the emulator.

A stub gets the head of a kernel and returns the kernel. The checker launches it behind the text of
layernorm.cu, so that it can use what stands there. In the right answers and in the mistakes below a
`Launch` comes where the stub has the head.
"""

from typing import NamedTuple

import numpy as np

from ..gpu import emulator, passes
from .checker import NotChecked, exercise
from .compare import BadResult
from .data import layer
from .lesson_07 import WRONG_DX, rms_backward, rms_forward

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


def _run(kernel, text, launch, blocks, outputs, numbers, counts=None):
    """Run one kernel; outputs: {name: shape}. Raise NotChecked if the emulator cannot run."""
    if not isinstance(text, str) or f"{kernel}(" not in text:
        came = "a text without it" if isinstance(text, str) else f"a {type(text).__name__}"
        came = f"{len(text)} values" if isinstance(text, (tuple, list)) else came
        raise BadResult(f"returns {came} where a kernel is asked: head, then its body in braces")
    if not emulator.available():
        raise NotChecked(emulator.status())
    source = f'{passes.read_source()}\n#line 1 "kernel"\n{text}'
    machine = emulator._machine("forward", source, counts)
    outputs = {name: machine.empty(shape, np.float32) for name, shape in outputs.items()}
    expression = f"{kernel}<{launch.threads}, {launch.vectors}, {launch.width}>"
    machine.run(expression, blocks, launch.threads, 0, launch.inputs, outputs, numbers)
    return outputs


def run_forward(text, launch, counts=None):
    """Return y and rstd of a forward kernel; counts as for `lnlib.gpu.emulate_forward`."""
    N, D = launch.inputs["x"].shape
    numbers = {"eps": np.float32(launch.eps), "D": np.int32(D)}
    shapes = {"y": (N, D), "rstd": (N, 1)}
    return tuple(_run("rms_forward", text, launch, N, shapes, numbers, counts).values())


def run_backward(text, launch, counts=None):
    """Return dx and dgamma of a backward kernel, whose blocks leave partial sums of dgamma."""
    N, D = launch.inputs["x"].shape
    numbers = {"rows": np.int64(N), "D": np.int32(D)}
    shapes = {"dx": (N, D), "partial": (emulator.BLOCKS, D)}
    done = _run("rms_backward", text, launch, emulator.BLOCKS, shapes, numbers, counts)
    return done["dx"], done["partial"].sum(axis=0, dtype=np.float64)


def _prepared(run, head):
    def prepare(function):
        def prepared(launch):
            text = function(head)
            return None if text is None or text is ... else run(text, launch)

        return prepared

    return prepare


def _bytes_trouble(run, head, launches, values):
    """Judge a kernel by the bytes that it loads and stores; values: {name: loaded or stored}."""

    def judge(function):
        launch, counts = launches()["rows of 1000"][0], {}
        run(function(head), launch, counts)
        size = launch.inputs["x"].nbytes
        for name, way in values.items():
            times = getattr(counts[name], way) / size
            if times > 1.1:
                return (
                    f"The numbers are right, but {name} is {way} {times:.3g} times. Once is "
                    "enough: keep the row in registers."
                )

    return judge


def _launches(names, eps=(1e-5, 0.1, 1e-5)):
    """Return {what is special: (Launch,)}: 5 rows, 2 warps, with padding, and vectors of one."""
    shapes = {"rows of 1000": (4, 4, 1000), "rows of 148": (4, 4, 148), "rows of 201": (4, 1, 201)}
    launches = {}
    for k, (label, (vectors, width, D)) in enumerate(shapes.items()):
        a = layer(91 + k, 5, D)
        _, _, rstd = rms_forward(a.x, a.gamma, eps[k])
        arrays = {"x": a.x, "dy": a.dy, "gamma": a.gamma, "rstd": rstd}
        inputs = {name: arrays[name].astype(np.float32) for name in names}
        launches[label] = (Launch(64, vectors, width, inputs, eps[k]),)
    return launches


def _wide(launch):
    return {name: array.astype(np.float64) for name, array in launch.inputs.items()}


def _parts(values, launch, threads):
    """Return the sums that groups of so many threads have of each row, at every entry."""
    group = np.arange(values.shape[1]) // launch.width % launch.threads // threads  # (D,)
    return np.stack([np.bincount(group, row)[group] for row in values])  # (N, D)


# ---- 7.7 -----------------------------------------------------------------------------------------


def _forward_launches():
    return _launches(("x", "gamma"))


def _forward(change):
    """Return a wrong forward pass: change(x, gamma, eps, D, launch) returns y and rstd."""

    def mistake(head):
        a = _wide(head)
        return change(a["x"], a["gamma"], head.eps, a["x"].shape[1], head)

    return mistake


def _scaled(x, gamma, square, eps=0.0):
    r = 1 / np.sqrt(square + eps)  # (N, 1), or (N, D) where threads disagree
    return gamma * x * r, r[:, :1]


def _only(threads):
    return _forward(
        lambda x, gamma, eps, D, launch: _scaled(x, gamma, _parts(x * x, launch, threads) / D, eps)
    )


@exercise(
    "y rstd",
    _forward_launches,
    {
        "this is LayerNorm: RMSNorm subtracts no mean.": _forward(
            lambda x, gamma, eps, D, launch: _scaled(
                x - x.mean(axis=1)[:, None], gamma, x.var(axis=1)[:, None], eps
            )
        ),
        "the sum of the squares is not divided by D.": _forward(
            lambda x, gamma, eps, D, launch: _scaled(x, gamma, np.sum(x * x, axis=1)[:, None], eps)
        ),
        "the sum, not the sum of squares, is under the root.": _forward(
            lambda x, gamma, eps, D, launch: _scaled(x, gamma, x.mean(axis=1)[:, None], eps)
        ),
        "every thread has only its own part of the sum: block_sum adds them up.": _only(1),
        "every warp has only its own part of the sum: block_sum adds them up.": _only(32),
        "eps is missing.": _forward(
            lambda x, gamma, eps, D, launch: _scaled(x, gamma, np.mean(x * x, axis=1)[:, None])
        ),
        "gamma is missing.": _forward(
            lambda x, gamma, eps, D, launch: rms_forward(x, 1.0, eps)[::2]
        ),
        "the mean is subtracted from x. Here nothing is centred.": _forward(
            lambda x, gamma, eps, D, launch: (
                rms_forward(x, gamma, eps)[2] * gamma * (x - x.mean(axis=1)[:, None]),
                rms_forward(x, gamma, eps)[2],
            )
        ),
        "every block works on row 0: its own begins at blockIdx.x * vectors.": _forward(
            lambda x, gamma, eps, D, launch: rms_forward(x[:1] + 0 * x, gamma, eps)[::2]
        ),
        "rstd is missing: this is gamma * x.": _forward(
            lambda x, gamma, eps, D, launch: (gamma * x, rms_forward(x, gamma, eps)[2])
        ),
        "this is the root of the mean square; rstd is its reciprocal.": _forward(
            lambda x, gamma, eps, D, launch: (
                rms_forward(x, gamma, eps)[0],
                1 / rms_forward(x, gamma, eps)[2],
            )
        ),
        "it is never written: the emulator fills outputs with NaN.": _forward(
            lambda x, gamma, eps, D, launch: (np.nan * x, np.nan * x[:, :1])
        ),
    },
    rtol=3e-6,
    prepare=_prepared(run_forward, FORWARD_HEAD),
    judge=_bytes_trouble(
        run_forward, FORWARD_HEAD, _forward_launches, {"x": "loaded", "y": "stored"}
    ),
)
def rms_forward_kernel(head):
    """Return the text of a kernel: head, then its body in braces."""
    a = _wide(head)
    y, _, rstd = rms_forward(a["x"], a["gamma"], head.eps)
    return y, rstd


# ---- 7.8 -----------------------------------------------------------------------------------------


def _backward_launches():
    return _launches(("x", "dy", "gamma", "rstd"))


def _backward(change):
    """Return a wrong backward pass: change(dy, x_hat, rstd, gamma, launch) returns dx, dgamma."""

    def mistake(head):
        a = _wide(head)
        return change(a["dy"], a["x"] * a["rstd"], a["rstd"], a["gamma"], head)

    return mistake


def _other_dx(dx_of):
    return _backward(
        lambda dy, x_hat, rstd, gamma, launch: (
            dx_of(gamma * dy, x_hat, rstd, gamma),
            np.sum(dy * x_hat, axis=0),
        )
    )


def _other_dgamma(dgamma_of):
    return _backward(
        lambda dy, x_hat, rstd, gamma, launch: (
            rms_backward(dy, x_hat, rstd, gamma)[0],
            dgamma_of(dy, x_hat, gamma),
        )
    )


def _only_along(threads):
    def change(dy, x_hat, rstd, gamma, launch):
        along = _parts(gamma * dy * x_hat, launch, threads) / dy.shape[1]  # (N, D)
        return rstd * (gamma * dy - x_hat * along), np.sum(dy * x_hat, axis=0)

    return _backward(change)


@exercise(
    "dx dgamma",
    _backward_launches,
    {
        "every thread has only its own part of the sum: block_sum adds them up.": _only_along(1),
        "every warp has only its own part of the sum: block_sum adds them up.": _only_along(32),
        "x stands where x_hat = x * rstd belongs.": _backward(
            lambda dy, x_hat, rstd, gamma, launch: rms_backward(dy, x_hat / rstd, rstd, gamma)
        ),
        "only the last row of each block is in it: its sum begins anew with every row.": (
            _other_dgamma(lambda dy, x_hat, gamma: np.sum((dy * x_hat)[-emulator.BLOCKS :], axis=0))
        ),
        "only the first row of each block is there: go on to row + gridDim.x.": _backward(
            lambda dy, x_hat, rstd, gamma, launch: (
                np.where(
                    np.arange(len(dy))[:, None] < emulator.BLOCKS,
                    rms_backward(dy, x_hat, rstd, gamma)[0],
                    np.nan,
                ),
                np.sum((dy * x_hat)[: emulator.BLOCKS], axis=0),
            )
        ),
        "gamma is in it: the sum is over dy * x_hat.": _other_dgamma(
            lambda dy, x_hat, gamma: np.sum(gamma * dy * x_hat, axis=0)
        ),
        "x_hat is missing: the sum is over dy * x_hat.": _other_dgamma(
            lambda dy, x_hat, gamma: np.sum(dy, axis=0)
        ),
        "it is never written, or not by every block: the emulator fills outputs with NaN.": (
            _backward(lambda dy, x_hat, rstd, gamma, launch: (np.nan * dy, np.nan * gamma))
        ),
        **{text: _other_dx(dx_of) for text, dx_of in WRONG_DX.items()},
    },
    rtol=3e-6,
    prepare=_prepared(run_backward, BACKWARD_HEAD),
    judge=_bytes_trouble(
        run_backward,
        BACKWARD_HEAD,
        _backward_launches,
        {"x": "loaded", "dy": "loaded", "dx": "stored"},
    ),
)
def rms_backward_kernel(head):
    """Return the text of a kernel: head, then its body in braces."""
    a = _wide(head)
    return rms_backward(a["dy"], a["x"] * a["rstd"], a["rstd"], a["gamma"])
