"""The layer as compiled loops: what lessons 06 and 07 compare NumPy with.

The loops are in compiled.cpp. A streaming store writes a line of memory that is not read first.
"""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from .emulator import compiler

SOURCE = Path(__file__).with_suffix(".cpp").read_text(encoding="utf-8")
FLAGS = "-std=c++17 -O3 -march=native -fno-math-errno -Wno-psabi -shared -fPIC -x c++ -".split()
LINE = 64  # bytes: streaming stores fill whole lines


@functools.cache
def load(*flags):
    """Compile compiled.cpp, with more flags for the compiler.

    Returns
    -------
    call : callable, or None
        call(name, *arguments) runs one of its functions on the addresses of C-contiguous arrays,
        and integers. None where there is no compiler, or it fails.
    """
    if compiler() is None:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [*compiler(), "-o", f"{folder}/compiled.so", *flags, *FLAGS]
        done = subprocess.run(command, input=SOURCE.encode(), capture_output=True)
        try:
            library = None if done.returncode else ctypes.CDLL(f"{folder}/compiled.so")
        except OSError:  # the folder may hold no programs
            return None

    def call(name, *arguments):
        if not all(a.flags.c_contiguous for a in arguments if isinstance(a, np.ndarray)):
            raise ValueError(f"the arrays of {name} must be C-contiguous")
        is_array = [isinstance(a, np.ndarray) for a in arguments]
        kinds = [ctypes.c_void_p if array else ctypes.c_long for array in is_array]
        library[name](*(k(getattr(a, "ctypes", a).data if k is ctypes.c_void_p else a) for k, a in zip(kinds, arguments)))

    return call if library else None


def empty(shape):
    """Return a float32 array that begins on a line of memory, its values arbitrary."""
    size = int(np.prod(shape))
    values = np.empty(size + LINE // 4, np.float32)
    start = -values.ctypes.data % LINE // 4
    return values[start : start + size].reshape(shape)
