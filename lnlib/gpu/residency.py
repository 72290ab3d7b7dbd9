"""How many blocks of a kernel a GPU holds at a time, and how many bytes they have in flight."""

from typing import NamedTuple

from . import nvrtc
from .dispatch import choose, grid, row_means


class Limits(NamedTuple):
    """What a multiprocessor can hold, from the CUDA programming guide's table.

    Attributes
    ----------
    threads, blocks : int
    shared_bytes, shared_per_block : int
        Shared memory of the multiprocessor, and the most that one block can have.
    multiprocessors : int
        Of a GPU of this architecture, named in the comment.
    """

    threads: int
    blocks: int
    shared_bytes: int
    shared_per_block: int
    multiprocessors: int


LIMITS = {
    "sm_70": Limits(2048, 32, 96 * 1024, 96 * 1024, 80),  # V100
    "sm_75": Limits(1024, 16, 64 * 1024, 64 * 1024, 40),  # T4
    "sm_80": Limits(2048, 32, 164 * 1024, 163 * 1024, 108),  # A100
    "sm_86": Limits(1536, 16, 100 * 1024, 99 * 1024, 84),  # A40
    "sm_89": Limits(1536, 24, 100 * 1024, 99 * 1024, 58),  # L4
    "sm_90": Limits(2048, 32, 228 * 1024, 227 * 1024, 132),  # H100, H200
    "sm_100": Limits(2048, 32, 228 * 1024, 227 * 1024, 148),  # B200
    "sm_120": Limits(1536, 24, 100 * 1024, 99 * 1024, 170),  # RTX 5090
}


class Occupancy(NamedTuple):
    """How one launch fills a GPU.

    Attributes
    ----------
    kernel : str
        The C++ name of what is launched.
    registers, spilled : int
        Of a thread: how many registers, and bytes that did not fit into them.
    resident : int
        Blocks that a multiprocessor holds at a time.
    limited_by : str
        What would have to shrink for more of them to fit.
    blocks : int
        That the launch starts.
    waves : float
        blocks, in units of what the whole GPU holds at a time.
    bytes_in_flight : int
        Per multiprocessor: what its blocks have asked for when all wait for their rows.
    """

    kernel: str
    registers: int
    spilled: int
    resident: int
    limited_by: str
    blocks: int
    waves: float
    bytes_in_flight: int


def shared_taken(arch, shared_bytes):
    """Return what a block takes of its multiprocessor's shared memory.

    Parameters
    ----------
    arch : str
        "sm_70", "sm_75", ...
    shared_bytes : int
        What the block asks for, static and dynamic.

    Returns
    -------
    int
        Bytes, in whole units. Since sm_80 the driver takes 1024 per block besides.
    """
    unit, driver = (128, 1024) if int(arch[3:]) >= 80 else (256, 0)
    return -(-(shared_bytes + driver) // unit) * unit


def resident_blocks(arch, threads, registers, shared_bytes=0):
    """Return how many blocks fit on a multiprocessor, and what limits them.

    Parameters
    ----------
    arch : str
        "sm_70", "sm_75", ...
    threads : int
        In a block.
    registers : int
        Per thread. Warps get them in units of 256 from the 16384 of a quarter of a multiprocessor.
    shared_bytes : int
        Per block, static and dynamic.
    """
    limits = _limits(arch)
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    shared = shared_taken(arch, shared_bytes)
    fitting = {  # of equal ones, the first is named: the GPU is full
        "threads": limits.threads // (32 * warps),
        "blocks": limits.blocks,
        "registers": 4 * (16384 // per_warp) // warps,
        "shared memory": limits.shared_bytes // shared if shared else limits.blocks,
    }
    limited_by = min(fitting, key=fitting.get)
    return fitting[limited_by], limited_by


def occupancy(kernel, rows, D, arch="sm_90", multiprocessors=None):
    """Say how a launch on float32 would fill a GPU; the kernel is compiled, but no GPU is needed.

    Parameters
    ----------
    kernel : str
        "forward", "backward", ... as for `lnlib.gpu.layer_norm_forward` and `layer_norm_backward`;
        also "row_means", the first of the two kernels where x and dy are read twice.
    rows, D : int
    arch : str
        "sm_70", "sm_75", ...
    multiprocessors : int, optional
        Of the GPU; by default of the one that LIMITS names. Cards of one architecture differ.

    Returns
    -------
    Occupancy

    Raises
    ------
    RuntimeError, ValueError
        As `lnlib.gpu.compile`; ValueError also for an arch that is not in the table.
    """
    limits, width = _limits(arch), 1 if D % 4 else 4
    if kernel == "row_means":
        chosen = row_means(width)
    else:
        chosen = choose(kernel, D, width, limits.shared_per_block)
    compiled = nvrtc.compile(arch, [chosen.expression])[chosen.expression]
    shared = compiled.shared + chosen.shared_bytes
    resident, limited_by = resident_blocks(arch, chosen.threads, compiled.registers, shared)
    at_a_time = resident * (multiprocessors or limits.multiprocessors)
    blocks, _ = grid(chosen, rows, D, width, at_a_time)
    arrays = 1 if chosen.kernel.startswith("forward") else 2  # x; x and dy
    in_flight = resident * _floats_asked(chosen, D, width) * 4 * arrays
    return Occupancy(
        chosen.expression, compiled.registers, compiled.spilled,
        resident, limited_by, blocks, blocks / at_a_time, in_flight,
    )  # fmt: skip


def _floats_asked(chosen, D, width):
    """Return how many entries of each array a block asks for before it waits for them."""
    if chosen.kernel in ("forward_looping", "backward_columns"):
        return chosen.threads * width  # one load
    if chosen.kernel == "row_means":
        return min(D, 4 * chosen.threads * width)  # four turns of its unrolled loop
    return chosen.rows * D


def _limits(arch):
    if arch not in LIMITS:
        raise ValueError(f"arch must be one of {', '.join(LIMITS)}, got {arch!r}")
    return LIMITS[arch]
