"""Measure what a time is made of: the price of each sweep, and page faults. Lesson 07 does.

A sweep is an operation of NumPy over a block of rows.
"""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np

from .bench import least
from .trace import trace


class Sweep(NamedTuple):
    """A kind of operation over a block of rows.

    Attributes
    ----------
    name : str
        Of the ufunc, with ".reduce" for sums.
    operands : tuple of str
        "array" (rows, D), "row" (D,) or "column" (rows, 1); an array with itself counts once.
    target : str
        Where the result goes: "in place", "out" to an array that is there already, "fresh" to a new
        one, or "sums", a number per row.
    memory : str
        Of a block: "read" or "write" if an operand comes from memory, or the result has to go
        there, while the others are in the cache; "" if nothing does.
    """

    name: str
    operands: tuple
    target: str
    memory: str


def sweeps(function, x, gamma, beta, y, buffer, rows):
    """List the sweeps of a function over the first rows of its arrays.

    Parameters
    ----------
    function : callable
        Takes x, gamma, beta, y and buffer, reads x and writes y.
    x, y, buffer : ndarray, shape (N, D)
    gamma, beta : ndarray, shape (D,)
    rows : int
        In a block, other than D. If it is less than N, a block of x comes from memory when it is
        first read, and one of y has to go there.

    Returns
    -------
    sweeps : list of Sweep
    small : int
        How many operations went over less than a block.

    Raises
    ------
    ValueError
        If rows is D, or not a number of rows that x has.
    """
    if rows == x.shape[1] or not 0 < rows <= len(x):
        raise ValueError(f"rows is {rows}: it must be from 1 to {len(x)}, and not {x.shape[1]}")
    blocks = x[:rows], y[:rows], buffer[:rows]
    _, steps = trace(function, blocks[0], gamma, beta, *blocks[1:])
    kinds = {x[:rows].nbytes: "array", rows * x.itemsize: "column", gamma.nbytes: "row"}
    known = {a.ctypes.data for a in blocks}
    away = {a.ctypes.data for a in blocks[:2]} if rows < len(x) else set()
    found = []
    for step in steps:
        operands = tuple(sorted(kinds.get(size, "number") for _, size in step.reads))
        if "array" not in operands:
            continue
        read, written = ({at for at, _ in side} for side in (step.reads, step.writes))
        target = "out" if written & known or rows < len(x) else "fresh"
        target = "in place" if written & read else target
        if x[:rows].nbytes not in dict(map(reversed, step.writes)):
            target = "sums"
        memory = [word for word, side in (("read", read), ("write", written)) if side & away]
        away -= read | written
        found.append(Sweep(step.name, operands, target, " and ".join(memory)))
    return found, len(steps) - len(found)


def prices(kinds, work, result, rows, buffer_size=8192, seconds=0.3):
    """Measure what sweeps cost, each alone.

    Parameters
    ----------
    kinds : iterable of Sweep
    work, result : ndarray, shape (N, D)
        Both are overwritten. A sweep goes over one block again and again; over one after the other
        where its `memory` says so.
    rows : int
        In a block.
    buffer_size : int
        NumPy's (`numpy.setbufsize`), in numbers.
    seconds : float
        For all of them together.

    Returns
    -------
    dict of Sweep to float
        The least time, in nanoseconds an element.

    Raises
    ------
    ValueError
        If rows is not a number of rows that work has.
    """
    if not 0 < rows <= len(work):
        raise ValueError(f"rows is {rows}: it must be from 1 to {len(work)}")
    work[:], result[:] = 1, 1
    with np.errstate():  # restores the buffer, too
        np.setbufsize(buffer_size)
        calls = {kind: _repeated(kind, work, result, rows) for kind in kinds}
        best = least(calls, seconds)
    elements = len(work) // rows * rows * work.shape[1]
    return {kind: t / elements * 1e9 for kind, t in best.items()}


def _repeated(kind, work, result, rows):
    """Return a function that makes one sweep for each block that work has."""
    ufunc = getattr(np, kind.name.removesuffix(".reduce"))
    neutral = np.full((rows, work.shape[1]), "multiply" in kind.name, work.dtype)  # nothing grows
    small = {"column": neutral[:, :1].copy(), "row": neutral[0].copy()}
    starts = range(0, len(work) // rows * rows, rows)

    def call():
        for start in starts:
            a = work[start : start + rows] if "read" in kind.memory else work[:rows]
            b = result[start : start + rows] if "write" in kind.memory else result[:rows]
            if kind.name.endswith(".reduce"):
                ufunc.reduce(a, axis=-1)
                continue
            given = [small.get(operand, a) for operand in kind.operands]
            given = (given * ufunc.nin)[: ufunc.nin]  # an array alone: with itself
            outs = {"in place": {"out": a}, "out": {"out": b}}
            ufunc(*given, **outs.get(kind.target, {}))

    return call


FAULTS = """
import os, resource, sys, time
import numpy as np
from lnlib import textbook
gamma, beta = np.ones((2, 768), "f")
for mib, freed in [(int(mib), freed) for mib in sys.argv[1:] for freed in (0, 31)]:
    if os.fork() == 0:  # a young process
        x = np.ones((mib * 2**20 // 3072, 768), "f")
        np.ones(freed * 2**17)  # and freed at once
        for call in ("first call", "second call"):
            before, start = resource.getrusage(0).ru_minflt, time.process_time()
            textbook.forward_means(x, gamma, beta)
            seconds, after = time.process_time() - start, resource.getrusage(0).ru_minflt
            history = call + f", after {freed} MiB" * (freed > 0)
            print(mib, after - before, seconds / x.size * 1e9, history, sep=";", flush=True)
        os._exit(0)
    os.wait()
"""
# of the environment: they tell the GNU C library to give nothing back to the system
KEEP = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_TOP_PAD_": str(2**28),
}  # fmt: skip


def page_faults(sizes):
    """Count the page faults of the textbook's forward pass in processes of their own, on Linux.

    Parameters
    ----------
    sizes : iterable of int
        Of x, in MiB; D is 768.

    Returns
    -------
    dict of str to ndarray, shape (sizes, 3)
        For each history: size, page faults and nanoseconds an element of one call. A history is
        "first call" or "second call", or either with ", after 31 MiB" (an array of that size was
        made and freed before).
        Empty where the system does not count.
    """
    options = {"NUMPY_MADVISE_HUGEPAGE": "0"}  # NumPy asks for no larger pages
    command = [sys.executable, "-c", FAULTS, *map(str, sizes)]
    done = subprocess.run(command, env=os.environ | options, capture_output=True, text=True)
    found = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        *numbers, history = line.split(";")
        found.setdefault(history, []).append([float(n) for n in numbers])
    return {history: np.array(rows) for history, rows in found.items()}
