"""Run the CUDA kernels on this machine's processor, thread by thread, and watch every access.

The source is compiled by the system's C++ compiler behind emulator.h, which says what CUDA's words
mean here, and linked to emulator.cpp, which checks what it does. Each launch is a process of its
own, so nothing that a kernel does can harm this one.
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
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import nvrtc, passes

FOLDER = Path(__file__).parent
BLOCKS = 3  # of the backward pass: few, so that each has several rows
SHARED_LIMIT = 227 * 1024  # bytes that a block can have, as on sm_90
LOCK = threading.Lock()  # one compilation at a time
# CUDA's words that are valid, though not known here, where NVRTC cannot be asked.
OTHER_WORDS = re.compile(
    r"cooperative_groups|cg|cuda|nvcuda|wmma|__(dp4a|nanosleep|trap|assert_fail|match_\w+_sync|"
    r"reduce_\w+_sync|activemask|half2|nv_bfloat162|h\w+2|byte_perm|brev|funnelshift_\w+|asm)\b"
)


class EmulationError(RuntimeError):
    """A kernel did what no kernel may do; the message says who did it and where."""


class NoCompiler(EmulationError):
    """There is nothing to compile the kernel with; the message says what to install."""

    def _render_traceback_(self):  # one sentence in a notebook
        return [str(self)]


class Unsupported(RuntimeError):
    """Valid CUDA that the emulator does not know; the message says what."""


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
        return "The emulator does not run on Windows; in WSL, Linux inside Windows, it does."
    chosen = os.environ.get("CXX")
    if chosen and _command(chosen) is None:
        return f"The emulator needs a C++ compiler, and CXX={chosen} is no command on this machine."
    if _compiler() is None:
        return (
            "The emulator needs a C++ compiler and found none: install one (on Debian or Ubuntu: "
            "apt install g++; on macOS: xcode-select --install; on Windows: work in WSL), or "
            "pip install ziglang, which is enough by itself."
        )
    folder = tempfile.gettempdir()
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        return (
            f"The emulator may not run programs in {folder} (it is mounted noexec): set TMPDIR to "
            "another folder."
        )
    return None


def _machine(order, source, counts):
    if order not in ("forward", "reverse") and not (isinstance(order, int) and order >= 0):
        raise ValueError(f'order must be "forward", "reverse" or an int >= 0, got {order!r}')
    source = passes.read_source() if source is None else source
    return passes.Machine(
        array_type=np.ndarray,
        empty=_poisoned,
        zeros=np.zeros,
        address=lambda array: array.ctypes.data,
        check_place=lambda name, array: None,
        run=functools.partial(run, order, source, counts),
        blocks=lambda kernel, threads, shared_bytes: BLOCKS,
        shared_limit=lambda: SHARED_LIMIT,
    )


def _poisoned(shape, dtype):
    """Return an array of NaN: what a kernel does not write stays NaN. All bits set are one."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(255)
    return array


def run(
    order, source, counts, kernel, blocks, threads, shared_bytes, inputs, outputs, numbers,
    seconds=300,
):  # fmt: skip
    """Launch a kernel: put its arrays into a file, let the program change it, take the outputs.

    What the kernel prints is printed. counts is a dict, to be filled with Traffic, or None.
    """
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
        profile = int(counts is not None)
        launch = [
            program, file.name, blocks, threads, shared_bytes, order, seconds, profile, *words
        ]  # fmt: skip
        done = subprocess.run(
            [str(word) for word in launch], capture_output=True, encoding="utf-8", errors="replace"
        )
        print(done.stdout, end="")
        if done.returncode == -signal.SIGALRM:
            raise EmulationError(f"{kernel} has not returned after {seconds} seconds")
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            raise EmulationError(
                f"{kernel} crashed ({name}); it may have written past the end of a local array"
            )
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
        f'#include "emulator.h"\n#line 1 "layernorm.cu"\n{_translate(source)}\n'
        f'#line 1 "launch"\nstatic void launched()\n'
        f"{{ auto one = {kernel}; return one({values}); }}\n"
        "int main(int count, char **words) { return emulated::launch(count, words, launched); }\n"
    )
    name = hashlib.sha256(repr((_compiler(), text)).encode()).hexdigest()[:16]
    program = _folder() / name
    if program.exists():
        return program
    machine = _folder() / "emulator.o"
    if not machine.exists():
        done = _compile(machine, (FOLDER / "emulator.cpp").read_text(encoding="utf-8"), "-O2")
        _require(done, f"{shlex.join(_compiler())} does not compile the emulator")
    done = _compile(program.with_suffix(".o"), text, "-O0", "-g1", *_watching(tuple(_compiler())))
    if done.returncode:
        _explain(kernel, source, done.stderr)
    link = [*_compiler(), "-g", "-pie", "-o", program, program.with_suffix(".o"), machine, "-lm"]
    done = subprocess.run(link, capture_output=True, encoding="utf-8", errors="replace")
    _require(done, f"{kernel} cannot be linked")
    return program


def _require(done, trouble):
    """Raise EmulationError if a compiler has not done its work."""
    if done.returncode:
        raise EmulationError(f"{trouble}: {_errors(done.stderr)[0][1]}")


def _compile(result, text, *flags):
    command = [
        *_compiler(), "-c", "-o", result, "-std=c++17", "-ffp-contract=off", "-fno-exceptions",
        "-fno-rtti", "-fno-threadsafe-statics", "-Werror=return-type", "-fPIE", "-I", FOLDER,
        *flags, "-x", "c++", "-",
    ]  # fmt: skip
    return subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", errors="replace"
    )


@functools.cache
def _watching(compiler):
    """Return the options that make a compiler call emulator.cpp wherever memory is used."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    unset = "-ftrivial-auto-var-init=pattern"  # registers nobody has set hold NaN, or huge numbers
    if "ziglang" in compiler or "clang" in version:
        checks = "-fsanitize=array-bounds,alignment,null"  # zig has more of them, unless told so
        reads = "-mllvm", "-tsan-instrument-read-before-write=1"
        return "-fsanitize=thread", "-fno-sanitize=undefined", checks, *reads, unset
    old = re.search(r"\) ([4-9]|1[01])\.", version)  # a GCC before 12
    return "-fsanitize=thread,bounds-strict,alignment,null", *([] if old else [unset])


def _errors(log):
    """Return (file:line, message) of each error in what a compiler says."""
    pattern = r"(?m)^([^\n]*?:\d+)(?::\d+)?: (?:fatal )?error: (.*)$"
    return re.findall(pattern, log) or [("", (log.strip() or "no word").splitlines()[-1])]


def _explain(kernel, source, log):
    """Raise what is to be said of a kernel that does not compile, with the line quoted."""
    errors = [e for e in _errors(log) if "emulator.h" not in e[0]] or _errors(log)
    place, error = errors[0]
    quoted = _lines(source).get(place, "").strip()
    name = re.search(r"[‘'\"]([\w:]+)", error)
    name = name[1] if name else quoted
    if foreign := re.search(r"(?m)#\s*include\b.*|\basm\b|\b(std|cuda)\b *::", _translate(source)):
        raise Unsupported(f"the emulator does not know {foreign[0]}")  # not every NVRTC does
    try:
        nvrtc.compile("sm_80", [kernel], source)
        valid = True
    except RuntimeError:  # NVRTC is not here
        valid = bool(OTHER_WORDS.match(name))
    except ValueError:
        valid = False
    if valid and "return-type" not in error:  # nvcc, too, only warns of that
        raise Unsupported(f"the emulator does not know {name} ({place}: {quoted})")
    quoted = f"\n    {quoted}" if quoted else ""
    raise EmulationError(f"{kernel} does not compile: {place}: error: {error}{quoted}")


def _lines(source):
    """Return {file:line: text} as the compiler counts them."""
    lines, file, number = {}, "layernorm.cu", 1
    for text in source.splitlines():
        if found := re.match(r'#line (\d+) "(.*)"', text):
            number, file = int(found[1]), found[2]
            continue
        lines[f"{file}:{number}"] = text
        number += 1
    return lines


def _with_lines(text, program):
    """Replace the addresses in what the emulator says, such as @1f2e, by lines of the source."""

    def line(match):
        done = subprocess.run(
            ["addr2line", "-i", "-e", program, hex(int(match[1], 16) - 1)],
            capture_output=True, encoding="utf-8",
        )  # fmt: skip
        places = re.findall(r"([^/\n]*):(\d+)", done.stdout)
        here = [(f, n) for f, n in places if f not in ("emulator.h", "??")]
        return f" in line {here[0][1]}" if here else ""

    if not shutil.which("addr2line"):
        return re.sub(r" in line @\w+", "", text)
    return re.sub(r" in line @(\w+)", line, text)


def _translate(source):
    """Turn the declarations of shared arrays into what C++ has for them; drop what it has not."""
    masked = re.sub(
        r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"',
        lambda m: m[0] if m[0][0] == '"' else "\n" * m[0].count("\n") or " ",
        source,
        flags=re.DOTALL,
    )
    masked = re.sub(r"(?m)^\s*#\s*include <(cuda|device_|c?math|std|c?float)[\w.]*>", "", masked)
    words = r"(?:(?:extern|static|volatile|(?:__align__|alignas)\([^)]*\))\s+)*"
    return re.sub(rf"{words}__shared__\s([^;{{}}=]*);", _shared, masked)


def _shared(match):
    """Turn one declaration of shared arrays, of any number of them, into references."""
    text = re.sub(r"\b(__align__|alignas)\s*\([^)]*\)", " ", match[0].rstrip(";"))
    lines = "\n" * match[0].count("\n")
    volatile = "volatile " if "volatile" in text else ""
    text = " ".join(re.sub(r"\b(extern|static|__shared__|volatile)\b", " ", text).split())
    first, *more = re.split(r",(?![^<\[(]*[>\])])", text)
    kind, name, sizes = re.fullmatch(r"(.*?[\s>])(\w+)((?:\s*\[.*\])?)\s*", first).groups()
    made = ""
    for part in [name + sizes, *more]:
        name, sizes = re.fullmatch(r"\s*(\w+)\s*((?:\[.*\])?)\s*", part).groups()
        made += f"static void *{name}_site; "
        if sizes.replace(" ", "") == "[]":
            kind = volatile + kind
            made += f"{kind}*const {name} = emulated::dynamic_shared<{kind}>(&{name}_site, "
        else:
            made += f"typedef {volatile}{kind}{name}_type{sizes}; "
            made += f"{name}_type &{name} = emulated::shared<{name}_type>(&{name}_site, "
        made += f'"{name}"); '
    return made + lines


def _command(words):
    """Return a command as a list, or None if there is no such command."""
    try:
        command = shlex.split(words)
    except ValueError:
        return None
    return command if command and shutil.which(command[0]) else None


def _compiler():
    """Return the command of the C++ compiler as a list, or None."""
    for candidate in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if command := _command(candidate):
            return command
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def _folder():
    """Return the folder of what was compiled; it is removed when Python exits."""
    folder = Path(_temporary().name)
    folder.mkdir(exist_ok=True)  # again, if somebody has deleted it
    return folder


@functools.cache
def _temporary():
    return tempfile.TemporaryDirectory(prefix="lnlib-emulator-")
