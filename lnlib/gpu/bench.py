"""Time every way to compute the layer on this GPU: python -m lnlib.gpu.bench [--tune] [--save FILE]

Each is timed between two events, after a spin that gives Python time to queue all its launches,
and after 256 MB were read, so that nothing it needs is left in the GPU's cache. The median of 30
runs is compared with a copy that moves as many bytes as the pass must move at least: the fastest of
two kinds of copy, each measured before everything else and after it. With --tune only the kernels
of lnlib are timed, in many configurations.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from . import launch, passes

SHAPES = [(8192, 768), (8192, 1024), (16384, 2048), (8192, 4096), (4096, 8192), (2048, 16384)]
REPEATS = 30
WARM_UP = 0.5  # seconds per shape, until the GPU's clock has risen
PROMISE, SANE = 4e-7, 1e-4  # largest errors: of a configuration to choose, of anything timed
FLUSH = 256 * 2**20  # bytes
SPIN = 'extern "C" __global__ void spin(long long n) { for (n += clock64(); clock64() < n;); }'
SPIN_CYCLES = 4_000_000  # about 2 ms


def minimum_bytes(which, rows, D):
    """Return the bytes that a pass must move: every input read once, every output written once."""
    arrays, vectors = {"forward": (2, 2), "backward": (3, 3)}[which]
    return 4 * (arrays * rows * D + vectors * D) + 3 * 4 * rows


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

    return [
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


def timer(cupy):
    """Return a function that times a call: its median, p10 and p90 in microseconds, as a dict."""
    spin = cupy.RawKernel(SPIN, "spin")
    cold = cupy.zeros(FLUSH // 4, np.float32)
    sink = cupy.zeros((), np.float32)

    def measure_call(call):
        call()  # compiles, and fills CuPy's pool of memory
        pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(REPEATS)]
        for start, end in pairs:
            spin((1,), (1,), (np.int64(SPIN_CYCLES),))
            cold.sum(out=sink)
            start.record()
            call()
            end.record()
        pairs[-1][1].synchronize()
        times = sorted(1000 * cupy.cuda.get_elapsed_time(*pair) for pair in pairs)
        tenth = len(times) // 10
        return {
            "microseconds": statistics.median(times), "p10": times[tenth], "p90": times[-1 - tenth],
        }  # fmt: skip

    return measure_call


def arrays(cupy, rows, D):
    """Return dy, x, gamma, beta, and the right y, dx, dgamma and dbeta in float64."""
    rng = np.random.default_rng(0)
    dy, x = (cupy.asarray(rng.standard_normal((rows, D), np.float32)) for _ in range(2))
    gamma, beta = (cupy.asarray(rng.uniform(0.5, 2, D).astype(np.float32)) for _ in range(2))
    wide = [a.astype(np.float64) for a in (dy, x, gamma, beta)]
    y, cache = reference_forward(*wide[1:], float(np.float32(1e-5)))
    return (dy, x, gamma, beta), (y, *reference_backward(wide[0], cache))


def errors(which, results, truth):
    """Return {name: largest error, relative to the largest entry} for all results of a pass."""
    names = {"forward": ("y",), "backward": ("dx", "dgamma", "dbeta")}[which]
    right = truth[:1] if which == "forward" else truth[1:]
    return {
        name: float(abs(result - exact).max() / abs(exact).max())
        for name, result, exact in zip(names, results, right)
    }


def copies(cupy, size, measure_call):
    """Time the two ways to copy: size counts what is read and what is written."""
    source, target = (cupy.zeros(size // 8, np.float32) for _ in range(2))
    return {
        "copy": measure_call(lambda: target.data.copy_from_device(source.data, source.nbytes)),
        "copy, elementwise": measure_call(lambda: cupy.negative(source, out=target)),
    }


def warm_up(cupy, call):
    """Keep the GPU busy until its clock has risen."""
    end = time.perf_counter() + WARM_UP
    while True:
        call()
        cupy.cuda.Device().synchronize()
        if time.perf_counter() > end:
            return


def measure(cupy, rows, D, measure_call):
    """Time copies, add and every rung at one shape; return a list of dicts."""
    given, truth = arrays(cupy, rows, D)
    dy, x = given[:2]
    total = cupy.empty(x.shape, x.dtype)
    sizes = {which: minimum_bytes(which, rows, D) for which in ("forward", "backward")}
    measured = []

    def add(which, rung, times, size, wrong=None):
        measured.append(
            {"rows": rows, "D": D, "pass": which, "rung": rung} | times
            | {"GB/s": size / times["microseconds"] / 1e3, "errors": wrong or {}}
        )  # fmt: skip

    def add_copies(when):
        for which, size in sizes.items():
            for kind, times in copies(cupy, size, measure_call).items():
                add(which, f"{kind}, {when}", times, size)

    warm_up(cupy, lambda: cupy.add(x, dy, out=total))
    add_copies("first")
    times = measure_call(lambda: cupy.add(x, dy, out=total))
    add("backward", "add", times, 12 * rows * D)
    for which, name, call in rungs(cupy, *given):
        try:
            results = call()
        except ValueError:  # a kernel that is not for inputs as large as this
            continue
        wrong = errors(which, results, truth)
        if not max(wrong.values()) < SANE:  # the time of a wrong result is of no use
            raise AssertionError(f"{name} is wrong at {rows} x {D}: {wrong}")
        add(which, name, measure_call(call), sizes[which], wrong)
    add_copies("last")
    for which in sizes:
        mine = [one for one in measured if one["pass"] == which]
        ceiling = min(one["microseconds"] for one in mine if one["rung"].startswith("copy"))
        for one in mine:
            one["fraction of copy"] = ceiling / one["microseconds"]
    return measured


def candidates(which, D, width, limit):
    """Return the configurations to try for rows of D entries."""
    found = {}
    for threads in (32, 64, 128, 256, 512, 1024):
        for entries in (4, 8, 16, 24, 32):
            if not D <= threads * entries < 2 * D or entries % width:
                continue
            block = threads * (passes.WARPS if threads == 32 else 1)
            for registers in (64, 80, 96, 128) if which == "backward" else (64,):
                blocks = max(1, 65536 // (registers * block))
                chosen = passes.instance(which, threads, entries, width, limit, blocks=blocks)
                if chosen:
                    found[chosen.expression] = chosen
    return list(found.values())


def tune(cupy, rows, D, measure_call, keep):
    """Try configurations at one shape; keep(dict) is called with each as soon as it is measured."""
    given, truth = arrays(cupy, rows, D)
    dy, x, gamma, beta = given
    on_gpu = launch.machine()
    cache = launch.layer_norm_forward(x, gamma, beta)[1]
    warm_up(cupy, lambda: launch.layer_norm_forward(x, gamma, beta))
    for which in ("forward", "backward"):
        size = minimum_bytes(which, rows, D)
        copy = min(t["microseconds"] for t in copies(cupy, size, measure_call).values())
        tried = []

        def attempt(chosen, which=which, copy=copy, tried=tried):
            def call():
                if which == "forward":
                    return passes.forward(on_gpu, x, gamma, beta, 1e-5, chosen=chosen)
                return passes.backward(on_gpu, dy, cache, chosen=chosen)

            one = {"rows": rows, "D": D, "pass": which} | chosen._asdict()
            try:
                one["errors"] = errors(which, call(), truth)
                one |= measure_call(call)
            except Exception as error:  # too many registers, say: the next may be right
                one["failed"] = f"{type(error).__name__}: {error}"
            else:
                one["fraction of copy"] = copy / one["microseconds"]
                if max(one["errors"].values()) <= PROMISE:
                    tried.append((one["microseconds"], chosen))
            keep(one)

        width = 4 if D % 4 == 0 else 1
        for chosen in candidates(which, D, width, on_gpu.shared_limit()):
            attempt(chosen)
        if which == "backward" and tried:
            best = min(tried)[1]
            for waves, columns in ((2, 8), (3, 8), (1, 16), (1, 32)):
                attempt(best._replace(waves=waves, columns=columns))
        print(f"{which} at {rows} x {D}, a copy takes {copy:.1f} us:")
        for microseconds, chosen in sorted(tried):
            print(
                f"  {microseconds:9.1f} us {copy / microseconds:6.2f}  {chosen.expression}"
                f" waves {chosen.waves}, {chosen.columns} columns"
            )


def machine(cupy):
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
        "numpy": np.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def main(words=None):
    """Run the benchmark; return the exit status: 1 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m lnlib.gpu.bench", description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--tune", action="store_true", help="try configurations of the kernels")
    parser.add_argument(
        "--shapes", type=_shape, nargs="+", default=SHAPES, metavar="ROWSxD", help="8192x1024 ..."
    )
    asked = parser.parse_args(words)
    print(launch.status())
    if not launch.available():
        return 1
    import cupy

    measure_call, record = timer(cupy), machine(cupy) | {"measured": []}

    def keep(*more):
        record["measured"].extend(more)
        if asked.save:  # as it goes: what was measured is not lost if the rest fails
            asked.save.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    for rows, D in asked.shapes:
        if asked.tune:
            tune(cupy, rows, D, measure_call, keep)
            continue
        keep(*measure(cupy, rows, D, measure_call))
        print(f"\n{rows} rows of {D}: median (p10, p90), rate by minimum bytes, fraction of copy")
        for one in record["measured"]:
            if (one["rows"], one["D"]) == (rows, D):
                print(
                    f"  {one['pass']:8} {one['rung']:32} {one['microseconds']:9.1f} us"
                    f" ({one['p10']:.1f}, {one['p90']:.1f}) {one['GB/s']:7.0f} GB/s"
                    f" {one['fraction of copy']:6.2f}"
                )
    return 0


def _shape(text):
    rows, D = text.split("x")
    return int(rows), int(D)


if __name__ == "__main__":
    sys.exit(main())
