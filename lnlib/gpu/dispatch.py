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
# Of the backward pass, also how many blocks a multiprocessor shall hold: that decides how many
# registers a thread gets. Where shared memory is large, the sums of dgamma and dbeta are kept there
# (A100, H100); otherwise those of long rows are kept in registers (T4, laptops).
LARGE = 128 * 1024  # bytes of shared memory for a block: enough for the sums of 16384 columns
SHORT_TILES = {128: (32, 4, 4), 512: (32, 16, 2)}
SHARED_TILES = SHORT_TILES | {
    768: (32, 24, 2), 1024: (32, 32, 2), 2048: (128, 16, 5),
    4096: (128, 32, 4), 8192: (256, 32, 2), 16384: (512, 32, 1),
}  # fmt: skip
NARROW_TILES = SHORT_TILES | {1024: (128, 8, 8), 2048: (256, 8, 4), 4096: (1024, 4, 1)}
REGISTER_TILES = {
    768: (64, 12, 10), 1024: (128, 8, 8), 2048: (256, 8, 4), 4096: (512, 8, 2), 8192: (1024, 8, 1),
}  # fmt: skip
WARPS = {"forward": 4, "backward": 8, "backward_single": 8}  # of a block, each with its own row
MEANS_THREADS, LOOPING_THREADS = 1024, 256
COLUMNS = 8  # of a block of the second stage
ROWS_PER_GROUP = 20  # longer float32 sums could lose more than the promised 4e-7

FORWARD = "forward", "forward_looping"
BACKWARD = "backward", "backward_atomic", "backward_single", "backward_looping"
FLOAT32_ONLY = "backward_atomic", "backward_single"
# Numbers in memory, by the name of the dtype. NumPy has no bfloat16: its bits come as uint16.
STORED = {
    "float32": "float", "float16": "__half",
    "uint16": "__nv_bfloat16", "bfloat16": "__nv_bfloat16",
}  # fmt: skip


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
        sums of a row do not fit on the chip; `row_means` is launched before it.
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
    if kernel in FLOAT32_ONLY and types:
        raise ValueError(f"{kernel} is for float32; backward takes half types too")
    tile = _tile(kernel, D, width, shared_limit)
    if tile is not None:
        return _tiled(kernel, tile, width, types)
    if kernel in FLOAT32_ONLY:
        raise ValueError(f"{kernel} cannot hold rows of {D} entries; backward takes rows of any D")
    looping = "forward_looping" if kernel in FORWARD else "backward_columns"
    return _instantiation(looping, LOOPING_THREADS, (width,), types)


def _tiled(kernel, tile, width, types):
    """Return the instantiation of a kernel that holds its rows in tiles."""
    threads, entries, *resident = tile
    rows = WARPS.get(kernel, 1) if threads == 32 else 1
    vectors = entries // width, width
    if kernel == "backward_atomic":
        return _instantiation(kernel, threads, vectors)
    if kernel == "forward":
        return _instantiation(kernel, threads, (*vectors, rows), types, rows=rows)
    in_shared = tile in SHARED_TILES.values()
    place = "IN_SHARED" if in_shared else "IN_REGISTERS"
    shared_bytes = 8 * rows * threads * entries if in_shared else 0  # two float32 per entry
    parameters = *vectors, rows, *resident, place
    return _instantiation(kernel, threads, parameters, types, shared_bytes, rows)


def _tile(kernel, D, width, shared_limit):
    """Return the tile of a row, or None if nothing is to hold it."""
    if kernel == "forward":
        tiles = FORWARD_TILES if width > 1 else NARROW_FORWARD_TILES
    elif kernel.endswith("looping"):
        tiles = {}
    elif width == 1:
        tiles = NARROW_TILES
    elif kernel == "backward_atomic":
        tiles = FORWARD_TILES
    else:
        tiles = SHARED_TILES if shared_limit >= LARGE else SHORT_TILES | REGISTER_TILES
    for most, tile in sorted(tiles.items()):
        _, entries, *_ = tile
        if D <= most and entries % width == 0:
            return tile
    return None


def row_means(width, types=()):
    """Return the instantiation that is launched before "backward_columns"."""
    return _instantiation("row_means", MEANS_THREADS, (width,), types)


def column_sums(rows, types=()):
    """Return the instantiation of the second stage for so many rows of partial sums."""
    threads = 256 if rows > 64 else 32
    return _instantiation("column_sums", threads, (COLUMNS,), types[-1:])


def _instantiation(kernel, threads, parameters, types=(), shared_bytes=0, rows=1):
    """Return an Instantiation: its template takes the threads of a row, parameters and types."""
    expression = f"{kernel}<{', '.join(map(str, (threads, *parameters, *types)))}>"
    return Instantiation(expression, threads * rows, shared_bytes, rows)


def types_of(x, gamma):
    """Return what stands in a kernel's name for the dtypes of x and gamma; float32 is understood.

    >>> types_of("float16", "float16"), types_of("uint16", "float32")
    (('__half',), ('__nv_bfloat16', 'float'))
    """
    names = dict.fromkeys(STORED[np.dtype(dtype).name] for dtype in (x, gamma))
    return tuple(names) if tuple(names) != ("float",) else ()


def blocks_for(rows, resident, rows_at_a_time=1):
    """Return how many blocks share the rows, so that all have equally many, and not too many."""
    at_a_time = resident * rows_at_a_time
    waves = max(1, -(-rows // (at_a_time * ROWS_PER_GROUP)))
    rows_per_group = -(-rows // (at_a_time * waves))
    return -(-rows // (rows_per_group * rows_at_a_time))


def grid(chosen, rows, D, width, resident):
    """Return how many blocks a launch has, and how many of them share the rows.

    Parameters
    ----------
    chosen : Instantiation
    rows, D, width : int
    resident : int
        How many of its blocks the GPU holds at a time: more have no use where each block has sums
        over its rows.
    """
    if chosen.kernel == "backward_columns":
        across = -(-D // (width * chosen.threads))
        down = max(1, min(rows, resident // across))
        return across * down, down
    if chosen.kernel in ("backward", "backward_single"):
        blocks = blocks_for(rows, resident, chosen.rows)
    else:
        blocks = -(-rows // chosen.rows)
    return blocks, blocks


def every(shared_limit, x="float32", gamma=None):
    """Return the C++ names of all instantiations that can be launched for these dtypes."""
    types, names = types_of(x, gamma or x), {}
    lengths = [*FORWARD_TILES, 2**20]
    widths = 16 // np.dtype(x).itemsize, 1
    for kernel, D, width in itertools.product(FORWARD + BACKWARD, lengths, widths):
        with contextlib.suppress(ValueError):  # not for rows as long as that, or for these types
            names[choose(kernel, D, width, shared_limit, types).expression] = None
    others = [row_means(width, types) for width in widths]
    others += [column_sums(rows, types) for rows in (1, 100)]
    return [*names, *(one.expression for one in others)]
