"""Time every way to compute the layer on this GPU: python -m lnlib.gpu.benchmark [--save FILE]

Each is timed between two events, after a spin that gives Python time to queue all its launches,
and after 256 MB were read, so that nothing it needs is left in the GPU's cache. The median of 30
runs is compared with a copy that moves as many bytes as the pass must move at least, and which is
timed first, in the same way. Kernels that take half types are also timed with them. The spin
takes a known number of cycles: its time gives the clock before each run.
"""

import argparse
import functools
import json
import sys
import time
from pathlib import Path

import numpy as np

from .. import textbook
from ..bench import random_arrays
from . import live

SHAPES = ["8192x768", "8192x1024", "16384x2048", "8192x4096", "4096x8192", "2048x16384"]
REPEATS = 30
FLUSH = 256 * 2**20  # bytes
SPIN = 'extern "C" __global__ void spin(long long n) { for (n += clock64(); clock64() < n;); }'
SPIN_CYCLES = 4_000_000  # about 2 ms
RUNGS = {  # name: pass, options
    "x read four times": ("forward", {"kernel": "forward_looping", "width": 1}),
    "row in registers": ("forward", {"width": 1}),
    "row in registers, 16-byte loads": ("forward", {}),
    "atomics": ("backward", {"kernel": "backward_atomic"}),
    "x and dy read twice": ("backward", {"kernel": "backward_looping"}),
    "two stages, 4-byte loads": ("backward", {"width": 1}),
    "two stages": ("backward", {}),
    "single launch": ("backward", {"kernel": "backward_single"}),
}
TYPES = {  # dtypes of x and of gamma; uint16 holds bfloat16
    "float32": ("float32", "float32"), "float16": ("float16", "float16"),
    "bfloat16": ("uint16", "uint16"), "bfloat16, gamma float32": ("uint16", "float32"),
}  # fmt: skip
FIGURES = "{microseconds:9.1f} us ({p10:.1f}, {p90:.1f}) {GB/s:7.0f} GB/s {fraction of copy:6.2f}"
FIGURES += " {GHz:5.2f} GHz"


def minimum_bytes(which, x, gamma):
    """Return the bytes that a pass must move: every input read once, every output written once."""
    arrays = 2 if which == "forward" else 3  # of each shape
    return arrays * (x.nbytes + gamma.nbytes) + 3 * 4 * (x.size // len(gamma))


def stored_as(dtype, array):
    """Return a float32 array in another dtype; as uint16, the bits of bfloat16."""
    return (array.view("uint32") >> 16 if dtype == "uint16" else array).astype(dtype)


def calls(cupy, dy, x, gamma, beta):
    """Return (pass, name, function of no arguments): a copy, the textbook, and every rung."""
    found, cache = [], live.layer_norm_forward(x, gamma, beta)[1]
    for which in ("forward", "backward"):
        size = minimum_bytes(which, x, gamma) // 8  # floats, each read and written
        source, target = cupy.zeros(size, np.float32), cupy.zeros(size, np.float32)
        copy = functools.partial(target.data.copy_from_device, source.data, source.nbytes)
        found.append((which, "copy", copy))
    if x.dtype == np.float32:
        forward, backward = textbook.FORMS["rstd"]
        kept = forward(x, gamma, beta, 1e-5)[1]
        found.append(("forward", "the textbook's", lambda: forward(x, gamma, beta, 1e-5)))
        found.append(("backward", "the textbook's", lambda: backward(dy, kept)))
    functions = {
        "forward": functools.partial(live.layer_norm_forward, x, gamma, beta),
        "backward": functools.partial(live.layer_norm_backward, dy, cache),
    }
    for rung, (which, options) in RUNGS.items():
        found.append((which, rung, functools.partial(functions[which], **options)))
    return found


def time_call(cupy, call):
    """Time a call: return its median, p10 and p90 in microseconds, and the clock, as a dict."""
    spin = cupy.RawKernel(SPIN, "spin")
    cold, sink = cupy.zeros(FLUSH // 4, np.float32), cupy.zeros((), np.float32)
    call()  # compiles, and fills CuPy's pool of memory
    events = [[cupy.cuda.Event() for _ in range(4)] for _ in range(REPEATS)]
    for spins, spun, start, end in events:
        spins.record()
        spin((1,), (1,), (np.int64(SPIN_CYCLES),))
        spun.record()
        cold.sum(out=sink)
        start.record()
        call()
        end.record()
    events[-1][-1].synchronize()
    times = [1000 * cupy.cuda.get_elapsed_time(*four[2:]) for four in events]
    spin_ms = np.median([cupy.cuda.get_elapsed_time(*four[:2]) for four in events])
    found = dict(zip(("p10", "microseconds", "p90"), np.percentile(times, (10, 50, 90)).tolist()))
    return found | {"GHz": float(SPIN_CYCLES / spin_ms / 1e6)}


def measure(cupy, rows, D):
    """Time everything at one shape; return a dict for each."""
    given, measured = random_arrays((rows, D), np.float32), []
    for name, (dtype, parameters) in TYPES.items():
        kinds = dtype, dtype, parameters, parameters
        dy, x, gamma, beta = (cupy.asarray(stored_as(*pair)) for pair in zip(kinds, given))
        copy = {}
        for which, rung, call in calls(cupy, dy, x, gamma, beta):
            one = {"rows": rows, "D": D, "pass": which, "rung": rung, "dtype": name}
            measured.append(one)
            try:
                one |= time_call(cupy, call)
            except Exception as error:  # not for inputs as large as this, or for this type
                one["failed"] = str(error)
                continue
            copy.setdefault(which, one["microseconds"])
            one["GB/s"] = minimum_bytes(which, x, gamma) / one["microseconds"] / 1e3
            one["fraction of copy"] = copy[which] / one["microseconds"]
    return measured


def describe_gpu(cupy):
    """Return what the numbers depend on."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "device": properties["name"].decode(),
        "arch": f"sm_{properties['major']}{properties['minor']}",
        "clock GHz": cupy.cuda.Device().attributes["ClockRate"] / 1e6,  # the highest
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
        measured = measure(cupy, *map(int, shape.split("x")))
        record["measured"] += measured
        if asked.save:  # after each shape: what was measured is not lost if the rest fails
            asked.save.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"\nrows x D = {shape}: median (p10, p90), rate by minimum bytes, of copy, clock")
        for one in measured:
            figures = one.get("failed") or FIGURES.format(**one)
            print(f"  {one['pass']:8} {one['dtype']:23} {one['rung']:31} {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
