"""The two passes as a sequence of kernel launches, on a GPU or in the emulator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_eps
from . import dispatch
from .arguments import check_array, check_kernel, check_parameter, check_size, load_width

# Bytes of partial sums: for more, one block takes longer than the 3 µs of a launch. (Estimated by
# Little's law: its 256 threads have 16 KiB in flight, for 0.1 µs at least.)
SINGLE_LIMIT = 512 * 1024
SAVED = "mean", "mean_lo", "rstd"  # of each row, for the backward pass


class Backend(NamedTuple):
    """What the passes need of a GPU, or of what stands for one.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    empty : callable
        Of a shape and a dtype: make an array.
    address : callable
        Of an array: where it starts in memory.
    check_place : callable
        Of a name and an array: raises ValueError if the backend cannot reach it.
    run : callable
        run(instantiation, blocks, inputs, outputs, numbers): launch a kernel. The last three are
        dicts, whose values together are the kernel's arguments.
    resident_blocks : callable
        Of an Instantiation: how many of its blocks the GPU holds at a time.
    shared_limit : callable
        Of nothing: how many bytes of shared memory a block can have.
    """

    xp: Any
    empty: Callable
    address: Callable
    check_place: Callable
    run: Callable
    resident_blocks: Callable
    shared_limit: Callable


class Cache(NamedTuple):
    """What the backward pass needs: the input itself and three numbers per row.

    x and gamma are the caller's arrays, not copies: do not change them before the backward pass.

    Attributes
    ----------
    x : array, shape (..., D)
    mean, mean_lo : array, shape (..., 1), float32
        Their sum is the mean: one float32 would lose the digits that matter when x has an offset.
    rstd : array, shape (..., 1), float32
    gamma : array, shape (D,)
    """

    x: Any
    mean: Any
    mean_lo: Any
    rstd: Any
    gamma: Any


def forward(backend, x, gamma, beta, eps, kernel="forward", width=None):
    """Launch the forward pass; see `lnlib.gpu.layer_norm_forward` for the arguments."""
    check_kernel(kernel, dispatch.FORWARD)
    check_array(backend, "x", x)
    check_size(x)
    D = x.shape[-1]
    check_parameter(backend, "gamma", gamma, x)
    check_array(backend, "beta", beta, (D,), gamma.dtype)
    eps = check_eps(eps)
    y = backend.empty(x.shape, x.dtype)
    mean, mean_lo, rstd = (backend.empty((*x.shape[:-1], 1), np.float32) for _ in range(3))
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    outputs = {"y": y, "mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    width = load_width(backend, width, D, *inputs.values(), y)
    types = dispatch.types_of(x.dtype, gamma.dtype)
    chosen = dispatch.choose(kernel, D, width, types=types)
    numbers = {"eps": np.float32(eps)} | _numbers(x)
    if x.size:
        backend.run(chosen, -(-x.size // D // chosen.rows), inputs, outputs, numbers)
    return y, Cache(x, mean, mean_lo, rstd, gamma)


def _numbers(x):
    """Return what every kernel of a pass is told about x."""
    D = x.shape[-1]
    return {"one_over_D": np.float32(1 / D), "rows": np.int64(x.size // D), "D": np.int32(D)}


def backward(backend, dy, cache, kernel="backward", width=None):
    """Launch the backward pass; see `lnlib.gpu.layer_norm_backward` for the arguments."""
    _check_backward(backend, dy, cache, kernel)
    x, gamma, D = cache.x, cache.gamma, cache.x.shape[-1]
    dx = backend.empty(x.shape, x.dtype)
    width = load_width(backend, width, D, x, dy, gamma, dx)
    types = dispatch.types_of(x.dtype, gamma.dtype)
    chosen = dispatch.choose(kernel, D, width, backend.shared_limit(), types)
    if x.size == 0:
        return dx, *backend.xp.zeros((2, D), gamma.dtype)
    inputs = {"x": x, "dy": dy} | {name: getattr(cache, name) for name in ("gamma", *SAVED)}
    return dx, *STAGES[chosen.kernel](_Backward(backend, chosen, inputs, dx, width, types))


def _check_backward(backend, dy, cache, kernel):
    """Raise TypeError or ValueError if these cannot be arguments of `backward`."""
    check_kernel(kernel, dispatch.BACKWARD)
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a lnlib.gpu.Cache, got {type(cache).__name__}")
    x = cache.x
    check_array(backend, "cache.x", x)
    for name in SAVED:
        array = getattr(cache, name)
        check_array(backend, f"cache.{name}", array, (*x.shape[:-1], 1), "float32")
    check_parameter(backend, "cache.gamma", cache.gamma, x)
    check_array(backend, "dy", dy, x.shape, x.dtype)


class _Backward(NamedTuple):
    """A backward pass whose arguments have been checked.

    Attributes
    ----------
    backend : Backend
    chosen : dispatch.Instantiation
        Of the kernel that writes dx.
    inputs : dict of str to array
        In the order of the kernel's arguments.
    dx : array
    width : int
        Entries per load.
    types : tuple of str
        From `dispatch.types_of`.
    """

    backend: Backend
    chosen: dispatch.Instantiation
    inputs: dict
    dx: Any
    width: int
    types: tuple

    def grid(self):
        """Return how many blocks there are, and an empty array: sums of each of their groups."""
        rows, D = self.dx.size // self.dx.shape[-1], self.dx.shape[-1]
        resident = self.backend.resident_blocks(self.chosen)
        blocks, sharing = dispatch.grid(self.chosen, rows, D, self.width, resident)
        return blocks, self.backend.empty((sharing, 2, D), np.float32)

    def run(self, blocks, **more):
        """Launch the kernel; more are the arrays that it writes beside dx."""
        outputs = {"dx": self.dx, **more}
        self.backend.run(self.chosen, blocks, self.inputs, outputs, _numbers(self.dx))


def _atomically(given):
    """Launch a block for each row, whose sums are added by atomics; return dgamma and dbeta."""
    D = given.dx.shape[-1]
    dgamma, dbeta = given.backend.xp.zeros((2, D), np.float32)
    given.run(given.dx.size // D, dgamma=dgamma, dbeta=dbeta)
    return dgamma, dbeta


def _in_one_launch(given):
    """Launch blocks of which the last one adds up all sums; return dgamma and dbeta."""
    blocks, partial = given.grid()
    if partial.nbytes > SINGLE_LIMIT:
        raise ValueError(
            f"backward_single is for at most {SINGLE_LIMIT} bytes of partial sums, which one "
            f"block adds up, got {partial.nbytes}; backward takes any"
        )
    gradients = given.backend.empty(partial.shape[1:], np.float32)
    counter = given.backend.xp.zeros(1, np.int32)
    given.run(blocks, partial=partial, gradients=gradients, counter=counter)
    return gradients


def _in_two_stages(given):
    """Launch blocks that leave partial sums, and add these up; return dgamma and dbeta."""
    blocks, partial = given.grid()
    given.run(blocks, partial=partial)
    return _add_up(given, partial)


def _after_row_means(given):
    """Launch two kernels that read x and dy, and add up their sums; return dgamma and dbeta."""
    rows, first = given.dx.size // given.dx.shape[-1], dispatch.row_means(given.width, given.types)
    means = given.backend.empty((rows, 3), np.float32)
    given.backend.run(first, rows, given.inputs, {"means": means}, _numbers(given.dx))
    return _in_two_stages(given._replace(inputs=given.inputs | {"means": means}))


STAGES = {  # of each kernel that writes dx
    "backward": _in_two_stages,
    "backward_columns": _after_row_means,
    "backward_single": _in_one_launch,
    "backward_atomic": _atomically,
}


def _add_up(given, partial):
    """Launch the second stage; return dgamma and dbeta."""
    blocks, _, D = partial.shape
    gradients = given.backend.empty((2, D), given.inputs["gamma"].dtype)
    numbers = {"rows": np.int32(blocks), "columns": np.int32(2 * D)}
    chosen = dispatch.column_sums(blocks, given.types)
    outputs = {"gradients": gradients}
    given.backend.run(chosen, -(-2 * D // dispatch.COLUMNS), {"partial": partial}, outputs, numbers)
    return gradients
