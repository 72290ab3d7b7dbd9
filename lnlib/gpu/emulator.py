"""Run the CUDA kernels on this machine's processor, thread by thread, and watch every access.

The source is compiled by the system's C++ compiler behind emulator.h, which says what CUDA's words
mean here. Each launch is a process of its own, so nothing that a kernel does can harm this one.
"""

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import passes

FOLDER = Path(__file__).parent
BLOCKS = 3  # of the backward pass: few, so that each has several rows


class EmulationError(RuntimeError):
    """A kernel did what no kernel may do; the message says who did it and where."""


class Traffic(NamedTuple):
    """Bytes that the threads have loaded and stored, and in how many accesses.

    An element that neighbouring lanes of a warp load one after the other counts once. An atomicAdd
    is a load and a store.
    """

    loaded: int = 0
    stored: int = 0
    loads: int = 0
    stores: int = 0


def emulate_forward(
    x, gamma, beta, eps=1e-5, *,
    kernel="forward", order="forward", width=None, source=None, counts=None,
):  # fmt: skip
    """Run the forward kernel on the CPU.

    Parameters
    ----------
    x : ndarray, shape (..., D), float32
        C-contiguous, as the GPU needs it.
    gamma, beta : ndarray, shape (D,), float32
    eps : float
    kernel : {"forward", "forward_looping"}
    order : {"forward", "reverse"} or int
        The order in which blocks, and the threads of a block, get their turn; an int shuffles.
    width : {None, 1, 4}
        Floats per load; by default 4 where D and the addresses allow it.
    source : str, optional
        CUDA C++ to run instead of layernorm.cu.
    counts : dict, optional
        Filled with the `Traffic` of each array, added to what is there.

    Returns
    -------
    y : ndarray, shape (..., D), float32
    cache : Cache
        For `emulate_backward`.

    Raises
    ------
    EmulationError
        If the kernel reads or writes outside an array, waits at a barrier that not all threads
        reach, has two threads use the same element without a barrier in between, or does not
        compile; or if there is no C++ compiler.
    TypeError, ValueError
        If an argument does not fit.
    """
    machine = _machine(order, source, counts)
    return passes.forward(machine, x, gamma, beta, eps, kernel, width)


def emulate_backward(
    dy, cache, *, kernel="backward", order="forward", width=None, source=None, counts=None
):
    """Run the backward kernels on the CPU.

    Parameters
    ----------
    dy : ndarray, shape (..., D), float32
    cache : Cache
        From `emulate_forward`.
    kernel : {"backward", "backward_atomic", "backward_single", "backward_looping"}
    order, width, source, counts
        As for `emulate_forward`.

    Returns
    -------
    dx : ndarray, shape (..., D), float32
    dgamma, dbeta : ndarray, shape (D,), float32

    Raises
    ------
    EmulationError, TypeError, ValueError
        As `emulate_forward`.
    """
    return passes.backward(_machine(order, source, counts), dy, cache, kernel, width)


def available():
    """Return True if there is a C++ compiler for the emulator to use."""
    return _trouble() is None


def status():
    """Return one sentence: which compiler the emulator uses, or what it lacks."""
    return _trouble() or (
        f"The kernels run on this machine's processor, compiled by {shlex.join(_compiler())}."
    )


def _trouble():
    """Return what keeps the emulator from running here, in one sentence, or None."""
    if os.name == "nt":
        return "The emulator does not run on Windows; in the Windows Subsystem for Linux it does."
    if _compiler() is None:
        return (
            "The emulator needs a C++ compiler and found none: install g++ or clang++ "
            "(on Debian or Ubuntu: apt install g++; on macOS: xcode-select --install)."
        )
    return None


def _machine(order, source, counts):
    if order not in ("forward", "reverse") and not (isinstance(order, int) and order >= 0):
        raise ValueError(f'order must be "forward", "reverse" or an int >= 0, got {order!r}')
    source = passes.read_source() if source is None else source
    counts = {} if counts is None else counts
    return passes.Machine(
        array_type=np.ndarray,
        empty=lambda shape, dtype: np.full(shape, np.nan, dtype),  # what is not written stays NaN
        zeros=np.zeros,
        address=lambda array: array.ctypes.data,
        check_place=lambda name, array: None,
        run=functools.partial(run, order, source, counts),
        blocks=lambda kernel, threads, shared_bytes: BLOCKS,
        shared_limit=lambda: np.inf,
    )


def run(
    order, source, counts, kernel, blocks, threads, shared_bytes, inputs, outputs, numbers,
    seconds=300,
):  # fmt: skip
    """Launch a kernel: put its arrays into a file, let the program change it, take the outputs."""
    program = _build(source, kernel, len(inputs) + len(outputs) + len(numbers))
    words, first = [], 0
    with tempfile.NamedTemporaryFile(dir=program.parent) as file:
        for name, array in (inputs | outputs).items():
            words.append(f"{name}:{first}:{array.nbytes}")
            file.write(array.tobytes().ljust(-(-array.nbytes // 64) * 64, b"\0"))
            first = file.tell()
        file.flush()
        words += [repr(number.item()) for number in numbers.values()]
        launch = [program, file.name, blocks, threads, shared_bytes, order, *words]
        try:
            done = subprocess.run(
                [str(word) for word in launch], capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise EmulationError(f"{kernel} has not returned after {seconds} seconds") from None
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            raise EmulationError(
                f"{kernel} crashed ({name}); it may have written past the end of a local array"
            )
        if done.returncode:
            raise EmulationError(f"{kernel}: {done.stderr.strip()}")
        for array, word in zip(outputs.values(), words[len(inputs) :]):
            file.seek(int(word.split(":")[1]))
            array[...] = np.frombuffer(file.read(array.nbytes), array.dtype).reshape(array.shape)
    for line in done.stdout.splitlines():
        name, *added = line.split()
        counts[name] = Traffic(*map(sum, zip(counts.get(name, Traffic()), map(int, added))))


@functools.cache
def _build(source, kernel, arguments):
    """Compile one instance of a kernel to a program; return its path."""
    if trouble := _trouble():
        raise EmulationError(trouble)
    values = ", ".join(f"emulated::Argument{{{k}}}" for k in range(arguments))
    text = (
        f'#include "emulator.h"\n#line 1 "layernorm.cu"\n{_translate(source)}\n'
        "int main(int count, char **words)\n"
        f"{{ return emulated::launch(count, words, [] {{ (&{kernel})({values}); }}); }}\n"
    )
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    program = Path(_folder().name) / name
    flags = [
        "-std=c++17",
        "-O1",
        "-ffp-contract=off",
        "-Werror=return-type",
        "-I",
        str(FOLDER),
        "-x",
        "c++",
        "-",
    ]
    done = subprocess.run(
        [*_compiler(), "-o", str(program), *flags], input=text, capture_output=True, text=True
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise EmulationError(f"{kernel} does not compile: {errors[0].strip()}")
    return program


def _translate(source):
    """Turn shared arrays, and pointers in the heads of functions, into classes of emulator.h."""

    def shared(match):
        outside, kind, name, sizes = match.groups()
        if outside:
            return f'static emulated::DynamicShared<{kind}> {name}("{name}");'
        sizes = "".join(f", {size}" for size in re.findall(r"\[([^]]*)\]", sizes))
        return f'static emulated::Shared<{kind}{sizes}> {name}("{name}");'

    def head(match):
        pointer = r"((?:const )?\w+(?:<[\w, ]+>)?) *\* *(?:__restrict__ )?(\w+)(?=\s*[,)])"
        return re.sub(pointer, r"emulated::Global<\1> \2", match[0])

    source = re.sub(r"(?m)^#include <cuda_\w+\.h>", "", source)
    source = re.sub(r"(__ld\w+|__stcs)\(&(\w+)\[([^]]*)\]", r"\1(\2 + (\3)", source)
    aligned = r"(?:(?:__align__|alignas)\(\d+\) )?"
    source = re.sub(rf"(extern )?__shared__ {aligned}(\w+) (\w+)((?:\[[^]]*\])*);", shared, source)
    return re.sub(r"__(?:global|device)__ [^;{]*\{", head, source)


@functools.cache
def _compiler():
    """Return the command of the C++ compiler as a list, or None."""
    candidates = [shlex.split(os.environ.get("CXX", "")), ["g++"], ["clang++"], ["c++"]]
    for candidate in candidates:
        if candidate and shutil.which(candidate[0]):
            return candidate
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    return None


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="lnlib-emulator-")  # removed when Python exits
