"""Launch a kernel in a process of its own, and say what it left or what it did wrong."""

import platform
import re
import signal
import tempfile
from typing import NamedTuple

import numpy as np

from .build import build, call, with_lines
from .translate import EmulationError

ALIGNMENT = 65536  # bytes: arrays begin where a page of memory can begin
SHARED_LIMIT = 227 * 1024  # bytes of shared memory of a block, as on sm_90, which has most
HEARD = 4  # what the program returns if its blocks have listened to each other
FLUSHES = platform.machine().lower() in ("x86_64", "amd64", "aarch64", "arm64")


class Launch(NamedTuple):
    """A kernel, and what it is launched with.

    Attributes
    ----------
    source : str
        CUDA C++.
    kernel : str
        The kernel's name in C++, such as "add" or "add<32, float>".
    blocks, threads : int
        How many blocks, and how many threads in each of them.
    arguments : dict of str to ndarray or number
        In the order of the kernel's parameters. A number is an int, a float or a NumPy scalar.
        A __half is float16; a __nv_bfloat16 is uint16, which holds its bits.
    shared_bytes : int
        Of shared memory whose size the kernel leaves to the launch.
    file : str
        What messages call the source.
    first_block : int
        Blocks before it are not run.
    begins : dict of str to int, optional
        For arrays of which only the end is there, to test large offsets: how many elements are
        left out before. No block that is run may use those.
    """

    source: str
    kernel: str
    blocks: int
    threads: int
    arguments: dict
    shared_bytes: int = 0
    file: str = "kernel.cu"
    first_block: int = 0
    begins: dict | None = None


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


def run(launch, order="forward", counts=None, seconds=300, is_valid=None, flush=False):
    """Run a kernel on the CPU. What it prints is printed.

    Parameters
    ----------
    launch : Launch
    order : {"forward", "reverse"} or int
        The order in which blocks, and the threads of a block, get their turn; an int shuffles.
    counts : dict, optional
        Filled with the `Traffic` of each array, added to what is there.
    seconds : int
        After which the kernel is stopped.
    is_valid : callable, optional
        Of a Launch: True if another compiler of CUDA takes its kernel, False if not, None if that
        compiler is not here. It is asked about a kernel that does not compile here.
    flush : bool
        Whether arithmetic takes numbers below 2**-126, the subnormal ones of float32, for zero, and
        gives zero in their place, as a kernel that is compiled with -ftz=true does. This works on
        x86-64 and 64-bit ARM: see `FLUSHES`. Conversions of half types keep small numbers.

    Returns
    -------
    dict of str to ndarray
        The arrays among the arguments, as the kernel left them. The arguments are not changed.

    Raises
    ------
    EmulationError
        If the kernel reads or writes outside an array, waits at a barrier that threads which have
        not ended do not reach, has two threads use the same element without a barrier in between,
        or does not compile; or if there is no C++ compiler. A kernel whose blocks listen to each
        other, by an atomic and fences, is run once more with its blocks in the opposite order, as
        these may not decide which block comes last.
    Unsupported
        If the kernel is valid CUDA, but uses what the emulator does not know.
    TypeError, ValueError
        If an argument does not fit; or if this processor cannot flush.
    """
    _check_launch(launch, order, flush)
    program = build(launch, is_valid)
    how = [f"seconds {seconds}", f"order {order}", f"flush {flush:d}"]
    left, done = _start(launch, program, seconds, [*how, "run" if counts is None else "profile"])
    print(done.stdout, end="")
    for line in [] if counts is None else done.stderr.splitlines():
        name, *added = line.rsplit(maxsplit=len(Traffic._fields))
        counts[name] = Traffic(*map(sum, zip(counts.get(name, Traffic()), map(int, added))))
    if done.returncode == HEARD:
        _start(launch, program, seconds, [*how, "opposite 1", "run"])
    return left


def _start(launch, program, seconds, how):
    """Run the program once; return the arrays that it left, and what it said."""
    with tempfile.NamedTemporaryFile(dir=program.parent) as file:
        lines = [f"file {file.name}", f"blocks {launch.blocks}", f"threads {launch.threads}"]
        lines += [f"shared {launch.shared_bytes}", f"limit {SHARED_LIMIT}"]
        lines += [f"first {launch.first_block}"]
        places = _write(file, launch, lines)
        done = call([program], input="\n".join(lines + how))
        _require_success(done, launch, seconds, program)
        return {name: _read(file, at, launch.arguments[name]) for name, at in places.items()}, done


def _check_launch(launch, order, flush):
    if flush and not FLUSHES:
        raise ValueError(f"flush must be False on this processor, {platform.machine()}")
    if order not in ("forward", "reverse") and not (isinstance(order, int) and order >= 0):
        raise ValueError(f'order must be "forward", "reverse" or an int >= 0, got {order!r}')
    if launch.blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {launch.blocks}")
    for name, value in launch.arguments.items():
        if not isinstance(value, np.ndarray | np.number | int | float):
            kind = type(value).__name__
            raise TypeError(f"{name} must be an array or a number, got {kind}")


def _write(file, launch, lines):
    """Write the arrays to a file, and a line for each argument; return where each array begins."""
    places, end = {}, 0
    for name, value in launch.arguments.items():
        if isinstance(value, np.ndarray):
            file.seek(end)
            file.write(value.tobytes())
            begin = (launch.begins or {}).get(name, 0) * value.itemsize
            lines.append(f"array {name} {end} {value.nbytes} {value.itemsize} {begin}")
            places[name] = end
            end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        else:
            lines.append(f"number {np.asarray(value).item() + 0!r}")  # True is 1
    file.truncate(end)
    file.flush()
    return places


def _read(file, place, array):
    """Return what stands in the file where the array was written."""
    file.seek(place)
    return np.frombuffer(file.read(array.nbytes), array.dtype).reshape(array.shape).copy()


def _require_success(done, launch, seconds, program):
    """Raise EmulationError, with what the program says, if a launch has failed."""
    kernel = launch.kernel
    if done.returncode == -signal.SIGALRM:
        raise EmulationError(f"{kernel} has not returned after {seconds} seconds")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise EmulationError(f"{kernel} crashed ({name}): a write past the end of an array?")
    if done.returncode not in (0, HEARD):
        message = with_lines(done.stderr.strip(), program, launch.file)
        raise EmulationError(f"{kernel}: {message}{_quoted(message, launch.source)}")


def _quoted(message, source):
    """Return the lines of the source that a message names, unless #line counts them otherwise."""
    lines = [] if "#line" in source else source.splitlines()
    named = dict.fromkeys(int(number) for number in re.findall(r" in line (\d+)", message))
    return "".join(f"\n{n:>7}: {lines[n - 1].strip()}" for n in named if n <= len(lines))
