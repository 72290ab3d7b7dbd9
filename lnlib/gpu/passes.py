"""The two passes as a sequence of kernel launches, on a GPU or in the emulator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_eps
from . import instances
from .arguments import check_array, check_kernel, check_size, load_width

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
        run(configuration, blocks, inputs, outputs, numbers): launch a kernel. The last three are
        dicts, whose values together are the kernel's arguments.
    resident_blocks : callable
        Of a Configuration: how many of its blocks the GPU holds at a time.
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
    check_kernel(kernel, instances.FORWARD)
    check_array(backend, "x", x)
    check_size(x)
    D = x.shape[-1]
    check_array(backend, "gamma", gamma, (D,), x.dtype)
    check_array(backend, "beta", beta, (D,), x.dtype)
    eps = check_eps(eps)
    rows = x.size // D
    y = backend.empty(x.shape, x.dtype)
    mean, mean_lo, rstd = (backend.empty((*x.shape[:-1], 1), np.float32) for _ in range(3))
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    outputs = {"y": y, "mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    numbers = {"eps": np.float32(eps), "D": np.int32(D)}
    width = load_width(backend, width, D, *inputs.values(), y)
    chosen = instances.configuration(kernel, D, width, stored=instances.STORED[x.dtype.name].cpp)
    if rows:
        backend.run(chosen, rows, inputs, outputs, numbers)
    return y, Cache(x, mean, mean_lo, rstd, gamma)


def backward(backend, dy, cache, kernel="backward", width=None):
    """Launch the backward pass; see `lnlib.gpu.layer_norm_backward` for the arguments."""
    check_kernel(kernel, instances.BACKWARD)
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a lnlib.gpu.Cache, got {type(cache).__name__}")
    x, mean, mean_lo, rstd, gamma = cache
    check_array(backend, "cache.x", x)
    for name in ("mean", "mean_lo", "rstd"):
        shape = (*x.shape[:-1], 1)
        check_array(backend, f"cache.{name}", getattr(cache, name), shape, "float32")
    check_array(backend, "cache.gamma", gamma, x.shape[-1:], x.dtype)
    check_array(backend, "dy", dy, x.shape, x.dtype)
    D, stored = x.shape[-1], instances.STORED[x.dtype.name].cpp
    rows = x.size // D
    dx = backend.empty(x.shape, x.dtype)
    inputs = {"x": x, "dy": dy, "gamma": gamma, "mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    width = load_width(backend, width, D, x, dy, gamma, dx)
    chosen = instances.configuration(kernel, D, width, backend.shared_limit(), stored)
    if rows == 0:
        return dx, *backend.xp.zeros((2, D), x.dtype)
    if kernel == "backward_atomic":
        dgamma, dbeta = backend.xp.zeros((2, D), x.dtype)
        outputs = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
        backend.run(chosen, rows, inputs, outputs, {"D": np.int32(D)})
        return dx, dgamma, dbeta

    blocks = instances.blocks_for(rows, backend.resident_blocks(chosen), chosen.rows)
    partial = backend.empty((blocks, 2, D), np.float32)
    gradients = backend.empty((2, D), x.dtype)
    outputs = {"dx": dx, "partial": partial}
    numbers = {"rows": np.int64(rows), "D": np.int32(D)}
    if kernel == "backward_single":
        if partial.nbytes > SINGLE_LIMIT:
            raise ValueError(
                f"backward_single is for at most {SINGLE_LIMIT} bytes of partial sums, which one "
                f"block adds up, got {partial.nbytes}; backward takes any"
            )
        outputs |= {"gradients": gradients, "counter": backend.xp.zeros(1, np.int32)}
    backend.run(chosen, blocks, inputs, outputs, numbers)
    if kernel != "backward_single":
        inputs, outputs = {"partial": partial}, {"gradients": gradients}
        numbers = {"rows": np.int32(blocks), "columns": np.int32(2 * D)}
        second = instances.column_sums(blocks, stored)
        backend.run(second, -(-2 * D // instances.COLUMNS), inputs, outputs, numbers)
    return dx, *gradients
