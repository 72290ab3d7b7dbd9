"""Lesson 06: a residual addition fused into the kernel."""

import re

import numpy as np

from ..gpu import read_source
from ..layernorm import layer_norm_forward
from .checker import Score, exercise, mistakes
from .data import layer
from .kernels import code_of, launch, refuse_nan, source_of

KERNELS = {64: "add_forward<64, 4, 4>", 32: "add_forward<32, 8, 1>"}
SHORT_START = re.compile(  # an int that gets start, or start itself; a remainder of it would do
    r"(?<!long )\b(?:int|unsigned)\b[^;=,()%&<>]*(?:=(?:[^;%&<>=]|=(?!=))*)?\bstart\b"
    r"(?!\s*[%&<>=])[^;,]*"
)


def _residual_kernel():
    """Return layernorm.cu, and its forward kernel with load_sum in place of load.

    The registers of the row are NaN before, so that those which nobody fills can be seen.
    """
    source = read_source()
    first = source.rindex("template", 0, source.index(" forward("))
    kernel = source[first : source.index("\n}\n", first) + 3]
    for old, new in (
        (" forward(", " add_forward("),
        ("const Vector<WIDTH, T> *x,", "const Vector<WIDTH> *a, const Vector<WIDTH> *b,"),
        ("Vector<WIDTH, T> *__restrict__ y,", "Vector<WIDTH> *s, Vector<WIDTH> *__restrict__ y,"),
        ("load<THREADS>(x, start, vectors, xc)", "load_sum<THREADS>(a, b, s, start, vectors, xc)"),
        (
            "xc[VECTORS];\n",
            'xc[VECTORS];\n    for (auto &v : xc) for (float &f : v.at) f = nanf("");\n',
        ),
    ):
        assert kernel.count(old) == 1
        kernel = kernel.replace(old, new)
    return source, kernel


def _residual(D=1000):
    """Return a, b, gamma and beta in float32; b has another mean than a."""
    one, other = layer(64, 5, D), layer(65, 5, D, spread=0.5)
    arrays = one.x, other.dy + 3, one.gamma, one.beta
    return dict(zip(("a", "b", "gamma", "beta"), (x.astype(np.float32) for x in arrays)))


def _launch_residual(function, threads=64, D=1000, counts=None):
    before, after = _residual_kernel()
    pieces, inputs = (before, source_of(function(), "load_sum"), after), _residual(D)
    rows = len(inputs["a"])
    shapes = {"s": (rows, D), "y": (rows, D)}
    shapes |= {name: (rows, 1) for name in ("mean", "mean_lo", "rstd")}
    numbers = {"eps": np.float32(1e-5), "D": np.int32(D)}
    results = launch(pieces, KERNELS[threads], rows, threads, inputs, shapes, numbers, counts)
    refuse_nan(results, "s")
    return results["s"], results["y"]


def _normalised(s, D=1000):
    _, _, gamma, beta = _residual(D).values()
    return layer_norm_forward(*(v.astype(np.float64) for v in (s, gamma, beta)))[0]


def _still_wrong(function):
    """Say what is wrong with a kernel whose numbers are right, or how many bytes it moves."""
    counts = {}
    _launch_residual(function, counts=counts)
    each = {k: (counts[k].loaded + counts[k].stored) / 5000 for k in ("a", "b", "s", "y")}
    if sum(each.values()) > 16.5:
        more = [f"{each[name]:.3g} of {name}" for name in each if each[name] > 4.1]
        back = " What is written to s is still in registers." if counts["s"].loaded else ""
        return (
            f"The numbers are right, but it moves {sum(each.values()):.3g} bytes per element, "
            f"{', '.join(more)}, where 16 are enough, 4 of each array.{back}"
        )
    for threads, D, why in (
        (32, 250, "32 threads with 8 vectors of 1: use THREADS, VECTORS and WIDTH"),
        (64, 100, "rows of 100, where threads are left over: fill their row with zero too"),
    ):
        s = _residual(D)["a"] + _residual(D)["b"]
        mine = _launch_residual(function, threads, D)
        if not all(np.allclose(a, b, atol=1e-4) for a, b in zip(mine, (s, _normalised(s, D)))):
            return f"Right for 64 threads with 4 vectors of 4 and rows of 1000, but not for {why}."
    if short := SHORT_START.search(code_of(function())):
        return (
            f"Right for these rows. But an int ends at 2**31, and {short[0]} cuts start, which is "
            "a long long because arrays may have more vectors than that. Keep the sum in the "
            "index: s[start + i]."
        )
    return Score("16 bytes per element, in three orders of the threads.")


@exercise(
    "s y",
    lambda: {"five rows of 1000": ()},
    rtol=1e-5,
    prepare=lambda function: lambda: _launch_residual(function),
    judge=_still_wrong,
)
@mistakes("""
    return s => return np.nan * s  # nobody writes it.
    s = a + b => s = a  # b is not added.
    s = a + b => s = b  # a is not added.
    _normalised(s) => _normalised(a)  # made from a alone: the sum must stay in row.
    _normalised(s) => _normalised(b)  # made from b alone: the sum must stay in row.
    _normalised(s) => np.nan * s  # row is not filled, here or in padding, which must be zero.
    return s => return np.where(np.arange(1000) < 256, s, np.nan)  # each thread writes one vector.
    a + b => a + a  # a is added twice, and b not at all.
    a + b => a + b[:1]  # row 0 of b is added to every row: b begins at start too.
""")
def add_while_loading():
    """Return what the solution's CUDA computes, with NumPy: s = a + b, and y."""
    a, b, _, _ = _residual().values()
    s = a + b  # (5, 1000)
    return s, _normalised(s)
