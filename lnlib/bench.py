"""Time the layer against the textbook's.

All variants of a shape are timed in turn, in one process, over and over, and the medians compared:
what disturbs one of them disturbs the others.
"""

import ctypes
import os
import subprocess
import tempfile
import time

import numpy as np

from . import blocked, layernorm, textbook
from .gpu.emulator import compiler

# The processor's time does not count what other programs do; not every system measures it finely.
FINE = time.get_clock_info("process_time").resolution < 1e-7
clock = time.process_time if FINE else time.perf_counter


def medians(functions, seconds=1.0):
    """Time functions side by side.

    Parameters
    ----------
    functions : dict of str to callable
        Called without arguments, in turn.
    seconds : float
        For all of them together; each is timed at least three times.

    Returns
    -------
    dict of str to float
        The median time of one call, in seconds: of the processor, where the system measures it.
    """
    calls = {}
    for name, function in functions.items():  # also the warm-up
        start = clock()
        function()
        calls[name] = int(1e-3 / (clock() - start)) + 1  # a millisecond at least
    times = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[name]) < 3:
        for name, function in functions.items():
            start = clock()
            for _ in range(calls[name]):
                function()
            times[name].append((clock() - start) / calls[name])
    return {name: float(np.median(values)) for name, values in times.items()}


def native(source):
    """Compile C++ functions that take addresses of arrays, then N and D, as long.

    Parameters
    ----------
    source : str

    Returns
    -------
    callable or None
        Takes a function's name and its arrays, C-contiguous; the first is (N, D). None if there is
        no compiler: see `lnlib.gpu.emulator.compiler`.
    """
    command = compiler()
    if command is None:
        return None
    # Not -ffast-math: with -shared it switches off subnormals in the whole process.
    flags = ["-O3", "-march=native", "-fassociative-math", "-fno-signed-zeros"]
    flags += ["-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC", "-x", "c++", "-"]
    source = f'#include <math.h>\nextern "C" {{\n{source}\n}}\n'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "functions.so")
        subprocess.run([*command, "-o", path, *flags], input=source, text=True, check=True)
        library = ctypes.CDLL(path)

    def call(name, *arrays):
        addresses = (ctypes.c_void_p(a.ctypes.data) for a in arrays)
        library[name](*addresses, *map(ctypes.c_long, arrays[0].shape))

    return call


def both_passes(forward, backward, arrays):
    """Return a function that runs forward and backward on arrays = (dy, x, gamma, beta)."""
    dy, x, gamma, beta = arrays

    def run():
        _, cache = forward(x, gamma, beta)
        backward(dy, cache)

    return run


def random_arrays(shape, dtype, seed=0):
    """Return dy, x, gamma and beta, with means that are not zero."""
    rng = np.random.default_rng(seed)
    shapes = shape, shape, shape[-1:], shape[-1:]
    return [(0.5 + rng.standard_normal(s)).astype(dtype) for s in shapes]


def compare(shape, dtype, seconds=1.0):
    """Median seconds of forward and backward, by variant; "copy" moves as many bytes as it must.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype
    seconds : float
        As for `medians`.

    Returns
    -------
    dict of str to float
        For the textbook forms, the reference, blocked, blocked with out=, and a copy.
    """
    arrays = dy, x, gamma, beta = random_arrays(shape, dtype)
    out_y, out_dx = np.empty_like(x), np.empty_like(x)

    def with_out():
        _, cache = blocked.layer_norm_forward(x, gamma, beta, out=out_y)
        blocked.layer_norm_backward(dy, cache, out=out_dx)

    def copy():  # forward reads x and writes y, backward reads x and dy and writes dx
        np.copyto(out_y, x)
        np.copyto(out_dx, dy)
        half = x.size // 2
        np.copyto(out_dx.ravel()[:half], x.ravel()[:half])

    functions = {name: both_passes(*form, arrays) for name, form in textbook.FORMS.items()}
    for name, module in (("reference", layernorm), ("blocked", blocked)):
        passes = module.layer_norm_forward, module.layer_norm_backward
        functions[name] = both_passes(*passes, arrays)
    return medians(functions | {"out=": with_out, "copy": copy}, seconds)
