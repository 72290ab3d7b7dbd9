"""Launches of the kernels, for several tests: by the emulator, changed, and with half types."""

from importlib.util import find_spec

import numpy as np
import pytest
from layers import data
from oracle import AT_LARGE, Results

import lnlib
from lnlib import gpu
from lnlib.gpu import dispatch, emulated, passes

ORDERS = ["forward", "reverse", 1]
BACKWARD = ["backward", "backward_single", "backward_atomic", "backward_looping"]
LOOPING = "row_means", "backward_columns"  # the kernels of backward_looping
SIZES = [1, 2, 7, 31, 32, 33, 127, 1000, 1024, 4097, 8192, 16384, 20000]
HALF_TYPES = [name for name in dispatch.STORED if name != "float32" and hasattr(np, name)]
BITS = {"float16": (5, 10), "uint16": (8, 7), "bfloat16": (8, 7)}  # of exponent and mantissa
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
    names = LOOPING if changed == "backward_looping" else (changed,)

    def run(chosen, *launch):
        (other if chosen.kernel in names else usual).run(chosen, *launch)

    kernel = "backward_looping" if changed in LOOPING else changed
    kernel = kernel if kernel in BACKWARD else "backward"
    return passes.backward(usual._replace(run=run), dy, cache, kernel)


def to_stored(a, name):
    """Round numbers to the nearest of a type: a search in all numbers >= 0 that it has."""
    assert name in BITS, f"BITS needs how many bits of exponent and of mantissa {name} has"
    exponent_bits, mantissa_bits = BITS[name]
    exponent, mantissa = np.divmod(
        np.arange(2 ** (exponent_bits + mantissa_bits)), 2**mantissa_bits
    )
    power = exponent - mantissa_bits - 2 ** (exponent_bits - 1) + 1
    numbers = np.where(exponent, 2**mantissa_bits + mantissa, 2 * mantissa) * 2.0**power
    nearest = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.abs(a))
    sign = np.signbit(a).astype(int) << exponent_bits + mantissa_bits
    return (nearest | sign).astype(f"u{np.dtype(name).itemsize}").view(name), numbers


def to_float(a, numbers):
    """Return float64 from the numbers of a type, of which those >= 0 are given in order."""
    bits = a.view(f"u{a.itemsize}").astype(int)
    return numbers[bits % len(numbers)] * np.where(bits < len(numbers), 1, -1)


def assert_rounded_once(run, name, mixed, rows, D):
    """Each entry is within half an ulp, but for the promise of the float32 arithmetic.

    If mixed, gamma and beta are float32, and so are dgamma and dbeta.
    """
    given = arrays((rows, D), seed=D, offset=3)
    stored, numbers = [to_stored(a, name)[0] for a in given], to_stored(given[0], name)[1]
    case = stored[:2] + (given if mixed else stored)[2:]
    dy, x, gamma, beta = (a if a.dtype == np.float32 else to_float(a, numbers) for a in case)
    y, cache = lnlib.layer_norm_forward(x, *np.float64((gamma, beta)), eps=float(np.float32(1e-5)))
    for result, exact in zip(run(*case), (y, *lnlib.layer_norm_backward(dy, cache))):
        bound = 2 * AT_LARGE * np.abs(exact).max()
        if mixed and result.ndim == 1:
            assert result.dtype == np.float32
        else:
            assert result.dtype == name
            k = np.searchsorted(numbers, np.abs(exact))  # the neighbours are numbers k - 1 and k
            bound = bound + (numbers[k] - numbers[np.maximum(k - 1, 0)]) / 2  # half an ulp
            result = to_float(result, numbers)
        assert (np.abs(result - exact) <= bound).all()
