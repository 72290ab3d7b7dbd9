"""Lesson 09: how many blocks a multiprocessor holds; a score, predicted."""

import numpy as np

from ..checker import mistakes
from .registry import exercise

HELD_CASES = {  # threads, registers, shared
    "registers decide": (128, 64, 500),
    "a warp's registers in units of 256": (128, 49, 100),
    "one unit more": (128, 55, 100),
    "three warps in four quarters": (96, 40, 4096),
    "the last warp is not full": (72, 16, 64),
    "shared memory decides": (128, 32, 17_576),
    "shared memory is full": (64, 32, 19_968),
    "a little shared memory is left": (64, 32, 19_840),
    "shared memory is not quite full": (64, 32, 20_400),
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
    4 * (16384 // per_warp) // warps => 16384 // per_warp // warps  # one quarter; there are four.
    (shared + 1024) => shared  # a block takes 1024 bytes more than it asks for.
    -(-(shared + 1024) // 128) * 128 => (shared + 1024)  # shared memory comes in units of 128.
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


SCORE_CASES = {  # rows, D, blocks, multiprocessors, bandwidth, flops, share
    "many rounds": (8192, 4096, 8, 40, 3.2e11, 8.1e12, 0.61),
    "a band of shares": (21_000, 1024, 20, 108, 1.555e12, 1.95e13, np.array([0.5, 0.25])),
    "two rounds": (640, 2048, 8, 42, 3.6e11, 7.3e12, 0.3),
    "one round": (1344, 768, 16, 84, 7e11, 3.7e13, 0.7),
}


@exercise("rounds score", SCORE_CASES)
@mistakes("""
    -(-rows // (blocks * multiprocessors)) => rows // (blocks * multiprocessors)
        the last round is missing where it is not full.
    -(-rows // (blocks * multiprocessors)) => rows / (blocks * multiprocessors)
        a round that is not full is a round: round up.
    (blocks * multiprocessors) => blocks  # one multiprocessor's rounds; all of them take rows.
    (blocks * multiprocessors) => multiprocessors  # a multiprocessor holds several blocks.
    8 * rows => 4 * rows  # a copy reads and writes: 8 bytes for each float32 number.
    8 * rows => 2 * rows  # numbers, not bytes: each has 4 bytes.
    1.5e-6 * rounds + => 1.5e-6 +  # 1.5 µs once; every round waits.
    1.5e-6 * rounds + => 1.5 * rounds +  # 1.5 seconds, not µs.
    + 7 * rows * D / (flops / 2) =>  # the arithmetic is missing.
    1.5e-6 * rounds + =>  # the 1.5 µs of each round are missing.
    (flops / 2) => flops  # an instruction counts as two FLOPs.
    (flops / 2) => (flops / 2) * rounds  # the arithmetic of all rows, once more in every round.
    (flops / 2) => (flops / 2) / rounds  # the arithmetic of one round; waits has that of all.
    (flops / 2) => (flops / 2 / multiprocessors)
        the arithmetic of all rows on one multiprocessor; flops counts all of them.
    7 * rows * D => 14 * rows * D
        14 for each number; forward takes 7 instructions, and flops / 2 counts each as two FLOPs.
    1.5e-6 * rounds => 1.3e-6 * rounds  # the backward pass's wait; forward waits 1.5 µs.
    7 * rows * D => 7 * rounds * blocks * multiprocessors * D
        the arithmetic of full rounds; the last one has fewer rows, so count all rows.
    1 + share * (rounds - 1) => share * (rounds - 1)  # the first wait is missing.
    1 + share * (rounds - 1) => 1 + share * rounds
        the first wait counts twice; the others are one fewer than the rounds.
    1 + share * (rounds - 1) => share * rounds
        nothing hides the first wait; here it, too, has a share.
    1 + share * (rounds - 1) => 1 + share * (rounds - 2)
        the last wait is missing; only the first is not one of the others.
    1 + share * (rounds - 1) => rounds - share * (rounds - 1)  # the share that is hidden.
    1 + share * (rounds - 1) => rounds  # all waits; of the others only a share is exposed.
    1 + share * (rounds - 1) => 1 + share  # one wait besides the first; there are more or fewer.
    copying / (copying + exposed / rounds * waits) => copying / (copying + exposed * waits)
        waits is the time of all rounds; divide by their number.
    copying / (copying + exposed / rounds * waits) => copying / (exposed / rounds * waits)
        moving is missing: the kernel's time is moving and exposed waits.
    copying / (copying + exposed / rounds * waits) => (copying + exposed / rounds * waits) / copying
        the kernel's time divided by the copy's; the score is the inverse.
    copying / (copying + exposed / rounds * waits) => copying + exposed / rounds * waits
        the kernel's time in seconds, not the score.
""")
def predicted_score(rows, D, blocks, multiprocessors, bandwidth, flops, share):
    """Return the rounds of a forward pass in float32, and its score."""
    rounds = -(-rows // (blocks * multiprocessors))
    copying = 8 * rows * D / bandwidth  # seconds
    waits = 1.5e-6 * rounds + 7 * rows * D / (flops / 2)
    exposed = 1 + share * (rounds - 1)  # the first, and of the others
    return rounds, copying / (copying + exposed / rounds * waits)
