"""The two passes as a sequence of kernel launches, on a GPU or in the emulator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_eps
from . import dispatch
from .arguments import check_array, check_kernel, check_parameter, check_size, load_width

SINGLE_LIMIT = 512 * 1024  # bytes of partial sums that one block can add up without delay


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
    check_kernel(kernel, dispatch.BACKWARD)
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a lnlib.gpu.Cache, got {type(cache).__name__}")
    x, mean, mean_lo, rstd, gamma = cache
    check_array(backend, "cache.x", x)
    saved = {"mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    for name, array in saved.items():
        check_array(backend, f"cache.{name}", array, (*x.shape[:-1], 1), "float32")
    check_parameter(backend, "cache.gamma", gamma, x)
    check_array(backend, "dy", dy, x.shape, x.dtype)
    D = x.shape[-1]
    dx = backend.empty(x.shape, x.dtype)
    width = load_width(backend, width, D, x, dy, gamma, dx)
    types = dispatch.types_of(x.dtype, gamma.dtype)
    chosen = dispatch.choose(kernel, D, width, backend.shared_limit(), types)
    if x.size == 0:
        return dx, *backend.xp.zeros((2, D), gamma.dtype)
    inputs = {"x": x, "dy": dy, "gamma": gamma} | saved
    if chosen.kernel == "backward_atomic":
        return dx, *_add_atomically(backend, chosen, inputs, dx)
    if chosen.kernel == "backward_columns":
        partial = _read_twice(backend, chosen, inputs, dx, width, types)
    elif chosen.kernel == "backward_single":
        return dx, *_launch_once(backend, chosen, inputs, dx)
    else:
        partial = _partial_sums(backend, chosen, dx)
        outputs = {"dx": dx, "partial": partial}
        backend.run(chosen, len(partial), inputs, outputs, _numbers(dx))
    return dx, *_add_up(backend, partial, gamma.dtype, types)


def _add_atomically(backend, chosen, inputs, dx):
    """Launch a block for each row; return dgamma and dbeta."""
    D = dx.shape[-1]
    dgamma, dbeta = backend.xp.zeros((2, D), np.float32)
    outputs = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    backend.run(chosen, dx.size // D, inputs, outputs, _numbers(dx))
    return dgamma, dbeta


def _launch_once(backend, chosen, inputs, dx):
    """Launch both stages in one; return dgamma and dbeta."""
    partial = _partial_sums(backend, chosen, dx)
    if partial.nbytes > SINGLE_LIMIT:
        raise ValueError(
            f"backward_single is for at most {SINGLE_LIMIT} bytes of partial sums, which one "
            f"block adds up, got {partial.nbytes}; backward takes any"
        )
    gradients = backend.empty(partial.shape[1:], np.float32)
    outputs = {"dx": dx, "partial": partial, "gradients": gradients}
    outputs["counter"] = backend.xp.zeros(1, np.int32)
    backend.run(chosen, len(partial), inputs, outputs, _numbers(dx))
    return gradients


def _partial_sums(backend, chosen, dx):
    """Return an empty array: dgamma and dbeta of each block."""
    D = dx.shape[-1]
    resident = backend.resident_blocks(chosen)
    blocks = dispatch.blocks_for(dx.size // D, resident, chosen.rows)
    return backend.empty((blocks, 2, D), np.float32)


def _read_twice(backend, chosen, inputs, dx, width, types):
    """Launch the two kernels for rows whose sums do not fit; return partial sums."""
    D = dx.shape[-1]
    rows, first = dx.size // D, dispatch.row_means(width, types)
    means = backend.empty((rows, 3), np.float32)
    backend.run(first, rows, inputs, {"means": means}, _numbers(dx))
    resident = backend.resident_blocks(chosen)
    blocks, down = dispatch.column_blocks(rows, D, width, resident)
    outputs = {"dx": dx, "partial": backend.empty((down, 2, D), np.float32)}
    inputs = inputs | {"means": means}
    backend.run(chosen, blocks, inputs, outputs, _numbers(dx))
    return outputs["partial"]


def _add_up(backend, partial, dtype, types):
    """Launch the second stage; return dgamma and dbeta."""
    blocks, _, D = partial.shape
    gradients = backend.empty((2, D), dtype)
    numbers = {"rows": np.int32(blocks), "columns": np.int32(2 * D)}
    chosen = dispatch.column_sums(blocks, types)
    grid = -(-2 * D // dispatch.COLUMNS)
    backend.run(chosen, grid, {"partial": partial}, {"gradients": gradients}, numbers)
    return gradients
