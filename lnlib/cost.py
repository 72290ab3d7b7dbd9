"""What the layer costs: FLOPs, bytes through memory and peak memory, counted from the source."""

from typing import NamedTuple

import numpy as np

from . import blocked

PER_ELEMENT = {
    # for each of the N * D elements of x: FLOPs, values read and written, values allocated at once
    # textbook: `lnlib.textbook`, the form with means
    ("textbook", "forward"): (9, 15, 3),
    ("textbook", "backward"): (11, 21, 3),
    # `lnlib.layernorm`: constant rows (less their masks of one byte), scaling, centring; backward,
    # float32 has WIDENED values more
    ("reference", "forward"): (15, 26, 4),
    ("reference", "backward"): (11, 21, 3),
    # `lnlib.blocked`: values through memory, with a cache for some blocks. Rows are around 0, so
    # that nothing needs centring: a block of x that does costs 5 FLOPs more forward and 1 backward,
    # a block of gamma * dy 4
    ("blocked", "forward"): (8, 2, 1),
    ("blocked", "backward"): (18, 3, 1),
    # one kernel that does no more than the formulas ask, with the row in registers
    ("fused", "forward"): (9, 2, 1),
    ("fused", "backward"): (14, 3, 1),
}

WIDENED = 3  # gamma * dy in float64 takes the room of two values; it is written once and read twice


class Cost(NamedTuple):
    """The cost of one pass.

    Attributes
    ----------
    flops : int
        Additions, multiplications, divisions, roots and comparisons.
    nbytes : int
        Bytes that are read and written: by all operations, or of the blocked and the fused layer
        those through memory. Extra reads of write-allocate are left out.
    peak : int
        Bytes allocated at once, results and cache included, arguments not.
    """

    flops: int
    nbytes: int
    peak: int

    @property
    def intensity(self):
        """FLOPs per byte."""
        return self.flops / self.nbytes


def cost(variant, direction, N, D, dtype=np.float32, *, out=False, elides=True):
    """Cost of one pass over N rows of D around 0, without what grows with N or D alone.

    The peak of the blocked layer counts its buffer and its numbers for each row: they are all that
    is left when out is given. For rows of 256 to 1024 the peak is right to 5 %, or 2 % of x.
    It leaves out NumPy's own buffer, of 64 KiB, and 2 MiB beside a result of 32 MiB or more, most
    of which is never touched.

    Parameters
    ----------
    variant : {"textbook", "reference", "blocked", "fused"}
    direction : {"forward", "backward"}
    N, D : int
        Rows (B * T) and features.
    dtype : {float32, float64}
    out : bool
        Whether y or dx goes to memory that the caller owns (blocked and fused).
    elides : bool
        Whether NumPy writes a large result over a temporary of the same shape (it needs POSIX).

    Returns
    -------
    Cost

    Raises
    ------
    ValueError
        If variant or direction is not one of the above, N or D is not positive, or out is asked of
        one that has none.
    """
    if (variant, direction) not in PER_ELEMENT:
        got = variant, direction
        raise ValueError(f"variant, direction must be in cost.PER_ELEMENT, got {got}")
    if out and variant in ("textbook", "reference"):
        raise ValueError(f"out must be False for {variant}, which allocates its result")
    N, D, itemsize = int(N), int(D), np.dtype(dtype).itemsize  # NumPy's integers can overflow
    if min(N, D) < 1:
        raise ValueError(f"N and D must be positive, got {N} and {D}")
    flops, both_ways, held = PER_ELEMENT[variant, direction]
    if (variant, direction) == ("textbook", "backward") and not elides:
        held += 1  # a temporary that NumPy would have written over
    if (variant, direction) == ("reference", "backward") and itemsize == 4:
        both_ways += WIDENED
    values = (held - 1 if out else held) * N * D
    if variant == "blocked":
        values += _beside_the_rows(direction, N, D, itemsize)
    return Cost(flops * N * D, both_ways * N * D * itemsize, values * itemsize)


def _beside_the_rows(direction, N, D, itemsize):
    """Return how many values of itemsize bytes the blocked layer allocates beside its result."""
    block = blocked.rows_per_block(N, D) * D
    double = 8 // itemsize  # a number in float64 takes the room of so many values
    if direction == "forward":
        for_each_row = 3  # mean, mean_lo and rstd
        buffer, sums = 0, block // blocked.STRIP  # a sum for each strip of a row
    else:
        for_each_row = 3 + 2 * double  # three weights; mean_lo and rstd in float64
        buffer, sums = block, 2 * block // blocked.RUN  # two sums for each run of rows
    return buffer + for_each_row * N + sums * (1 + double)  # BLAS's sums, and these in float64


def roofline(intensity, bandwidth, arithmetic):
    """Highest rate, in FLOP/s, at an intensity in FLOPs per byte.

    Parameters
    ----------
    intensity : float or ndarray
    bandwidth : float
        Of the memory, in bytes per second.
    arithmetic : float
        Of the processor, in FLOP/s.

    Returns
    -------
    float or ndarray

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance
       model for multicore architectures", Communications of the ACM 52 (2009) 65-76,
       doi:10.1145/1498765.1498785.
    """
    return np.minimum(intensity * bandwidth, arithmetic)
