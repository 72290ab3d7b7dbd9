"""The two passes as a sequence of kernel launches, on whatever machine runs the kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_eps, check_rows

# Rows of up to D floats: threads in a block, floats of the row that a thread holds, and how many
# blocks of the backward pass work on one multiprocessor at a time.
CONFIGURATIONS = {
    128: (32, 4, 32),
    1024: (64, 16, 8),
    4096: (256, 16, 2),
    8192: (512, 16, 2),
    16384: (1024, 16, 1),
}
ROWS_PER_BLOCK = 20  # longer float32 sums could lose more than the promised 4e-7
COLUMN_THREADS = 1024
FORWARD = "forward", "forward_looping"
BACKWARD = "backward", "backward_atomic", "backward_single", "backward_looping"


class Cache(NamedTuple):
    """What the backward pass needs: the input itself and two numbers per row.

    x and gamma are the caller's arrays, not copies: do not change them before the backward pass.

    Attributes
    ----------
    x : array, shape (..., D), float32
    mean : array, shape (..., 1), float64
        In float32 it would lose the digits that matter when x has a large offset.
    rstd : array, shape (..., 1), float32
    gamma : array, shape (D,), float32
    """

    x: Any
    mean: Any
    rstd: Any
    gamma: Any


class Machine(NamedTuple):
    """Where kernels run: a GPU through CuPy, or the emulator.

    Attributes
    ----------
    array_type : type
    empty, zeros : callable
        Of shape and dtype.
    address : callable
        Of an array: where it starts in memory.
    check_place : callable
        Of a name and an array: raises ValueError if the machine cannot reach it.
    run : callable
        run(kernel, blocks, threads, shared_bytes, inputs, outputs, numbers); the last three are
        dicts, whose values together are the kernel's arguments.
    blocks : callable
        Of the number of blocks per multiprocessor: how many blocks the backward pass starts.
    shared_limit : callable
        () -> bytes of shared memory that a block can have.
    """

    array_type: type
    empty: Callable
    zeros: Callable
    address: Callable
    check_place: Callable
    run: Callable
    blocks: Callable
    shared_limit: Callable


class Configuration(NamedTuple):
    """An instance of a kernel: its C++ name, threads in a block, bytes of dynamic shared memory."""

    expression: str
    threads: int
    shared_bytes: int
    blocks_per_processor: int


def read_source():
    """Return the text of layernorm.cu."""
    return (Path(__file__).parent / "layernorm.cu").read_text(encoding="utf-8")


def instances():
    """Return the C++ names of all instances of kernels that `forward` and `backward` can launch."""
    held = [k for k in FORWARD + BACKWARD if not k.endswith("looping")]
    pairs = [(k, D) for k in held for D in CONFIGURATIONS if (k, D) != ("backward_atomic", 16384)]
    pairs += [(k, D) for k in ("forward_looping", "backward_looping") for D in (4096, 2**20)]
    names = [configuration(k, D, width).expression for k, D in pairs for width in (4, 1)]
    return [*names, f"column_sums<{COLUMN_THREADS}>"]


def configuration(kernel, D, width, shared_limit=np.inf):
    """Choose the instance of a kernel for rows of D floats, loaded width floats at a time.

    Parameters
    ----------
    kernel : str
        One of FORWARD or BACKWARD. "forward" and "backward" become their looping variants where a
        row is too long for the registers, or its sums for the shared memory.
    D : int
    width : {1, 4}
    shared_limit : int
        Bytes of shared memory that a block can have.

    Returns
    -------
    Configuration

    Raises
    ------
    ValueError
        If the kernel was not written for rows as long as that.
    """
    fitting = [c for limit, c in CONFIGURATIONS.items() if D <= limit]
    threads, floats, blocks = fitting[0] if fitting else (0, 0, 0)
    shared = 8 * threads * floats if kernel in ("backward", "backward_single") else 0
    fits = fitting and shared + 1024 <= shared_limit  # block_sum has a little of its own
    if kernel == "backward_atomic" and D > 8192:  # would need more registers than there are
        fits = False
    if kernel in ("forward", "backward") and not fits:
        kernel += "_looping"
    if kernel.endswith("looping"):
        threads = 128 if D <= 4096 else 1024
        return Configuration(f"{kernel}<{threads}, {width}>", threads, 0, 2048 // threads)
    if not fits:
        raise ValueError(f"{kernel} cannot hold rows of {D} entries; backward takes rows of any D")
    template = f"{kernel}<{threads}, {floats // width}, {width}>"
    return Configuration(template, threads, shared, blocks)


def forward(machine, x, gamma, beta, eps, kernel="forward", width=None):
    """Launch the forward pass; see `lnlib.gpu.layer_norm_forward` for the arguments."""
    _check_kernel(kernel, FORWARD)
    _check(machine, "x", x)
    check_rows(x)
    D = x.shape[-1]
    rows = x.size // D
    if D >= 2**30 or rows >= 2**31:
        raise ValueError(f"x must have D < 2**30 and fewer than 2**31 rows, got shape {x.shape}")
    _check(machine, "gamma", gamma, shape=(D,))
    _check(machine, "beta", beta, shape=(D,))
    eps = check_eps(eps)

    y = machine.empty(x.shape, np.float32)
    mean = machine.empty((*x.shape[:-1], 1), np.float64)
    rstd = machine.empty((*x.shape[:-1], 1), np.float32)
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    width = _width(machine, width, D, *inputs.values(), y)
    chosen = configuration(kernel, D, width)
    numbers = {"eps": np.float32(eps), "D": np.int32(D)}
    if rows:
        outputs = {"y": y, "mean": mean, "rstd": rstd}
        machine.run(chosen.expression, rows, chosen.threads, 0, inputs, outputs, numbers)
    return y, Cache(x, mean, rstd, gamma)


def backward(machine, dy, cache, kernel="backward", width=None):
    """Launch the backward pass; see `lnlib.gpu.layer_norm_backward` for the arguments."""
    _check_kernel(kernel, BACKWARD)
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a lnlib.gpu.Cache, got {type(cache).__name__}")
    x, mean, rstd, gamma = cache
    _check(machine, "cache.x", x)
    _check(machine, "cache.mean", mean, (*x.shape[:-1], 1), np.float64)
    _check(machine, "cache.rstd", rstd, (*x.shape[:-1], 1))
    _check(machine, "cache.gamma", gamma, x.shape[-1:])
    _check(machine, "dy", dy, x.shape)
    D = x.shape[-1]
    rows = x.size // D

    dx = machine.empty(x.shape, np.float32)
    inputs = {"x": x, "dy": dy, "gamma": gamma, "mean": mean, "rstd": rstd}
    width = _width(machine, width, D, x, dy, gamma, dx)
    chosen = configuration(kernel, D, width, machine.shared_limit())
    threads = chosen.threads
    if rows == 0 or kernel == "backward_atomic":
        dgamma, dbeta = gradients = machine.zeros((2, D), np.float32)
        if rows:
            outputs = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
            machine.run(chosen.expression, rows, threads, 0, inputs, outputs, {"D": np.int32(D)})
        return dx, *gradients

    resident = machine.blocks(chosen.blocks_per_processor)
    blocks = min(rows, max(resident, -(-rows // ROWS_PER_BLOCK)))
    partial = machine.empty((blocks, 2, D), np.float32)
    gradients = machine.empty((2, D), np.float32)
    outputs = {"dx": dx, "partial": partial}
    if kernel == "backward_single":
        outputs |= {"gradients": gradients, "counter": machine.zeros(1, np.int32)}
    numbers = {"rows": np.int64(rows), "D": np.int32(D)}
    machine.run(chosen.expression, blocks, threads, chosen.shared_bytes, inputs, outputs, numbers)
    if kernel != "backward_single":
        machine.run(
            f"column_sums<{COLUMN_THREADS}>", -(-2 * D // 32), COLUMN_THREADS, 0,
            {"partial": partial}, {"gradients": gradients},
            {"rows": np.int32(blocks), "columns": np.int32(2 * D)},
        )  # fmt: skip
    return dx, *gradients


def _width(machine, width, D, *arrays):
    """Return how many floats one load can take: 4 if every row starts at a multiple of 16 bytes."""
    aligned = D % 4 == 0 and all(machine.address(a) % 16 == 0 for a in arrays)
    if width is None:
        return 4 if aligned else 1
    if width not in (1, 4) or (width == 4 and not aligned):
        raise ValueError(
            f"width must be 1, or 4 if rows start at multiples of 16 bytes, got {width}"
        )
    return width


def _check_kernel(kernel, known):
    if kernel not in known:
        raise ValueError(f"kernel must be one of {', '.join(known)}, got {kernel!r}")


def _check(machine, name, array, shape=None, dtype=np.float32):
    kind = machine.array_type
    if not isinstance(array, kind):
        full = f"{kind.__module__}.{kind.__name__}"
        raise TypeError(f"{name} must be a {full}, got {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must have dtype {np.dtype(dtype)}, got {array.dtype}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, to fit x, got shape {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be C-contiguous, got a view with strides {array.strides}; "
            "ascontiguousarray makes a copy that is"
        )
    machine.check_place(name, array)
