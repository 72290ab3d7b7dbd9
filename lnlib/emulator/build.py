"""From the source of a kernel to a program: which compiler, with which options, in which folder."""

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from .translate import EmulationError, errors_in, explain, translate

FOLDER = Path(__file__).parent
REFUSED = "-Werror=return-type", "-Werror=vla", "-Werror=uninitialized"
FOLDER_VARIABLE = "CUDA_EMULATOR_FOLDER"  # of the environment
LOCK = threading.Lock()  # one compilation at a time
call = functools.partial(subprocess.run, capture_output=True, encoding="utf-8", errors="replace")


class NoCompiler(EmulationError):
    """There is nothing to compile the kernel with; the message says what to install."""

    def _render_traceback_(self):  # one sentence in a notebook
        return [str(self)]


def available():
    """Return True if there is a C++ compiler for the emulator to use."""
    return _problem() is None


def status():
    """Return one sentence: which compiler the emulator uses, or what it lacks."""
    command = shlex.join(compiler() or [])
    return _problem() or f"The kernels run on this machine's processor, compiled by {command}."


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


def _problem():
    """Return what keeps the emulator from running here, in one sentence, or None."""
    temporary = tempfile.gettempdir()
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
    if os.statvfs(temporary).f_flag & getattr(os, "ST_NOEXEC", 0):
        return (
            f"The emulator may run no program in {temporary} (noexec): "
            "set TMPDIR to another folder."
        )
    return None


def build(launch, is_valid):
    """Compile a launch's kernel to a program, unless that has been done; return its path."""
    if problem := _problem():
        raise NoCompiler(problem)
    numbered = ", ".join(f"emulated::Argument{{{k}}}" for k in range(len(launch.arguments)))
    text = (
        f'#include "emulator.h"\n#line 1 "{launch.file}"\n{translate(launch.source)}\n'
        f'#line 1 "launch"\nstatic void launched()\n'
        f"{{ auto one = {launch.kernel}; return one({numbered}); }}\n"
        "int main() { return emulated::launch(launched); }\n"
    )
    program = folder() / f"program-{_digest(text)}"
    with LOCK:
        if not program.exists():
            _compile_and_link(program, text, launch, is_valid)
    return program


def _compile_and_link(program, text, launch, is_valid):
    with tempfile.TemporaryDirectory(dir=folder()) as name:  # others may be at the same work
        kernel_o, new = Path(name, "kernel.o"), Path(name, "new")
        emulator_o = folder() / f"emulator-{_digest()}.o"
        if not emulator_o.exists():
            done = _compile(new, (FOLDER / "emulator.cpp").read_text(encoding="utf-8"), "-O2")
            _require(done, f"{shlex.join(compiler())} does not compile the emulator")
            new.replace(emulator_o)
        done = _compile(kernel_o, text, "-O0", "-g1", *_watching(tuple(compiler())))
        if done.returncode:
            explain(launch, done.stderr, is_valid)
        done = call([*compiler(), "-g", "-pie", "-o", new, kernel_o, emulator_o, "-lm"])
        _require(done, f"{launch.kernel} cannot be linked")
        new.replace(program)


def _digest(*texts):
    """Return a name for what this compiler makes of the emulator and of these texts."""
    return hashlib.sha256("\0".join([*compiler(), *_emulator(), *texts]).encode()).hexdigest()


@functools.cache
def _emulator():
    """Return the texts of the emulator."""
    return [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("emulator.*"))]


def _require(done, problem):
    """Raise EmulationError if a compiler has not done its work."""
    if done.returncode:
        raise EmulationError(f"{problem}: {errors_in(done.stderr)[0][1]}")


def _compile(result, text, *flags):
    command = [*compiler(), "-c", "-o", result, "-std=c++17", "-ffp-contract=off", "-fno-rtti"]
    command += ["-fno-exceptions", "-fno-threadsafe-statics", "-fPIE"]
    return call([*command, "-I", FOLDER, *flags, *REFUSED, "-x", "c++", "-"], input=text)


@functools.cache
def _watching(compiler):
    """Return the options that make a compiler call emulator.cpp wherever memory is used."""
    version = call([*compiler, "--version"]).stdout
    unset = "-ftrivial-auto-var-init=pattern"  # registers nobody has set hold NaN, or huge numbers
    if "ziglang" in compiler or "clang" in version:
        checks = "-fsanitize=array-bounds,alignment,null"  # zig has more of them, unless told so
        reads = "-mllvm", "-tsan-instrument-read-before-write=1"
        return "-fsanitize=thread", "-fno-sanitize=undefined", checks, *reads, unset
    old = re.search(r"\) ([4-9]|1[01])\.", version)  # a GCC before 12
    return "-fsanitize=thread,bounds-strict,alignment,null", *([] if old else [unset])


def with_lines(text, program, file):
    """Replace the addresses in a message, such as @1f2e, by lines of the source.

    A line that #line counts as one of another .cu file than this is named with that file.
    """

    def line(match):
        if not shutil.which("addr2line"):
            return ""
        address = hex(int(match[1], 16) - 1)
        places = call(["addr2line", "-i", "-e", program, address]).stdout
        here = re.search(r"(?m)^(?!.*(?:emulator\.h|\?\?):)(.*/)?(.*):(\d+)", places)
        if not here:
            return ""
        named = here[2].endswith(".cu") and here[2] != file
        return f" in line {here[3]}" + f" of {here[2]}" * named

    return re.sub(r" in line @(\w+)", line, text)


def folder():
    """Return the folder of what was compiled: as the environment says, or one for this Python."""
    path = Path(os.environ.get(FOLDER_VARIABLE) or _temporary().name)
    path.mkdir(exist_ok=True)  # again, if somebody has deleted it
    return path


@functools.cache
def _temporary():
    return tempfile.TemporaryDirectory(prefix="cuda-emulator-")
