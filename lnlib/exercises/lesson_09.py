"""Lesson 09: how many blocks a multiprocessor holds; the score of rows in step."""

import numpy as np

from ..checker import mistakes
from .registry import exercise

HELD_CASES = {  # threads, registers, shared
    "registers decide": (128, 64, 500),
    "registers of blocks with 16 warps": (512, 64, 100),
    "registers of blocks with 8 warps": (256, 40, 100),
    "a warp's registers in units of 256": (128, 49, 100),
    "one unit more": (128, 55, 100),
    "three warps in four quarters": (96, 40, 4096),
    "the last warp is not full": (72, 16, 64),
    "registers of a last warp that is not full": (72, 64, 100),
    "shared memory decides": (128, 32, 17_576),
    "shared memory in units of 128": (128, 32, 17_536),
    "shared memory is full": (64, 32, 19_968),
    "a little shared memory is left": (64, 32, 19_840),
    "shared memory is not quite full": (64, 32, 20_400),
    "shared memory for less than two blocks": (64, 32, 102_400),
    "small blocks": (32, 20, 100),
    "large blocks": (1024, 16, 1000),
}


@exercise("blocks", HELD_CASES)
@mistakes("""
    warps = -(-threads // 32) => warps = threads // 32
        the last warp is missing where it is not full.
    -(-32 * registers // 256) * 256 => 32 * registers  # a warp's registers come in units of 256.
    -(-32 * registers // 256) * 256 => 32 * registers // 256 * 256
        a warp's registers are rounded down; it gets whole units of 256 that are enough.
    4 * (16384 // per_warp) => 65536 // per_warp
        a warp's registers lie in one quarter; what is left over in the quarters does not add up.
    4 * (16384 // per_warp) // warps => 4 * (16384 // (per_warp * warps))
        a block's warps may lie in different quarters; here a whole block lies in one.
    4 * (16384 // per_warp) // warps => 16384 // per_warp // -(-warps // 4)
        a block's warps may lie in different quarters; here each quarter has its part of a block.
    4 * (16384 // per_warp) // warps => 4 * (16384 // per_warp) // warps if warps <= 4 else 99
        the registers of large blocks are missing; all blocks need registers.
    4 * (16384 // per_warp) // warps => 16384 // per_warp // warps  # one quarter; there are four.
    (shared + 1024) => shared  # a block takes 1024 bytes more than it asks for.
    -(-(shared + 1024) // 128) * 128 => -(-(shared + 1024) // 256) * 256
        shared memory in units of 256; they are of 128 bytes.
    -(-(shared + 1024) // 128) * 128 => (shared + 1024)  # shared memory comes in units of 128.
    164 * 1024 // (-(-(shared + 1024) // 128) * 128) => round(164 * 1024 / (shared + 1024))
        the number of blocks is rounded; a part of a block does not fit.
    164 * 1024 => 164 * 1000  # a KiB has 1024 bytes.
    164 * 1024 => 163 * 1024  # the most that one block can have; all blocks together have 164 KiB.
    64 // warps => 2048 // threads  # threads; a warp takes its place whole, even if it is not full.
    , 32) => )  # the places for blocks, 32, are missing.
    min(of_registers, of_shared => min(of_registers  # shared memory is missing.
    min(of_registers, => min(  # the registers are missing.
    min(of_registers, of_shared, 64 // warps, => min(of_registers, of_shared,
        the places for warps are missing.
    min( => max(  # the most that a rule allows; the strictest decides.
""")
def blocks_held(threads, registers, shared):
    """Return how many blocks an A100's multiprocessor holds at a time."""
    warps = -(-threads // 32)
    per_warp = -(-32 * registers // 256) * 256  # registers
    of_registers = 4 * (16384 // per_warp) // warps
    of_shared = 164 * 1024 // (-(-(shared + 1024) // 128) * 128)
    return min(of_registers, of_shared, 64 // warps, 32)


SCORE_CASES = {  # rows, D, multiprocessors, bandwidth, clock
    "many short rows": (16, 1024, 40, 320.0, 1.59),
    "several numbers of rows": (np.array([5, 20]), 1024, 108, 1555.0, 1.41),
    "two long rows": (2, 16_384, 84, 696.0, 1.74),
    "one short row": (1, 768, 42, 360.0, 1.32),
    "the H200": (8, 4096, 132, 4800.0, 1.98),
}


@exercise("score", SCORE_CASES)
@mistakes("""
    numbers = rows * D => numbers = D
        one row, or 2500 ns for each row; rows in step wait at once.
    numbers = rows * D => numbers = rows  # rows, not numbers: each row has D.
    numbers = rows * D => numbers = rows * D * multiprocessors
        the numbers of the whole GPU, with one multiprocessor's speed; take those of one.
    moving = 8 => moving = 4  # a number is read and written: 8 bytes, as in the copy.
    moving = 8 => moving = 16  # gamma and beta come from the cache, not through memory.
    moving = 8 * numbers => moving = numbers  # numbers, not bytes: each moves 8.
    (bandwidth / multiprocessors) => bandwidth
        bandwidth is that of all multiprocessors; each has a part of it.
    (bandwidth / multiprocessors) => (bandwidth * multiprocessors)
        bandwidth is that of all multiprocessors; divide by their number.
    cache = 8 => cache = 4  # gamma and beta are 8 bytes together.
    cache = 8 => cache = 12  # with the bytes of x; here only gamma and beta keep the memory idle.
    cache = 8 => cache = 16  # gamma and beta twice; they are 4 bytes each, 8 together.
    cache = 8 * numbers => cache = numbers  # numbers, not bytes: each needs 8 from the cache.
    cache = 8 * numbers => cache = 8 * D
        gamma and beta for one row; each row asks for them.
    (24 * clock) => 24  # cycles, not ns, for the cache; there are clock of them in a ns.
    (24 * clock) => clock  # one byte in a cycle; a multiprocessor gets 24 from the cache.
    (24 * clock) => (24 / clock)
        the cache's time; clock is cycles per ns: the more, the shorter.
    (24 * clock) => (24 * clock / multiprocessors)
        24 bytes in a cycle are what each multiprocessor gets; they are not shared.
    (24 * clock) => (24 * clock * multiprocessors)
        24 bytes in a cycle are what one multiprocessor gets; count the numbers of one.
    2500 + cache => 2500 * rows + cache  # 2500 ns for each row; rows in step wait at once.
    2500 + cache => cache  # the 2500 ns of waits are missing.
    2500 + cache => 2500  # the time of gamma and beta is missing; they come from the cache.
    + cache + counted => + cache
        the time of the instructions is not added; in step, all idle times are added.
    2500 + cache => 2.5 + cache  # 2.5 µs; count in ns: 2500.
    2500 + cache => 2500 * clock + cache  # 2500 times the clock; the 2500 are ns, not cycles.
    2500 + cache => 2100 + cache  # a T4's; here the memory is idle for 2500 ns.
    18 * numbers => 16 * numbers  # a T4's instructions; here a number has 18.
    18 * numbers => 18 * numbers * multiprocessors
        the instructions of the whole GPU; take those of one multiprocessor.
    18 * numbers => 18 * D  # the instructions of one row; all rows have theirs.
    (128 * clock) => 128  # cycles, not ns, for instructions; there are clock of them in a ns.
    (128 * clock) => clock  # one instruction in a cycle; a multiprocessor starts 128.
    (128 * clock) => (64 * clock)  # 64 instructions in a cycle; a multiprocessor starts 128.
    * clock) => )
        both times are in cycles; divide by the clock, the cycles per ns.
    * clock) => / clock)
        both times are multiplied by the clock, not divided; it is cycles per ns.
    (128 * clock) => (128 / clock)
        the instructions' time; clock is cycles per ns: the more, the shorter.
    moving / (moving + idle) => (moving + idle) / moving
        the kernel's time divided by the copy's; the score is the inverse.
    moving / (moving + idle) => 1 - idle / moving
        idle time divided by the copy's time; the kernel's time is moving and idle time.
    moving / (moving + idle) => moving / idle
        moving is missing: the kernel's time is moving and idle time.
    moving / (moving + idle) => moving / np.maximum(moving, idle)
        the longer of the two; in step, they are added.
    moving / (moving + idle) => np.round(moving / (moving + idle), 2)
        the score is rounded; give all its digits.
    moving / (moving + idle) => moving + idle  # the kernel's time in ns, not the score.
""")
def predicted_score(rows, D, multiprocessors, bandwidth, clock):
    """Return the score of a forward pass in float32, with rows in step."""
    numbers = rows * D  # of a multiprocessor
    moving = 8 * numbers / (bandwidth / multiprocessors)  # ns
    cache = 8 * numbers / (24 * clock)  # gamma and beta
    counted = 18 * numbers / (128 * clock)  # instructions
    idle = 2500 + cache + counted
    return moving / (moving + idle)
