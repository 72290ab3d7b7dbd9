"""The two passes as a sequence of kernel launches, on whatever machine runs the kernels.

The machine, a GPU through CuPy or the emulator, is an object with these attributes:

array_type
    The class of its arrays.
empty, zeros
    Make an array of a shape and a dtype.
address
    Of an array: where it starts in memory.
check_place
    Of a name and an array: raises ValueError if the machine cannot reach it.
run
    run(kernel, blocks, threads, shared_bytes, inputs, outputs, numbers); the last three are dicts,
    whose values together are the kernel's arguments.
blocks
    Of kernel, threads and shared_bytes: how many blocks of it can be resident at a time.
shared_limit
    shared_limit() is how many bytes of shared memory a block can have.
"""

import contextlib
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checks import check_eps, check_rows

# The longest row: threads that hold it, and how many of its entries each of them holds. If they are
# not loaded 16 bytes at a time (width 1), addresses need more registers, and entries get fewer.
FORWARD_TEAMS = {
    128: (32, 4), 512: (32, 16), 768: (32, 24), 1024: (64, 16),
    2048: (128, 16), 4096: (128, 32), 8192: (256, 32), 16384: (512, 32),
}  # fmt: skip
BACKWARD_TEAMS = FORWARD_TEAMS | {1024: (32, 32)}
NARROW_FORWARD_TEAMS = {128: (32, 4), 1024: (64, 16), 4096: (256, 16), 16384: (1024, 16)}
NARROW_BACKWARD_TEAMS = {128: (32, 4), 1024: (64, 16), 4096: (256, 16), 8192: (512, 16)}
WARPS = 8  # in the backward pass, if a warp has a row of its own: how many of them in a block
LOOPING_THREADS = 256
COLUMNS = 8  # of a block of the second stage
ROWS_PER_TEAM = 20  # longer float32 sums could lose more than the promised 4e-7
SINGLE_LIMIT = 512 * 1024  # bytes of partial sums that one block can add up without delay
FORWARD = "forward", "forward_looping"
BACKWARD = "backward", "backward_atomic", "backward_single", "backward_looping"
# What is stored, by the name of the dtype. NumPy has no bfloat16: its bits come as uint16.
STORED = {
    "float32": "float", "float16": "__half", "uint16": "__nv_bfloat16", "bfloat16": "__nv_bfloat16",
}  # fmt: skip


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


class Configuration(NamedTuple):
    """An instance of a kernel and how it is launched.

    Attributes
    ----------
    expression : str
        Its C++ name.
    threads : int
        In a block.
    shared_bytes : int
        Of dynamic shared memory per block.
    rows : int
        That a block works on at a time.
    waves : int
        The backward pass starts so many times the blocks that can be resident at a time.
    columns : int
        Of a block of the second stage.
    """

    expression: str
    threads: int
    shared_bytes: int = 0
    rows: int = 1
    waves: int = 1
    columns: int = COLUMNS


def read_source():
    """Return the text of layernorm.cu."""
    return (Path(__file__).parent / "layernorm.cu").read_text(encoding="utf-8")


def options(kernels):
    """Return the compiler's options for these instances."""
    half_types = any("__" in kernel for kernel in kernels)
    return ("-std=c++17", *["-DHALF_TYPES"] * half_types)


def instances(dtype=np.float32, shared_limit=227 * 1024):
    """Return the C++ names of all instances of kernels that can be launched for this dtype."""
    stored, widths = STORED[np.dtype(dtype).name], (16 // np.dtype(dtype).itemsize, 1)
    names = {}
    for kernel, D, width in itertools.product(FORWARD + BACKWARD, [*FORWARD_TEAMS, 2**20], widths):
        with contextlib.suppress(ValueError):  # not for rows as long as that, or for this type
            names[configuration(kernel, D, width, shared_limit, stored).expression] = None
    return [*names, *(column_sums(rows, COLUMNS, stored)[0] for rows in (1, 100))]


def configuration(kernel, D, width, shared_limit=np.inf, stored="float"):
    """Choose the instance of a kernel for rows of D entries, loaded width at a time.

    Parameters
    ----------
    kernel : str
        One of FORWARD or BACKWARD. "forward" and "backward" become their looping variants where a
        row is too long for the registers, or its sums for the shared memory.
    D : int
    width : {1, 4, 8}
    shared_limit : int
        Bytes of shared memory that a block can have.
    stored : str
        The C++ type in memory.

    Returns
    -------
    Configuration

    Raises
    ------
    ValueError
        If the kernel was not written for rows as long as that, or for that type.
    """
    if kernel in ("backward_atomic", "backward_single") and stored != "float":
        raise ValueError(f"{kernel} is for float32; backward takes half types too")
    if width == 1:
        teams = NARROW_FORWARD_TEAMS if kernel == "forward" else NARROW_BACKWARD_TEAMS
    else:
        teams = FORWARD_TEAMS if kernel in ("forward", "backward_atomic") else BACKWARD_TEAMS
    fitting = [team for most, team in teams.items() if D <= most and team[1] % width == 0]
    chosen = instance(kernel, *fitting[0], width, shared_limit, stored) if fitting else None
    if kernel in ("forward", "backward") and chosen is None:
        kernel += "_looping"
    if kernel.endswith("looping"):
        name = f"{kernel}<{LOOPING_THREADS}, {width}{_type(stored)}>"
        return Configuration(name, LOOPING_THREADS)
    if chosen is None:
        raise ValueError(f"{kernel} cannot hold rows of {D} entries; backward takes rows of any D")
    return chosen


def instance(kernel, threads, entries, width, shared_limit=np.inf, stored="float", registers=None):
    """Return the Configuration in which threads hold a row, or None if its sums do not fit.

    registers is what a thread of the backward pass gets if shared memory is not scarcer; by default
    enough for all loads of a row to be in flight.
    """
    template = f"{threads}, {entries // width}, {width}"
    if kernel in ("forward", "backward_atomic"):
        return Configuration(f"{kernel}<{template}{_type(stored)}>", threads)
    rows = WARPS if threads == 32 else 1
    block = rows * threads
    shared = 8 * block * entries  # two float32 sums per entry
    static = 1024 if rows == 1 or kernel == "backward_single" else 0  # at most, for block_sum
    if shared + static > shared_limit:
        return None
    if registers is None:
        registers = 64 if entries == 4 else 96 if entries == 16 and width > 1 else 128
    by_shared = (shared_limit + 1024) // (shared + 1024)  # the driver takes some of each block's
    blocks = max(1, int(min(65536 // (block * registers), by_shared)))
    name = f"{kernel}<{template}, {rows}, {blocks}{_type(stored)}>"
    return Configuration(name, block, shared, rows)


def column_sums(rows, columns, stored):
    """Return the C++ name of the second stage for so many rows of partial sums, and its threads."""
    threads = 256 if rows > 64 else 32
    return f"column_sums<{threads}, {columns}{_type(stored)}>", threads


def _type(stored):
    return "" if stored == "float" else f", {stored}"


def blocks_for(rows, resident, rows_at_a_time=1, waves=1):
    """Return how many blocks share the rows, so that all have equally many, and not too many."""
    at_a_time = resident * rows_at_a_time
    waves = max(waves, -(-rows // (at_a_time * ROWS_PER_TEAM)))
    rows_per_team = -(-rows // (at_a_time * waves))
    return -(-rows // (rows_per_team * rows_at_a_time))


def forward(machine, x, gamma, beta, eps, kernel="forward", width=None, chosen=None):
    """Launch the forward pass; see `lnlib.gpu.layer_norm_forward` for the arguments.

    chosen is the Configuration to use instead of the usual one.
    """
    _check_kernel(kernel, FORWARD)
    _check(machine, "x", x)
    check_rows(x)
    D = x.shape[-1]
    rows = x.size // D
    if D >= 2**30 or rows >= 2**31:
        raise ValueError(f"x must have D < 2**30 and fewer than 2**31 rows, got shape {x.shape}")
    _check(machine, "gamma", gamma, (D,), x.dtype)
    _check(machine, "beta", beta, (D,), x.dtype)
    eps = check_eps(eps)

    y = machine.empty(x.shape, x.dtype)
    mean, mean_lo, rstd = (machine.empty((*x.shape[:-1], 1), np.float32) for _ in range(3))
    inputs = {"x": x, "gamma": gamma, "beta": beta}
    outputs = {"y": y, "mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    numbers = {"eps": np.float32(eps), "D": np.int32(D)}
    width = _width(machine, width, D, *inputs.values(), y)
    chosen = chosen or configuration(kernel, D, width, stored=STORED[x.dtype.name])
    if rows:
        machine.run(chosen.expression, rows, chosen.threads, 0, inputs, outputs, numbers)
    return y, Cache(x, mean, mean_lo, rstd, gamma)


def backward(machine, dy, cache, kernel="backward", width=None, chosen=None):
    """Launch the backward pass; see `lnlib.gpu.layer_norm_backward` for the arguments.

    chosen is the Configuration to use instead of the usual one.
    """
    _check_kernel(kernel, BACKWARD)
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a lnlib.gpu.Cache, got {type(cache).__name__}")
    x, mean, mean_lo, rstd, gamma = cache
    _check(machine, "cache.x", x)
    for name in ("mean", "mean_lo", "rstd"):
        _check(machine, f"cache.{name}", getattr(cache, name), (*x.shape[:-1], 1), "float32")
    _check(machine, "cache.gamma", gamma, x.shape[-1:], x.dtype)
    _check(machine, "dy", dy, x.shape, x.dtype)
    D = x.shape[-1]
    rows = x.size // D

    dx = machine.empty(x.shape, x.dtype)
    inputs = {"x": x, "dy": dy, "gamma": gamma, "mean": mean, "mean_lo": mean_lo, "rstd": rstd}
    width = _width(machine, width, D, x, dy, gamma, dx)
    stored = STORED[x.dtype.name]
    chosen = chosen or configuration(kernel, D, width, machine.shared_limit(), stored)
    name, threads, shared_bytes = chosen[:3]
    if rows == 0:
        return dx, *machine.zeros((2, D), x.dtype)
    if kernel == "backward_atomic":
        dgamma, dbeta = machine.zeros((2, D), x.dtype)
        outputs = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
        machine.run(name, rows, threads, 0, inputs, outputs, {"D": np.int32(D)})
        return dx, dgamma, dbeta

    resident = machine.blocks(name, threads, shared_bytes)
    blocks = blocks_for(rows, resident, chosen.rows, chosen.waves)
    partial = machine.empty((blocks, 2, D), np.float32)
    gradients = machine.empty((2, D), x.dtype)
    outputs = {"dx": dx, "partial": partial}
    numbers = {"rows": np.int64(rows), "D": np.int32(D)}
    if kernel == "backward_single":
        if partial.nbytes > SINGLE_LIMIT:
            raise ValueError(
                f"backward_single is for at most {SINGLE_LIMIT} bytes of partial sums, which one "
                f"block adds up, got {partial.nbytes}; backward takes any"
            )
        outputs |= {"gradients": gradients, "counter": machine.zeros(1, np.int32)}
    machine.run(name, blocks, threads, shared_bytes, inputs, outputs, numbers)
    if kernel != "backward_single":
        second, threads = column_sums(blocks, chosen.columns, stored)
        inputs, outputs = {"partial": partial}, {"gradients": gradients}
        numbers = {"rows": np.int32(blocks), "columns": np.int32(2 * D)}
        machine.run(second, -(-2 * D // chosen.columns), threads, 0, inputs, outputs, numbers)
    return dx, *gradients


def _width(machine, width, D, *arrays):
    """Return how many entries one load can take: 16 bytes if rows start at multiples of that."""
    most = 16 // arrays[0].dtype.itemsize
    best = most if D % most == 0 and all(machine.address(a) % 16 == 0 for a in arrays) else 1
    if width is True or width not in (None, 1, best):
        raise ValueError(
            f"width must be 1, or {most} if rows start at multiples of 16 bytes, got {width}"
        )
    return width or best


def _check_kernel(kernel, known):
    if kernel not in known:
        raise ValueError(f"kernel must be one of {', '.join(known)}, got {kernel!r}")


def _check(machine, name, array, shape=None, dtype=None):
    """Raise TypeError or ValueError if this is no array for the kernels, or another's shape."""
    kind = machine.array_type
    if not isinstance(array, kind) or np.ma.isMaskedArray(array):
        full = f"{kind.__module__}.{kind.__name__}"
        raise TypeError(f"{name} must be a {full}, got {type(array).__name__}")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {array.dtype}")
    if array.dtype.name not in STORED or not array.dtype.isnative:
        stored = "float32, float16, or uint16 with the bits of bfloat16"
        raise TypeError(f"{name} must have dtype {stored}, got {array.dtype}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, to fit x, got shape {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous, got a view; ascontiguousarray copies it")
    machine.check_place(name, array)
