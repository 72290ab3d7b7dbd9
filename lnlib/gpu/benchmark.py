"""Time every way to compute the layer on this GPU: python -m lnlib.gpu.benchmark [--save FILE]

Each is timed between two events, after a spin that gives Python time to queue all its launches,
and after 256 MB were read, so that nothing it needs is left in the GPU's cache. The median of 30
runs is compared with a copy that moves as many bytes as the pass must move at least: the fastest of
two kinds of copy, each measured before everything else and after it. --tune also tries other
configurations of the fastest kernels: how many threads share a row, how many of its entries each
of them holds, in how many registers, how many rows a group adds up, and how many columns a block.
"""

import argparse
import functools
import itertools
import json
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np

from .. import textbook
from ..bench import random_arrays
from . import instances, live

SHAPES = ["8192x768", "8192x1024", "16384x2048", "8192x4096", "4096x8192", "2048x16384"]
REPEATS = 30
WARM_UP = 0.5  # seconds per shape, until the GPU's clock has risen
LARGEST_ERROR = 1e-4  # of a rung that is timed, relative to the largest entry
FLUSH = 256 * 2**20  # bytes
SPIN = 'extern "C" __global__ void spin(long long n) { for (n += clock64(); clock64() < n;); }'
SPIN_CYCLES = 4_000_000  # about 2 ms
FASTEST = "row in registers, 16-byte loads", "two stages"
FIGURES = "{microseconds:9.1f} us ({p10:.1f}, {p90:.1f}) {GB/s:7.0f} GB/s {fraction of copy:6.2f}"
# What --tune tries: threads of a row, their entries, registers; rows of a group, columns of a block
TRIED = (32, 64, 128, 256, 512, 1024), (4, 8, 16, 24, 32), (64, 80, 96, 128)
TRIED_SUMS = (10, 20, 40), (8, 16, 32)


def minimum_bytes(which, rows, D):
    """Return the bytes that a pass must move: every input read once, every output written once."""
    arrays = 2 if which == "forward" else 3
    return 4 * arrays * (rows + 1) * D + 3 * 4 * rows


def rungs(dy, x, gamma, beta, eps=1e-5):
    """Return (pass, name, function of no arguments) for every rung of the ladder at this shape."""
    textbook_forward, textbook_backward = textbook.FORMS["rstd"]
    slow, textbook_cache = "the textbook's formulas", textbook_forward(x, gamma, beta, eps)[1]
    cache = live.layer_norm_forward(x, gamma, beta, eps)[1]
    forward = functools.partial(live.layer_norm_forward, x, gamma, beta, eps)
    backward = functools.partial(live.layer_norm_backward, dy, cache)
    return [
        ("forward", slow, functools.partial(textbook_forward, x, gamma, beta, eps)),
        ("forward", "x read four times", lambda: forward(kernel="forward_looping", width=1)),
        ("forward", "row in registers", lambda: forward(width=1)),
        ("forward", FASTEST[0], forward),
        ("backward", "add", lambda: x + dy),
        ("backward", slow, functools.partial(textbook_backward, dy, textbook_cache)),
        ("backward", "atomics", lambda: backward(kernel="backward_atomic")),
        ("backward", "two stages, 4-byte loads", lambda: backward(width=1)),
        ("backward", FASTEST[1], backward),
        ("backward", "single launch", lambda: backward(kernel="backward_single")),
    ]


def configurations(ladder, D):
    """Return rungs: the fastest of the ladder, with other numbers in the tables of `instances`."""
    sums = itertools.product(*TRIED_SUMS)
    tables = [{"ROWS_PER_GROUP": rows, "COLUMNS": columns} for rows, columns in sums]
    for threads, entries, registers in itertools.product(*TRIED):
        if D <= threads * entries < 2 * D:
            groups = dict.fromkeys(("FORWARD_GROUPS", "BACKWARD_GROUPS"), {D: (threads, entries)})
            tables.append(groups | {"REGISTERS": {}, "MOST_REGISTERS": registers})
    fastest = [rung for rung in ladder if rung[1] in FASTEST]
    return [
        (which, str(table), mock.patch.multiple(instances, **table)(call))
        for table, (which, _, call) in itertools.product(tables, fastest)
    ]


def copies(cupy, rows, D):
    """Return rungs that copy, in two ways, so that as many bytes are moved as each pass must."""
    found = []
    for which in ("forward", "backward"):
        size = minimum_bytes(which, rows, D) // 8  # floats, each read and written
        source, target = cupy.zeros(size, np.float32), cupy.zeros(size, np.float32)
        from_device = functools.partial(target.data.copy_from_device, source.data, source.nbytes)
        elementwise = functools.partial(cupy.negative, source, out=target)
        found += [(which, "copy", from_device), (which, "copy, elementwise", elementwise)]
    return found


def time_call(cupy, call):
    """Time a call: return its median, p10 and p90 in microseconds, as a dict."""
    spin = cupy.RawKernel(SPIN, "spin")
    cold, sink = cupy.zeros(FLUSH // 4, np.float32), cupy.zeros((), np.float32)
    call()  # compiles, and fills CuPy's pool of memory
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(REPEATS)]
    for start, end in pairs:
        spin((1,), (1,), (np.int64(SPIN_CYCLES),))
        cold.sum(out=sink)
        start.record()
        call()
        end.record()
    pairs[-1][1].synchronize()
    times = [1000 * cupy.cuda.get_elapsed_time(*pair) for pair in pairs]
    return dict(zip(("p10", "microseconds", "p90"), np.percentile(times, (10, 50, 90)).tolist()))


def require_close(rung, results, expected):
    """Raise AssertionError if the results of a rung are not what another rung returns."""
    for got, right in zip(results, expected):
        error = float(abs(got - right).max() / abs(right).max())
        if not error <= LARGEST_ERROR:
            raise AssertionError(f"{rung} is wrong: a relative error of {error:.0e}")


def measure(cupy, rows, D, tune=False):
    """Time every rung at one shape, and copies before and after; return a dict for each."""
    given = [cupy.asarray(array) for array in random_arrays((rows, D), np.float32)]
    expected, measured = {}, []
    end = time.perf_counter() + WARM_UP
    while time.perf_counter() < end:
        given[0].copy()
        cupy.cuda.Device().synchronize()
    copying, ladder = copies(cupy, rows, D), rungs(*given)
    tuned = configurations(ladder, D) if tune else []
    for which, rung, call in [*copying, *ladder, *tuned, *copying]:
        one = {"rows": rows, "D": D, "pass": which, "rung": rung}
        measured.append(one)
        try:
            results = call()
        except Exception as error:  # not for inputs as large as this, or too many registers
            one["failed"] = str(error)
            continue
        if isinstance(results, tuple):  # the textbook's come first; y comes with a cache
            results = results[:1] if which == "forward" else results
            require_close(rung, results, expected.setdefault(which, results))
        size = 12 * rows * D if rung == "add" else minimum_bytes(which, rows, D)
        one |= time_call(cupy, call)
        one["GB/s"] = size / one["microseconds"] / 1e3
    timed = [one for one in measured if "failed" not in one]
    for one in timed:
        same = [t for t in timed if t["pass"] == one["pass"] and t["rung"].startswith("copy")]
        one["fraction of copy"] = min(t["microseconds"] for t in same) / one["microseconds"]
    return measured


def describe_gpu(cupy):
    """Return what the numbers depend on."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "device": properties["name"].decode(),
        "multiprocessors": properties["multiProcessorCount"],
        "L2 bytes": properties["l2CacheSize"],
        "driver": runtime.driverGetVersion(),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def main(words=None):
    """Run the benchmark; return the exit status: 1 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m lnlib.gpu.benchmark", description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--tune", action="store_true", help="try configurations of the kernels")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="ROWSxD")
    asked = parser.parse_args(words)
    print(live.status())
    if not live.available():
        return 1
    cupy = live.backend().xp
    if asked.save:
        asked.save.parent.mkdir(parents=True, exist_ok=True)
    record = describe_gpu(cupy) | {"measured": []}
    for shape in asked.shapes:
        measured = measure(cupy, *map(int, shape.split("x")), asked.tune)
        record["measured"] += measured
        if asked.save:  # after each shape: what was measured is not lost if the rest fails
            asked.save.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"\nrows x D = {shape}: median (p10, p90), rate by minimum bytes, fraction of copy")
        for one in measured:
            print(f"  {one['pass']:8} {one['rung']:56}", one.get("failed") or FIGURES.format(**one))
    return 0


if __name__ == "__main__":
    sys.exit(main())
