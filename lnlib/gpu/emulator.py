"""Run the CUDA kernels on this machine's processor, thread by thread, and watch every access.

The source is compiled by the system's C++ compiler behind emulator.h, which says what CUDA's words
mean here, and linked to emulator.cpp, which checks what it does. Each launch is a process of its
own, so nothing that a kernel does can harm this one.
"""

import contextlib
import functools
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from . import passes
from .translate import EmulationError, errors_in, explain, translate

FOLDER = Path(__file__).parent
BLOCKS = 3  # of the backward pass: few, so that each has several rows
LOCK = threading.Lock()  # one compilation at a time
_call = functools.partial(subprocess.run, capture_output=True, encoding="utf-8", errors="replace")


class NoCompiler(EmulationError):
    """There is nothing to compile the kernel with; the message says what to install."""

    def _render_traceback_(self):  # one sentence in a notebook
        return [str(self)]


class Traffic(NamedTuple):
    """What a kernel has asked of one array.

    A request is what the lanes of a warp ask for together, by one instruction. An atomicAdd is a
    load and a store.

    Attributes
    ----------
    loaded, stored : int
        Bytes of global memory. An element that several lanes request together counts once.
    loads, stores : int
        Elements, of up to 16 bytes.
    requests : int
    sectors : int
        Of 32 bytes, which global memory is read and written by: a request for 32 neighbouring
        floats touches 4 sectors, one for 32 floats far apart touches 32.
    conflicts : int
        Of an array in shared memory, named "shared ...": how many times its banks had to be asked
        again, because lanes of one request wanted different words of the same bank.
    """

    loaded: int = 0
    stored: int = 0
    loads: int = 0
    stores: int = 0
    requests: int = 0
    sectors: int = 0
    conflicts: int = 0


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
    Unsupported
        If the kernel is valid CUDA, but uses what the emulator does not know.
    TypeError, ValueError
        If an argument does not fit.
    """
    return passes.forward(_machine(order, source, counts), x, gamma, beta, eps, kernel, width)


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
    command = shlex.join(compiler() or [])
    return _trouble() or f"The kernels run on this machine's processor, compiled by {command}."


def compiler():
    """Return the command of a C++ compiler as a list, CXX if that is set, or None."""
    chosen = os.environ.get("CXX")
    for candidate in [chosen] if chosen else ["g++", "clang++", "c++"]:
        with contextlib.suppress(ValueError):  # a quotation mark that is not closed
            command = shlex.split(candidate)
            if command and shutil.which(command[0]):
                return command
    if not chosen and importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def _trouble():
    """Return what keeps the emulator from running here, in one sentence, or None."""
    folder = tempfile.gettempdir()
    if os.name == "nt":
        return "The emulator does not run on Windows; in WSL, Linux inside Windows, it does."
    if compiler() is None and (chosen := os.environ.get("CXX")):
        return f"The emulator needs a C++ compiler, and CXX={chosen} is no command on this machine."
    if compiler() is None:
        return (
            "The emulator needs a C++ compiler and found none: install one (Debian, Ubuntu: apt "
            "install g++; macOS: xcode-select --install; Windows: work in WSL), or pip install "
            "ziglang, which is enough by itself."
        )
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        return (
            f"The emulator may run no program in {folder} (noexec): set TMPDIR to another folder."
        )
    return None


def _machine(order, source, counts):
    if order not in ("forward", "reverse") and not (isinstance(order, int) and order >= 0):
        raise ValueError(f'order must be "forward", "reverse" or an int >= 0, got {order!r}')
    source = passes.read_source() if source is None else source
    return SimpleNamespace(
        array_type=np.ndarray,
        empty=_poisoned,
        zeros=np.zeros,
        address=lambda array: array.ctypes.data,
        check_place=lambda name, array: None,
        run=functools.partial(run, order, source, counts),
        blocks=lambda kernel, threads, shared_bytes: BLOCKS,
        shared_limit=lambda: 227 * 1024,  # as on sm_90
    )


def _poisoned(shape, dtype):
    """Return an array of NaN: what a kernel does not write stays NaN. All bits set are one."""
    return np.full(shape, -1, f"i{np.dtype(dtype).itemsize}").view(dtype)


def run(
    order, source, counts, kernel, blocks, threads, shared_bytes, inputs, outputs, numbers,
    seconds=300,
):  # fmt: skip
    """Launch a kernel: put its arrays into a file, let the program change it, take the outputs.

    What the kernel prints is printed. counts is a dict, to be filled with Traffic, or None.
    """
    profile = counts is not None
    with LOCK:
        program = _build(source, kernel, len(inputs) + len(outputs) + len(numbers))
    words, first = [], 0
    with tempfile.NamedTemporaryFile(dir=program.parent) as file:
        for name, array in (inputs | outputs).items():
            words.append(f"{name}:{first}:{array.nbytes}:{array.itemsize}")
            file.seek(first)
            file.write(array.tobytes())
            first += -(-array.nbytes // 65536) * 65536  # where a page of memory can begin
        file.truncate(first)
        file.flush()
        words += [repr(number.item()) for number in numbers.values()]
        launch = program, file.name, blocks, threads, shared_bytes, order, seconds, int(profile)
        done = _call([*map(str, launch), *words])
        print(done.stdout, end="")
        if done.returncode == -signal.SIGALRM:
            raise EmulationError(f"{kernel} has not returned after {seconds} seconds")
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            raise EmulationError(f"{kernel} crashed ({name}): a write past the end of an array?")
        if done.returncode:
            said = _with_lines(done.stderr.strip(), program)
            raise EmulationError(f"{kernel}: {said}{_quoted(said, source)}")
        for array, word in zip(outputs.values(), words[len(inputs) :]):
            file.seek(int(word.split(":")[1]))
            array[...] = np.frombuffer(file.read(array.nbytes), array.dtype).reshape(array.shape)
    for line in done.stderr.splitlines() if profile else ():
        name, *added = line.rsplit(maxsplit=len(Traffic._fields))
        counts[name] = Traffic(*map(sum, zip(counts.get(name, Traffic()), map(int, added))))


def _quoted(said, source):
    """Return the lines of the source that a message names, unless #line counts them otherwise."""
    lines = [] if "#line" in source else source.splitlines()
    named = dict.fromkeys(int(number) for number in re.findall(r" in line (\d+)", said))
    return "".join(f"\n{n:>7}: {lines[n - 1].strip()}" for n in named if n <= len(lines))


def _build(source, kernel, arguments):
    """Compile one instance of a kernel to a program, unless that has been done; return its path."""
    if trouble := _trouble():
        raise NoCompiler(trouble)
    values = ", ".join(f"emulated::Argument{{{k}}}" for k in range(arguments))
    text = (
        f'#include "emulator.h"\n#line 1 "layernorm.cu"\n{translate(source)}\n'
        f'#line 1 "launch"\nstatic void launched()\n'
        f"{{ auto one = {kernel}; return one({values}); }}\n"
        "int main(int count, char **words) { return emulated::launch(count, words, launched); }\n"
    )
    program, emulator = _folder() / f"{hash((*compiler(), text))}", _folder() / "emulator.o"
    if program.exists():
        return program
    if not emulator.exists():
        done = _compile(emulator, (FOLDER / "emulator.cpp").read_text(encoding="utf-8"), "-O2")
        _require(done, f"{shlex.join(compiler())} does not compile the emulator")
    kernel_o = program.with_suffix(".o")
    done = _compile(kernel_o, text, "-O0", "-g1", *_watching(tuple(compiler())))
    if done.returncode:
        explain(kernel, source, done.stderr)
    done = _call([*compiler(), "-g", "-pie", "-o", program, kernel_o, emulator, "-lm"])
    _require(done, f"{kernel} cannot be linked")
    return program


def _require(done, trouble):
    """Raise EmulationError if a compiler has not done its work."""
    if done.returncode:
        raise EmulationError(f"{trouble}: {errors_in(done.stderr)[0][1]}")


def _compile(result, text, *flags):
    command = [*compiler(), "-c", "-o", result, "-std=c++17", "-ffp-contract=off", "-fno-rtti"]
    command += ["-fno-exceptions", "-fno-threadsafe-statics", "-Werror=return-type", "-fPIE"]
    return _call([*command, "-I", FOLDER, *flags, "-x", "c++", "-"], input=text)


@functools.cache
def _watching(compiler):
    """Return the options that make a compiler call emulator.cpp wherever memory is used."""
    version = _call([*compiler, "--version"]).stdout
    unset = "-ftrivial-auto-var-init=pattern"  # registers nobody has set hold NaN, or huge numbers
    if "ziglang" in compiler or "clang" in version:
        checks = "-fsanitize=array-bounds,alignment,null"  # zig has more of them, unless told so
        reads = "-mllvm", "-tsan-instrument-read-before-write=1"
        return "-fsanitize=thread", "-fno-sanitize=undefined", checks, *reads, unset
    old = re.search(r"\) ([4-9]|1[01])\.", version)  # a GCC before 12
    return "-fsanitize=thread,bounds-strict,alignment,null", *([] if old else [unset])


def _with_lines(text, program):
    """Replace the addresses in what the emulator says, such as @1f2e, by lines of the source."""

    def line(match):
        if not shutil.which("addr2line"):
            return ""
        address = hex(int(match[1], 16) - 1)
        places = _call(["addr2line", "-i", "-e", program, address]).stdout
        here = re.findall(r"(?m)^(?!.*(?:emulator\.h|\?\?):).*:(\d+)", places)
        return f" in line {here[0]}" if here else ""

    return re.sub(r" in line @(\w+)", line, text)


def _folder():
    """Return the folder of what was compiled; it is removed when Python exits."""
    folder = Path(_temporary().name)
    folder.mkdir(exist_ok=True)  # again, if somebody has deleted it
    return folder


@functools.cache
def _temporary():
    return tempfile.TemporaryDirectory(prefix="lnlib-emulator-")
