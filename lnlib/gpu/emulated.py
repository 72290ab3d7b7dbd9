"""Run the CUDA kernels in the emulator, on this machine's processor."""

import functools

import numpy as np

from .. import emulator
from ..emulator import FLUSHES, SHARED_LIMIT
from . import nvrtc, passes
from .listing import read_source

BLOCKS = 3  # resident at a time, of the backward pass: few, so that each has several rows
SHARED_BYTES = SHARED_LIMIT  # of a block, at most; a T4 has 64 KiB


def emulate(launch, order="forward", counts=None, seconds=300):
    """Run any kernel in the emulator, as CuPy compiles it: with -ftz=true, where this can be done.

    NVRTC, if it is here, says what is valid CUDA.

    Parameters
    ----------
    launch : Launch
    order, counts, seconds
        As for `lnlib.emulator.run`.

    Returns
    -------
    dict of str to ndarray

    Raises
    ------
    EmulationError, Unsupported, TypeError, ValueError
        As `lnlib.emulator.run`.
    """
    return emulator.run(launch, order, counts, seconds, nvrtc.is_valid, FLUSHES)


def emulate_forward(
    x, gamma, beta, eps=1e-5, *,
    kernel="forward", order="forward", width=None, source=None, counts=None,
):  # fmt: skip
    """Run the forward kernel on the CPU.

    Where this processor can, on x86-64 and 64-bit ARM, float32 numbers below 2**-126 count as zero
    in arithmetic, as CuPy compiles kernels for a GPU.

    Parameters
    ----------
    x : ndarray, shape (..., D), float32 or float16, or uint16 with the bits of bfloat16
        C-contiguous, as the GPU needs it.
    gamma, beta : ndarray, shape (D,), both dtype of x or both float32
    eps : float
    kernel : {"forward", "forward_looping"}
    order : {"forward", "reverse"} or int
        The order in which blocks, and the threads of a block, get their turn; an int shuffles.
    width : {None, 1, 4, 8}
        Entries per load; by default as many as make 16 bytes, where D and the addresses allow it.
    source : str, optional
        CUDA C++ to run instead of layernorm.cu.
    counts : dict, optional
        Filled with the `Traffic` of each array, added to what is there.

    Returns
    -------
    y : ndarray, shape (..., D), dtype of x
    cache : Cache
        For `emulate_backward`.

    Raises
    ------
    EmulationError, Unsupported
        If the kernel does what no kernel may do, or what the emulator does not know: see
        `lnlib.emulator.run`.
    TypeError, ValueError
        If an argument does not fit.
    """
    return passes.forward(backend(order, source, counts), x, gamma, beta, eps, kernel, width)


def emulate_backward(
    dy, cache, *,
    kernel="backward", order="forward", width=None, source=None, counts=None,
):  # fmt: skip
    """Run the backward kernels on the CPU.

    Parameters
    ----------
    dy : ndarray, shape (..., D), dtype of x
    cache : Cache
        From `emulate_forward`.
    kernel : {"backward", "backward_atomic", "backward_single", "backward_looping"}
        Of these, "backward_atomic" and "backward_single" are for float32.
    order, width, source, counts
        As for `emulate_forward`.

    Returns
    -------
    dx : ndarray, shape (..., D), dtype of x
    dgamma, dbeta : ndarray, shape (D,), dtype of gamma

    Raises
    ------
    EmulationError, Unsupported, TypeError, ValueError
        As `emulate_forward`.
    """
    return passes.backward(backend(order, source, counts), dy, cache, kernel, width)


def backend(order="forward", source=None, counts=None):
    """Return the emulator as a `Backend`; the arguments are those of `emulate_forward`."""
    source = read_source() if source is None else source
    return passes.Backend(
        xp=np,
        empty=_empty,
        address=lambda array: array.ctypes.data,
        check_place=lambda name, array: None,
        run=functools.partial(_emulate_chosen, source, order, counts),
        resident_blocks=lambda chosen: BLOCKS,
        shared_limit=lambda: SHARED_BYTES,
    )


def _empty(shape, dtype):
    """Return an array of NaN, all bits set: what a kernel does not write stays NaN."""
    return np.full(shape, -1, f"i{np.dtype(dtype).itemsize}").view(dtype)


def _emulate_chosen(source, order, counts, chosen, blocks, inputs, outputs, numbers):
    """Run an Instantiation, and put into outputs what it left there."""
    launch = emulator.Launch(
        source, chosen.expression, blocks, chosen.threads, inputs | outputs | numbers,
        chosen.shared_bytes, file="layernorm.cu",
    )  # fmt: skip
    left = emulate(launch, order, counts)
    for name, array in outputs.items():
        array[...] = left[name]
