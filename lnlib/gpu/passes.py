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
    rows = x.size // D
    y = backend.empty(x.shape, x.dtype)
    mean, mean_lo, rstd = (backend.empty((*x.shape[:-1], 1), np.float32) for _ in range(3))
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    outputs = {"y": y, "mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    width = load_width(backend, width, D, *inputs.values(), y)
    types = dispatch.types_of(x.dtype, gamma.dtype)
    chosen = dispatch.choose(kernel, D, width, types=types)
    numbers = {"eps": np.float32(eps), "one_over_D": np.float32(1 / D)}
    if chosen.kernel == "forward":
        numbers["rows"] = np.int64(rows)
    if rows:
        blocks = -(-rows // chosen.rows)
        backend.run(chosen, blocks, inputs, outputs, numbers | {"D": np.int32(D)})
    return y, Cache(x, mean, mean_lo, rstd, gamma)


def backward(backend, dy, cache, kernel="backward", width=None):
    """Launch the backward pass; see `lnlib.gpu.layer_norm_backward` for the arguments."""
    check_kernel(kernel, dispatch.BACKWARD)
    _check_cache(backend, cache)
    x, gamma, D = cache.x, cache.gamma, cache.x.shape[-1]
    check_array(backend, "dy", dy, x.shape, x.dtype)
    dx = backend.empty(x.shape, x.dtype)
    width = load_width(backend, width, D, x, dy, gamma, dx)
    types = dispatch.types_of(x.dtype, gamma.dtype)
    chosen = dispatch.choose(kernel, D, width, backend.shared_limit(), types)
    if x.size == 0:
        return dx, *backend.xp.zeros((2, D), gamma.dtype)
    inputs = {"x": x, "dy": dy, "gamma": gamma}
    inputs |= {name: getattr(cache, name) for name in ("mean", "mean_lo", "rstd")}
    how = {
        "backward_atomic": _add_atomically,
        "backward_single": _in_one_launch,
        "backward_columns": _reading_twice,
    }.get(chosen.kernel, _in_two_stages)
    return dx, *how(backend, chosen, inputs, dx, width, types)


def _check_cache(backend, cache):
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a lnlib.gpu.Cache, got {type(cache).__name__}")
    check_array(backend, "cache.x", cache.x)
    for name in ("mean", "mean_lo", "rstd"):
        shape = (*cache.x.shape[:-1], 1)
        check_array(backend, f"cache.{name}", getattr(cache, name), shape, "float32")
    check_parameter(backend, "cache.gamma", cache.gamma, cache.x)


# Each of these writes dx, and returns dgamma and dbeta.


def _add_atomically(backend, chosen, inputs, dx, width, types):
    rows, D = _shape(dx)
    dgamma, dbeta = backend.xp.zeros((2, D), dx.dtype)
    outputs = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    numbers = {"one_over_D": np.float32(1 / D), "D": np.int32(D)}
    backend.run(chosen, rows, inputs, outputs, numbers)
    return dgamma, dbeta


def _in_two_stages(backend, chosen, inputs, dx, width, types):
    partial, numbers = _prepare_partial(backend, chosen, dx)
    backend.run(chosen, len(partial), inputs, {"dx": dx, "partial": partial}, numbers)
    return _second_stage(backend, partial, inputs["gamma"].dtype, types)


def _in_one_launch(backend, chosen, inputs, dx, width, types):
    partial, numbers = _prepare_partial(backend, chosen, dx)
    if partial.nbytes > SINGLE_LIMIT:
        raise ValueError(
            f"backward_single is for at most {SINGLE_LIMIT} bytes of partial sums, which one "
            f"block adds up, got {partial.nbytes}; backward takes any"
        )
    gradients = backend.empty(partial.shape[1:], np.float32)
    outputs = {"dx": dx, "partial": partial, "gradients": gradients}
    outputs["counter"] = backend.xp.zeros(1, np.int32)
    backend.run(chosen, len(partial), inputs, outputs, numbers)
    return gradients


def _reading_twice(backend, chosen, inputs, dx, width, types):
    rows, D = _shape(dx)
    means = backend.empty((rows, 3), np.float32)
    numbers = {"one_over_D": np.float32(1 / D), "D": np.int32(D)}
    first = dispatch.choose("row_means", D, width, types=types)
    backend.run(first, rows, inputs, {"means": means}, numbers)
    resident = backend.resident_blocks(chosen)
    blocks, down = dispatch.column_blocks(rows, D, width, resident)
    partial = backend.empty((down, 2, D), np.float32)
    numbers = {"rows": np.int64(rows), "D": np.int32(D)}
    inputs = inputs | {"means": means}
    backend.run(chosen, blocks, inputs, {"dx": dx, "partial": partial}, numbers)
    return _second_stage(backend, partial, inputs["gamma"].dtype, types)


def _shape(dx):
    """Return the number of rows and their length."""
    return dx.size // dx.shape[-1], dx.shape[-1]


def _prepare_partial(backend, chosen, dx):
    """Return an array for the partial sums of all blocks, and the numbers that the kernel takes."""
    rows, D = _shape(dx)
    blocks = dispatch.blocks_for(rows, backend.resident_blocks(chosen), chosen.rows)
    numbers = {"one_over_D": np.float32(1 / D), "rows": np.int64(rows), "D": np.int32(D)}
    return backend.empty((blocks, 2, D), np.float32), numbers


def _second_stage(backend, partial, dtype, types):
    """Add up partial sums; return dgamma and dbeta."""
    blocks, _, D = partial.shape
    gradients = backend.empty((2, D), dtype)
    numbers = {"rows": np.int32(blocks), "columns": np.int32(2 * D)}
    second = dispatch.column_sums(blocks, types)
    grid = -(-2 * D // dispatch.COLUMNS)
    backend.run(second, grid, {"partial": partial}, {"gradients": gradients}, numbers)
    return gradients
