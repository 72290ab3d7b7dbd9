"""Time every way to compute the layer on this GPU: python -m lnlib.gpu.bench [--tune] [--save FILE]

Each is timed between two events, after a spin that gives Python time to queue all its launches,
and after 256 MB were read, so that nothing it needs is left in the GPU's cache. The median of 30
runs is compared with a copy that moves as many bytes as the pass must move at least: the fastest of
two kinds of copy, each measured before everything else and after it. With --tune only the kernels
of lnlib are timed, in many configurations.
"""

import argparse
import datetime
import functools
import itertools
import json
import platform
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


def rungs(dy, x, gamma, beta, eps=1e-5):
    """Return (pass, name, function of no arguments) for every rung of the ladder at this shape."""
    reference = reference_forward(x, gamma, beta, eps)[1]
    cache = launch.layer_norm_forward(x, gamma, beta, eps)[1]
    forward = functools.partial(launch.layer_norm_forward, x, gamma, beta, eps)
    backward = functools.partial(launch.layer_norm_backward, dy, cache)
    slow = "reference on CuPy arrays"
    return [
        ("forward", slow, functools.partial(reference_forward, x, gamma, beta, eps)),
        ("forward", "x read four times", lambda: forward(kernel="forward_looping", width=1)),
        ("forward", "row in registers", lambda: forward(width=1)),
        ("forward", "row in registers, 16-byte loads", forward),
        ("backward", slow, functools.partial(reference_backward, dy, reference)),
        ("backward", "atomics", lambda: backward(kernel="backward_atomic")),
        ("backward", "two stages, 4-byte loads", lambda: backward(width=1)),
        ("backward", "two stages", backward),
        ("backward", "single launch", lambda: backward(kernel="backward_single")),
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
        times = [1000 * cupy.cuda.get_elapsed_time(*pair) for pair in pairs]
        found = np.percentile(times, (50, 10, 90)).tolist()
        return dict(zip(("microseconds", "p10", "p90"), found))

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


def warm_up(cupy, call):
    """Keep the GPU busy until its clock has risen."""
    end = time.perf_counter() + WARM_UP
    while time.perf_counter() < end:
        call()
        cupy.cuda.Device().synchronize()


def measure(cupy, rows, D, measure_call):
    """Time copies, add and every rung at one shape; return a list of dicts."""
    given, truth = arrays(cupy, rows, D)
    dy, x = given[:2]
    add = functools.partial(cupy.add, x, dy, out=cupy.empty(x.shape, x.dtype))
    warm_up(cupy, add)
    plain = copies(cupy, rows, D)
    first, last = (
        [(which, f"{kind}, {when}", call) for which, kind, call in plain]
        for when in ("first", "last")
    )
    measured = []
    for which, rung, call in [*first, ("backward", "add", add), *rungs(*given), *last]:
        one = {"rows": rows, "D": D, "pass": which, "rung": rung, "errors": {}}
        try:
            results = call()
        except ValueError:  # a kernel that is not for inputs as large as this
            continue
        if isinstance(results, tuple):  # of one of the passes
            one["errors"] = errors(which, results, truth)
            if not max(one["errors"].values()) < SANE:  # the time of a wrong result is of no use
                raise AssertionError(f"{rung} is wrong at {rows} x {D}: {one['errors']}")
        one |= measure_call(call)
        size = 12 * rows * D if rung == "add" else minimum_bytes(which, rows, D)
        measured.append(one | {"GB/s": size / one["microseconds"] / 1e3})
    for which in ("forward", "backward"):
        mine = [one for one in measured if one["pass"] == which]
        ceiling = min(one["microseconds"] for one in mine if one["rung"].startswith("copy"))
        for one in mine:
            one["fraction of copy"] = ceiling / one["microseconds"]
    return measured


def candidates(which, D, width, limit):
    """Return the configurations to try for rows of D entries."""
    found = {}
    block_sizes, held, kept = (32, 64, 128, 256, 512, 1024), (4, 8, 16, 24, 32), (64, 80, 96, 128)
    for threads, entries, registers in itertools.product(block_sizes, held, kept):
        if D <= threads * entries < 2 * D and entries % width == 0:
            chosen = passes.instance(which, threads, entries, width, limit, registers=registers)
            if chosen:  # of the forward pass the same for any number of registers
                found[chosen.expression] = chosen
    return list(found.values())


def tune(cupy, rows, D, measure_call, keep):
    """Try configurations at one shape; keep(dict) is called with each as soon as it is measured."""
    (dy, x, gamma, beta), truth = arrays(cupy, rows, D)
    on_gpu = launch.machine()
    forward = functools.partial(passes.forward, on_gpu, x, gamma, beta, 1e-5)
    backward = functools.partial(passes.backward, on_gpu, dy, forward()[1])
    warm_up(cupy, forward)
    times = [(which, measure_call(call)) for which, _, call in copies(cupy, rows, D)]
    for which, call in ("forward", forward), ("backward", backward):
        copy = min(time["microseconds"] for copied, time in times if copied == which)
        first = candidates(which, D, 4 if D % 4 == 0 else 1, on_gpu.shared_limit())
        tried = []
        for chosen in itertools.chain(first, variations(tried) if which == "backward" else ()):
            one = {"rows": rows, "D": D, "pass": which} | chosen._asdict()
            one |= attempt(functools.partial(call, chosen=chosen), which, truth, measure_call)
            if "failed" not in one:
                one["fraction of copy"] = copy / one["microseconds"]
                if max(one["errors"].values()) <= PROMISE:
                    tried.append((one["microseconds"], chosen))
            keep(one)
        print(f"{which} at {rows} x {D}, a copy takes {copy:.1f} us:")
        for microseconds, chosen in sorted(tried):
            print(
                f"  {microseconds:9.1f} us {copy / microseconds:6.2f}  {chosen.expression}"
                f" waves {chosen.waves}, {chosen.columns} columns"
            )


def variations(tried):
    """Yield the fastest configuration, when all have been tried, with other second stages."""
    for waves, columns in ((2, 8), (3, 8), (1, 16), (1, 32)) if tried else ():
        yield min(tried)[1]._replace(waves=waves, columns=columns)


def attempt(call, which, truth, measure_call):
    """Run and time one configuration; return its errors and times, or how it failed."""
    try:
        return {"errors": errors(which, call(), truth)} | measure_call(call)
    except Exception as error:  # too many registers, say: the next may be right
        return {"failed": f"{type(error).__name__}: {error}"}


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
