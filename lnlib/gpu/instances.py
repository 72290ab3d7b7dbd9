"""Which instance of a kernel fits: threads, registers and shared memory for a row's length."""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np

# Rows up to this length: the threads of the group that holds a row, and how many of its entries
# each of them holds. If entries are not loaded 16 bytes at a time (width 1), addresses need more
# registers, and a thread holds fewer entries.
FORWARD_GROUPS = {
    128: (32, 4), 512: (32, 16), 768: (32, 24), 1024: (64, 16),
    2048: (128, 16), 4096: (128, 32), 8192: (256, 32), 16384: (512, 32),
}  # fmt: skip
BACKWARD_GROUPS = FORWARD_GROUPS | {1024: (32, 32)}
NARROW_FORWARD_GROUPS = {128: (32, 4), 1024: (64, 16), 4096: (256, 16), 16384: (1024, 16)}
NARROW_BACKWARD_GROUPS = {128: (32, 4), 1024: (64, 16), 4096: (256, 16), 8192: (512, 16)}
WARPS = 8  # in the backward pass, if a warp has a row of its own: how many of them in a block
LOOPING_THREADS = 256
COLUMNS = 8  # of a block of the second stage
ROWS_PER_GROUP = 20  # longer float32 sums could lose more than the promised 4e-7

# Of a thread of the backward pass, by the entries it holds: enough for all loads of a row to be in
# flight. It gets MOST_REGISTERS for a number of entries that is not here.
REGISTERS, NARROW_REGISTERS = {4: 64, 16: 96}, {4: 64}
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
    """

    expression: str
    threads: int
    shared_bytes: int = 0
    rows: int = 1


def configuration(kernel, D, width, shared_limit=np.inf, stored="float"):
    """Choose the instance of a kernel for rows of D entries, loaded width at a time.

    Parameters
    ----------
    kernel : str
        One of FORWARD or BACKWARD. "forward" and "backward" become their looping variants where a
        row is too long for the registers, or its sums for the shared memory.
    D : int
    width : int
        1, or as many entries as make 16 bytes.
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
        groups = NARROW_FORWARD_GROUPS if kernel == "forward" else NARROW_BACKWARD_GROUPS
    else:
        one_row = kernel in ("forward", "backward_atomic")
        groups = FORWARD_GROUPS if one_row else BACKWARD_GROUPS
    fitting = [group for most, group in groups.items() if D <= most and group[1] % width == 0]
    chosen = instance(kernel, *fitting[0], width, shared_limit, stored) if fitting else None
    if kernel in ("forward", "backward") and chosen is None:
        kernel += "_looping"
    if kernel.endswith("looping"):
        return Configuration(_expression(kernel, LOOPING_THREADS, width, stored), LOOPING_THREADS)
    if chosen is None:
        raise ValueError(f"{kernel} cannot hold rows of {D} entries; backward takes rows of any D")
    return chosen


def instance(kernel, threads, entries, width, shared_limit=np.inf, stored="float"):
    """Return the Configuration in which a group of threads holds a row, or None.

    None says that the sums of the backward pass do not fit into the shared memory.

    Parameters
    ----------
    kernel : str
        One that keeps a row in registers.
    threads, entries : int
        Of the group, and of the row in each of its threads.
    width, shared_limit, stored
        As for `configuration`.
    """
    held = threads, entries // width, width
    if kernel in ("forward", "backward_atomic"):  # a block has one row, and keeps no sums
        return Configuration(_expression(kernel, *held, stored), threads)
    rows = WARPS if threads == 32 else 1
    block = rows * threads
    sums = 8 * block * entries  # bytes: two float32 sums per entry
    slots = 0 if threads == 32 and kernel == "backward" else SLOT_BYTES
    if sums + slots > shared_limit:
        return None
    table = REGISTERS if width > 1 else NARROW_REGISTERS
    registers = block * table.get(entries, MOST_REGISTERS)
    by_registers = REGISTERS_OF_A_MULTIPROCESSOR // registers
    by_shared = (shared_limit + DRIVER_BYTES) // (sums + DRIVER_BYTES)
    blocks = max(1, int(min(by_registers, by_shared)))
    return Configuration(_expression(kernel, *held, rows, blocks, stored), block, sums, rows)


def column_sums(rows, stored):
    """Return the Configuration of the second stage for so many rows of partial sums."""
    threads = 256 if rows > 64 else 32
    return Configuration(_expression("column_sums", threads, COLUMNS, stored), threads)


def _expression(kernel, *template):
    """Return the C++ name of an instance; float is what the kernels store by default."""
    words = [str(word) for word in template if word != "float"]
    return f"{kernel}<{', '.join(words)}>"


def blocks_for(rows, resident, rows_at_a_time=1):
    """Return how many blocks share the rows, so that all have equally many, and not too many."""
    at_a_time = resident * rows_at_a_time
    waves = max(1, -(-rows // (at_a_time * ROWS_PER_GROUP)))
    rows_per_group = -(-rows // (at_a_time * waves))
    return -(-rows // (rows_per_group * rows_at_a_time))


def instances(dtype=np.float32, shared_limit=227 * 1024):
    """Return the C++ names of all instances of kernels that can be launched for this dtype."""
    stored, widths = STORED[np.dtype(dtype).name].cpp, (16 // np.dtype(dtype).itemsize, 1)
    names = {}
    for kernel, D, width in itertools.product(FORWARD + BACKWARD, [*FORWARD_GROUPS, 2**20], widths):
        with contextlib.suppress(ValueError):  # not for rows as long as that, or for this type
            names[configuration(kernel, D, width, shared_limit, stored).expression] = None
    return [*names, *(column_sums(rows, stored).expression for rows in (1, 100))]
