"""Launches of the kernels, for several tests: by the emulator, changed, and with half types."""

import functools
from importlib.util import find_spec

import numpy as np
import pytest
from layers import data
from oracle import AT_LARGE, Results, promised

from lnlib import gpu
from lnlib.gpu import dispatch, emulated, passes

BACKWARD = ["backward", "backward_single", "backward_atomic", "backward_looping"]
LOOPING = "row_means", "backward_columns"  # the kernels of backward_looping
SIZES = [1, 2, 7, 31, 32, 33, 127, 1000, 1024, 4097, 8192, 16384, 20000]
HALF_TYPES = [name for name in dispatch.STORED if name != "float32" and hasattr(np, name)]
NUMBERS = {  # how the bits of a type are read
    "float16": lambda bits: bits.view(np.float16),
    "uint16": lambda bits: (bits.astype(np.uint32) << 16).view(np.float32),
}
NUMBERS["bfloat16"] = NUMBERS["uint16"]
T4 = 64 * 1024  # bytes of shared memory that a block can have

needs_nvrtc = pytest.mark.skipif(not find_spec("cupy"), reason="needs CuPy's NVRTC")
mixed_types = pytest.mark.parametrize("mixed", [False, True], ids=["", "gamma float32"])


def arrays(shape, **how):
    return data(shape, np.float32, **how)


def emulate(dy, x, gamma, beta, eps=1e-5, order="forward", kernel="backward", width=None):
    y, cache = gpu.emulate_forward(x, gamma, beta, eps, order=order, width=width)
    return Results(y, *gpu.emulate_backward(dy, cache, order=order, kernel=kernel, width=width))


def emulate_backward_changed(source, changed, dy, cache, order="forward"):
    """Run the backward pass with another source for one of its kernels; no other is compiled."""
    usual, other = emulated.backend(order), emulated.backend(order, source)

    def run(chosen, *launch):
        (other if chosen.kernel == changed else usual).run(chosen, *launch)

    kernel = "backward_looping" if changed in LOOPING else changed
    kernel = kernel if kernel in BACKWARD else "backward"
    return passes.backward(usual._replace(run=run), dy, cache, kernel)


@functools.cache
def numbers_of(name):
    """Return the finite numbers >= 0 of a type of two bytes, in the order of their bits."""
    assert name in NUMBERS, f"NUMBERS needs how the bits of {name} are read"
    numbers = NUMBERS[name](np.arange(2**15, dtype=np.uint16))
    return numbers[np.isfinite(numbers)].astype(np.float64)


def to_stored(a, name):
    """Round numbers to the nearest of a type, by a search in all that it has."""
    numbers = numbers_of(name)
    nearest = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(a))
    return (nearest | np.signbit(a).astype(int) << 15).astype(np.uint16).view(name)


def to_float(a):
    """Return numbers of a half type, or of float32, in float64."""
    if a.dtype == np.float32:
        return a.astype(np.float64)
    bits = a.view(np.uint16)
    return numbers_of(a.dtype.name)[bits % 2**15] * np.where(bits < 2**15, 1, -1)


def assert_rounded_once(run, name, mixed, rows, D):
    """Each entry is within half an ulp, but for the promise of the float32 arithmetic.

    If mixed, gamma and beta are float32, and so are dgamma and dbeta.
    """
    given, numbers = arrays((rows, D), seed=D, offset=3), numbers_of(name)
    dy, x, *parameters = (to_stored(a, name) for a in given)
    case = dy, x, *(given[2:] if mixed else parameters)
    right, _ = promised(*map(to_float, case))
    for result, exact in zip(run(*case), right):
        bound = 2 * AT_LARGE * np.abs(exact).max()
        assert result.dtype == (np.float32 if mixed and result.ndim == 1 else name)
        if result.dtype == name:
            k = np.searchsorted(numbers, np.abs(exact))  # the neighbours are numbers k - 1 and k
            bound = bound + (numbers[k] - numbers[np.maximum(k - 1, 0)]) / 2  # half an ulp
        assert (np.abs(to_float(result) - exact) <= bound).all()
