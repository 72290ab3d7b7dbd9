"""Time every way to compute the layer on this GPU: python -m lnlib.gpu.bench [--save FILE]

Each is timed between two events, after a spin that gives Python time to queue all its launches,
and after 256 MB were read, so that nothing it needs is left in the GPU's cache. The median of 30
runs is compared with a copy that moves as many bytes as the pass must move at least.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
from pathlib import Path

import numpy as np

from ..layernorm import layer_norm_backward, layer_norm_forward
from . import launch

SHAPES = [(8192, 1024), (32768, 768), (32768, 1024), (8192, 4096), (4096, 8192), (2048, 16384)]
REPEATS = 30
FLUSH = 256 * 2**20  # bytes
SPIN = 'extern "C" __global__ void spin(long long n) { for (n += clock64(); clock64() < n;); }'
SPIN_CYCLES = 4_000_000  # about 2 ms


def minimum_bytes(which, rows, D):
    """Return the bytes that a pass must move: every input read once, every output written once."""
    arrays, vectors = {"forward": (2, 2), "backward": (3, 3)}[which]
    return 4 * (arrays * rows * D + vectors * D) + (8 + 4) * rows


def reference_forward(x, gamma, beta, eps):
    """Take the reference's steps, one kernel each, on CuPy or NumPy arrays."""
    xc = x - x.mean(axis=-1, keepdims=True)
    xc -= xc.mean(axis=-1, keepdims=True)
    rstd = 1 / ((xc * xc).mean(axis=-1, keepdims=True) + eps) ** 0.5
    x_hat = xc * rstd
    return gamma * x_hat + beta, (x_hat, rstd, gamma)


def reference_backward(dy, cache):
    """Take the reference's steps, one kernel each."""
    x_hat, rstd, gamma = cache
    g = gamma * dy
    g -= g.mean(axis=-1, keepdims=True)
    g -= x_hat * (g * x_hat).mean(axis=-1, keepdims=True)
    return rstd * g, (dy * x_hat).sum(axis=0), dy.sum(axis=0)


def fused(cupy):
    """Return the two passes with cupy.fuse: elementwise steps are merged, reductions are not."""

    @cupy.fuse()
    def square(xc, rest):
        return (xc - rest) * (xc - rest)

    @cupy.fuse()
    def normalise(xc, rest, rstd, gamma, beta):
        return gamma * ((xc - rest) * rstd) + beta

    @cupy.fuse()
    def normalise_only(xc, rest, rstd):
        return (xc - rest) * rstd

    @cupy.fuse()
    def combine(g, mean_g, x_hat, mean_gx, rstd):
        return rstd * (g - mean_g - x_hat * mean_gx)

    def forward(x, gamma, beta, eps):
        xc = x - x.mean(axis=-1, keepdims=True)
        rest = xc.mean(axis=-1, keepdims=True)
        rstd = 1 / (square(xc, rest).mean(axis=-1, keepdims=True) + eps) ** 0.5
        return normalise(xc, rest, rstd, gamma, beta), (xc, rest, rstd, gamma)

    def backward(dy, cache):
        xc, rest, rstd, gamma = cache
        x_hat, g = normalise_only(xc, rest, rstd), gamma * dy
        mean_g, mean_gx = (a.mean(axis=-1, keepdims=True) for a in (g, g * x_hat))
        return combine(g, mean_g, x_hat, mean_gx, rstd), (dy * x_hat).sum(axis=0), dy.sum(axis=0)

    return forward, backward


def rungs(cupy, dy, x, gamma, beta, eps=1e-5):
    """Return (pass, name, function of no arguments) for every rung of the ladder at this shape."""
    fused_forward, fused_backward = fused(cupy)
    reference = reference_forward(x, gamma, beta, eps)[1]
    part = fused_forward(x, gamma, beta, eps)[1]
    cache = launch.layer_norm_forward(x, gamma, beta, eps)[1]

    def forward(kernel, width=None):
        return lambda: launch.layer_norm_forward(x, gamma, beta, eps, kernel=kernel, width=width)

    def backward(kernel, width=None):
        return lambda: launch.layer_norm_backward(dy, cache, kernel=kernel, width=width)

    ladder = [
        ("forward", "reference on CuPy arrays", lambda: reference_forward(x, gamma, beta, eps)),
        ("forward", "cupy.fuse", lambda: fused_forward(x, gamma, beta, eps)),
        ("forward", "x read four times", forward("forward_looping", 1)),
        ("forward", "row in registers", forward("forward", 1)),
        ("forward", "row in registers, 16-byte loads", forward("forward")),
        ("backward", "reference on CuPy arrays", lambda: reference_backward(dy, reference)),
        ("backward", "cupy.fuse", lambda: fused_backward(dy, part)),
        ("backward", "atomics", backward("backward_atomic")),
        ("backward", "two stages, 4-byte loads", backward("backward", 1)),
        ("backward", "two stages", backward("backward")),
        ("backward", "single launch", backward("backward_single")),
    ]
    return [rung for rung in ladder if rung[1] != "atomics" or x.shape[-1] <= 8192]


def timer(cupy):
    """Return a function that times a call: microseconds, the median of REPEATS."""
    spin = cupy.RawKernel(SPIN, "spin")
    cold = cupy.zeros(FLUSH // 4, np.float32)
    sink = cupy.zeros((), np.float32)

    def time(call):
        call()  # compiles, and fills CuPy's pool of memory
        pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(REPEATS)]
        for start, end in pairs:
            spin((1,), (1,), (np.int64(SPIN_CYCLES),))
            cold.sum(out=sink)
            start.record()
            call()
            end.record()
        pairs[-1][1].synchronize()
        return statistics.median(1000 * cupy.cuda.get_elapsed_time(*pair) for pair in pairs)

    return time


def check(which, result, dy, x, gamma, beta, name):
    """Raise AssertionError if the first rows are wrong: the time of a wrong result is of no use."""
    some = [a[:8].get().astype(np.float64) for a in (dy, x)]
    y, cache = layer_norm_forward(some[1], *(a.get().astype(np.float64) for a in (gamma, beta)))
    truth = y if which == "forward" else layer_norm_backward(some[0], cache)[0]
    assert np.allclose(result[0][:8].get(), truth, rtol=1e-4, atol=1e-4), f"{name} is wrong"


def measure(cupy, rows, D, time):
    """Time copy, add and every rung at one shape; return a list of dicts."""
    rng = np.random.default_rng(0)
    dy, x = (cupy.asarray(rng.standard_normal((rows, D), np.float32)) for _ in range(2))
    gamma, beta = (cupy.asarray(rng.uniform(0.5, 2, D).astype(np.float32)) for _ in range(2))
    total = cupy.empty(x.shape, x.dtype)
    measured, copies = [], {}

    def add(which, rung, microseconds, size):
        measured.append(
            {
                "rows": rows, "D": D, "pass": which, "rung": rung, "microseconds": microseconds,
                "GB/s": size / microseconds / 1e3,
                "fraction of copy": copies[which] / microseconds,
            }
        )  # fmt: skip

    for which in ("forward", "backward"):
        size = minimum_bytes(which, rows, D)
        source = cupy.zeros(size // 8, np.float32)  # half of the bytes are read, half written
        target = cupy.zeros(size // 8, np.float32)
        copies[which] = time(lambda a=source, b=target: cupy.copyto(b, a))
        add(which, "copy", copies[which], size)
    add("backward", "add", time(lambda: cupy.add(x, dy, out=total)), 12 * rows * D)
    for which, name, call in rungs(cupy, dy, x, gamma, beta):
        check(which, call(), dy, x, gamma, beta, name)
        add(which, name, time(call), minimum_bytes(which, rows, D))
    return measured


def machine(cupy):
    """Return what the numbers depend on."""
    runtime = cupy.cuda.runtime
    return {
        "device": runtime.getDeviceProperties(runtime.getDevice())["name"].decode(),
        "driver": runtime.driverGetVersion(),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def main(words=None, shapes=SHAPES):
    """Run the benchmark; return the exit status: 1 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m lnlib.gpu.bench", description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the result as JSON")
    save = parser.parse_args(words).save
    print(launch.status())
    if not launch.available():
        return 1
    import cupy

    time, record = timer(cupy), machine(cupy) | {"measured": []}
    for rows, D in shapes:
        print(f"\n{rows} rows of {D}: time, rate by minimum bytes, fraction of copy")
        for one in measure(cupy, rows, D, time):
            record["measured"].append(one)
            print(
                f"  {one['pass']:8} {one['rung']:32} {one['microseconds']:9.1f} us"
                f" {one['GB/s']:7.0f} GB/s {one['fraction of copy']:6.2f}"
            )
    if save:
        save.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
