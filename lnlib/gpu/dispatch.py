"""Which instantiation of a kernel suits a row: its threads, registers and shared memory."""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np

# Tiles: up to this length a row has so many threads, each of which holds so many of its entries.
FORWARD_TILES = {
    128: (32, 4), 512: (32, 16), 768: (32, 24), 1024: (64, 16),
    2048: (128, 16), 4096: (128, 32), 8192: (256, 32), 16384: (512, 32),
}  # fmt: skip
NARROW_FORWARD_TILES = {128: (32, 4), 1024: (64, 16), 4096: (256, 16), 16384: (1024, 16)}
# Of the backward pass, whose sums are in shared memory or in registers.
SHORT_TILES = {128: (32, 4), 512: (32, 16)}  # in shared memory
SHARED_TILES = SHORT_TILES | {
    768: (32, 24), 1024: (32, 32), 2048: (128, 16), 4096: (128, 32), 8192: (256, 32),
    16384: (512, 32),
}  # fmt: skip
REGISTER_TILES = {1024: (128, 8), 2048: (256, 8), 4096: (512, 8), 8192: (1024, 8)}
NARROW_BACKWARD_TILES = SHORT_TILES | REGISTER_TILES
REGISTER_TILES |= {768: (64, 12)}
# Shared memory of a block that holds the sums of the longest rows: what A100 and H100 have.
LARGE_SHARED = 128 * 1024
WARPS = {"forward": 4, "backward": 8}  # of a block, if each of them has a row of its own
LOOPING_THREADS = 256
MEANS_TILE = 1024, 16
COLUMNS = 8  # of a block of the second stage
ROWS_PER_GROUP = 20  # longer float32 sums could lose more than the promised 4e-7

# Of a thread of the backward pass, by the entries it holds: enough for all loads of a row to be in
# flight. It gets MOST_REGISTERS for a number of entries that is not here.
REGISTERS = {4: 64, 8: 64, 12: 80, 16: 96}
MOST_REGISTERS = 128
REGISTERS_OF_A_MULTIPROCESSOR = 65536
SLOT_BYTES = 1024  # of shared memory, at most: the slots of block_sum
DRIVER_BYTES = 1024  # of shared memory, which the driver takes for each block since sm_80

FORWARD = "forward", "forward_looping"
BACKWARD = "backward", "backward_atomic", "backward_single", "backward_looping"


class Stored(NamedTuple):
    """A type of numbers in memory.

    Attributes
    ----------
    cpp : str
        Its name in CUDA C++.
    exponent_bits, mantissa_bits : int
    """

    cpp: str
    exponent_bits: int
    mantissa_bits: int


# By the name of the dtype. NumPy has no bfloat16: its bits come as uint16.
STORED = {
    "float32": Stored("float", 8, 23),
    "float16": Stored("__half", 5, 10),
    "uint16": Stored("__nv_bfloat16", 8, 7),
    "bfloat16": Stored("__nv_bfloat16", 8, 7),
}


class Instantiation(NamedTuple):
    """An instantiation of a kernel template, and how it is launched.

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
    """

    expression: str
    threads: int
    shared_bytes: int = 0
    rows: int = 1

    @property
    def kernel(self):
        """The name of the template."""
        return self.expression.partition("<")[0]


def choose(kernel, D, width, shared_limit=np.inf, types=()):
    """Choose the instantiation of a kernel for rows of D entries, loaded width at a time.

    Parameters
    ----------
    kernel : str
        One of FORWARD or BACKWARD. "forward" becomes its looping variant where a row is too long
        for the registers. "backward" and "backward_looping" become "backward_columns" where the
        sums of a row do not fit on the chip; "row_means" is launched before it.
    D : int
    width : int
        1, or as many entries as make 16 bytes.
    shared_limit : int
        Bytes of shared memory that a block can have.
    types : tuple of str
        From `types_of`.

    Returns
    -------
    Instantiation

    Raises
    ------
    ValueError
        If the kernel was not written for rows as long as that, or for those types.
    """
    if kernel in ("backward_atomic", "backward_single") and types:
        raise ValueError(f"{kernel} is for float32; backward takes half types too")
    if kernel == "row_means":
        threads, entries = MEANS_TILE
        return _instantiation(kernel, threads, (entries // width, width), types)
    tile = None if kernel.endswith("looping") else _tile(kernel, D, width, shared_limit)
    if tile and kernel in ("forward", "backward_atomic"):
        threads, entries = tile
        rows = WARPS["forward"] if threads == 32 and kernel == "forward" else 1
        words = entries // width, width, *([rows] if rows > 1 or types else [])
        return _instantiation(kernel, threads, words, types, rows=rows)
    if tile:
        return _with_sums(kernel, *tile, width, shared_limit, types)
    if kernel not in ("forward", "forward_looping", "backward", "backward_looping"):
        raise ValueError(f"{kernel} cannot hold rows of {D} entries; backward takes rows of any D")
    looping = "forward_looping" if kernel.startswith("forward") else "backward_columns"
    return _instantiation(looping, LOOPING_THREADS, (width,), types)


def _tile(kernel, D, width, shared_limit):
    """Return the threads of a row and the entries of each, or None if it does not fit."""
    if kernel in ("forward", "backward_atomic"):
        tiles = FORWARD_TILES if width > 1 else NARROW_FORWARD_TILES
    elif width == 1:
        tiles = NARROW_BACKWARD_TILES
    else:
        tiles = SHARED_TILES if shared_limit >= LARGE_SHARED else SHORT_TILES | REGISTER_TILES
    fitting = [(most, tile) for most, tile in tiles.items() if D <= most and tile[1] % width == 0]
    return min(fitting)[1] if fitting else None


def _with_sums(kernel, threads, entries, width, shared_limit, types):
    """Return the instantiation of a backward pass in which a thread keeps sums of its entries."""
    rows = WARPS["backward"] if threads == 32 else 1
    in_registers = (threads, entries) in REGISTER_TILES.values()
    block = rows * threads
    sums = 0 if in_registers else 8 * block * entries  # bytes: two float32 sums per entry
    slots = 0 if threads == 32 and kernel == "backward" else SLOT_BYTES
    registers = block * REGISTERS.get(entries, MOST_REGISTERS)
    by_registers = REGISTERS_OF_A_MULTIPROCESSOR // registers
    by_shared = (shared_limit + DRIVER_BYTES) // (sums + slots + DRIVER_BYTES)
    words = [entries // width, width, rows, max(1, int(min(by_registers, by_shared)))]
    if in_registers or types:
        words.append("IN_REGISTERS" if in_registers else "IN_SHARED")
    return _instantiation(kernel, threads, words, types, sums, rows)


def column_sums(rows, types=()):
    """Return the instantiation of the second stage for so many rows of partial sums."""
    threads = 256 if rows > 64 else 32
    return _instantiation("column_sums", threads, (COLUMNS,), types[-1:])


def _instantiation(kernel, threads, words, types, shared_bytes=0, rows=1):
    """Return an Instantiation; threads of a row come first in its name, and types come last."""
    expression = f"{kernel}<{', '.join(map(str, (threads, *words, *types)))}>"
    return Instantiation(expression, threads * rows, shared_bytes, rows)


def types_of(x, gamma):
    """Return what stands in a kernel's name for the dtypes of x and gamma; float32 is understood.

    >>> types_of("float16", "float16"), types_of("uint16", "float32"), types_of("float32", "float32")
    (('__half',), ('__nv_bfloat16', 'float'), ())
    """
    names = [STORED[np.dtype(dtype).name].cpp for dtype in (x, gamma)]
    if names == ["float", "float"]:
        return ()
    return tuple(dict.fromkeys(names))


def blocks_for(rows, resident, rows_at_a_time=1):
    """Return how many blocks share the rows, so that all have equally many, and not too many."""
    at_a_time = resident * rows_at_a_time
    waves = max(1, -(-rows // (at_a_time * ROWS_PER_GROUP)))
    rows_per_group = -(-rows // (at_a_time * waves))
    return -(-rows // (rows_per_group * rows_at_a_time))


def column_blocks(rows, D, width, resident):
    """Return how many blocks of "backward_columns" there are, and how many share the rows."""
    across = -(-D // (width * LOOPING_THREADS))
    down = max(1, min(rows, resident // across))
    return across * down, down


def every(shared_limit, x="float32", gamma=None):
    """Return the C++ names of all instantiations that can be launched for these dtypes."""
    types, names = types_of(x, gamma or x), {}
    widths = 16 // np.dtype(x).itemsize, 1
    lengths = sorted({*FORWARD_TILES, *SHARED_TILES, *REGISTER_TILES, 2**20})
    kernels = *FORWARD, *BACKWARD, "row_means"
    for kernel, D, width in itertools.product(kernels, lengths, widths):
        with contextlib.suppress(ValueError):  # not for rows as long as that, or for these types
            names[choose(kernel, D, width, shared_limit, types).expression] = None
    return [*names, *(column_sums(rows, types).expression for rows in (1, 100))]
