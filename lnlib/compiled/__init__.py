"""The layer as compiled loops, in float32: what lessons 06 and 07 compare NumPy with.

The loops are in compiled.cpp: forward, backward, and a copy. They centre each row twice, and
write with streaming stores where they are asked to. The promise of `lnlib.layernorm`
holds for rows whose squares neither overflow nor underflow. A fourth, for lesson 09, walks through
memory in the order that an array says. `plain`, for lesson 07, is a layer as a beginner writes it.
"""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from ..emulator import compiler

SOURCE = Path(__file__).with_name("compiled.cpp").read_text(encoding="utf-8")
FLAGS = "-std=c++17 -O3 -march=native -fno-math-errno -Wno-psabi -shared -fPIC -x c++ -".split()
LINE = 64  # bytes: what a streaming store fills is whole lines of memory


@functools.cache
def load(*flags):
    """Compile compiled.cpp.

    Parameters
    ----------
    *flags : str
        More options for the compiler.

    Returns
    -------
    call : callable, or None
        call(name, *arguments) runs a function of compiled.cpp on C-contiguous, aligned arrays, of
        which it gets the addresses, and integers. None where there is no compiler, or it fails.
    """
    if compiler() is None:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [*compiler(), *flags, "-o", f"{folder}/compiled.so", *FLAGS]
        try:
            subprocess.run(command, input=SOURCE.encode(), capture_output=True, check=True)
            library = ctypes.CDLL(f"{folder}/compiled.so")
        except (OSError, subprocess.CalledProcessError):
            return None

    def call(name, *arguments):
        arrays = [isinstance(a, np.ndarray) for a in arguments]
        layouts = [a.flags for a, is_array in zip(arguments, arrays) if is_array]
        if not all(f.c_contiguous and f.aligned for f in layouts):
            raise ValueError(f"the arrays of {name} must be C-contiguous and aligned")
        given = [
            ctypes.c_void_p(a.ctypes.data) if is_array else ctypes.c_long(int(a))
            for a, is_array in zip(arguments, arrays)
        ]
        getattr(library, name)(*given)

    return call


def empty(shape):
    """Return a float32 array, its values arbitrary, that begins with a line of memory."""
    values = np.empty(np.prod(shape) + LINE // 4, np.float32)
    start = -values.ctypes.data % LINE // 4
    return values[start : start + np.prod(shape)].reshape(shape)


def run_forward(call, x, gamma, beta, y, stream=True):
    """Write y, (N, D) in float32 as x is; return mean, its rest and rstd of each row, (3, N)."""
    N, D = x.shape
    rows = np.empty((3, N), np.float32)
    call("forward", x, gamma, beta, y, *rows, N, D, stream, D)
    return rows


def run_backward(call, dy, x, gamma, rows, dx, stream=True):
    """Write dx, (N, D) in float32 as dy and x are; return dgamma and dbeta, float64."""
    N, D = x.shape
    sums = np.zeros((2, D))
    call("backward", dy, x, gamma, *rows, dx, *sums, N, D, stream)
    return sums


def run_both(call, dy, x, gamma, beta, y, dx, stream=True):
    """Write y and dx; return dgamma and dbeta: `run_forward`, then `run_backward`."""
    rows = run_forward(call, x, gamma, beta, y, stream)
    return run_backward(call, dy, x, gamma, rows, dx, stream)
