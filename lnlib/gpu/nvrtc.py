"""Compile the CUDA kernels without a GPU, and read what the compiler says about them."""

import re
from collections import Counter
from typing import NamedTuple

from .listing import read_source

INSTALL = "pip install -e '.[gpu]'"  # CuPy, NVRTC and CUDA's headers; not on macOS


class Compiled(NamedTuple):
    """One instantiation of a kernel.

    Attributes
    ----------
    registers : int
        Per thread.
    spilled : int
        Bytes per thread that did not fit into registers and are stored in global memory.
    shared : int
        Bytes of static shared memory per block; what a launch adds is not in it.
    ptx : str
        The kernel in PTX, the assembly language of an idealised GPU.
    """

    registers: int
    spilled: int
    shared: int
    ptx: str


def options(kernels):
    """Return the compiler's options for these instantiations."""
    words = {"__half": "-DWITH_HALF", "__nv_bfloat16": "-DWITH_BFLOAT16"}
    named = " ".join(kernels)
    return ("-std=c++17", *(option for word, option in words.items() if word in named))


def compile(arch, kernels, source=None):
    """Compile kernels for a GPU of this architecture; no GPU or driver is needed.

    Parameters
    ----------
    arch : str
        "sm_70", "sm_80", ...: "sm_" and the compute capability without its dot.
    kernels : list of str
        C++ names of instantiations, such as "forward<64, 4, 4>".
    source : str, optional
        CUDA C++ to compile instead of layernorm.cu.

    Returns
    -------
    dict of str to Compiled

    Raises
    ------
    RuntimeError
        If CuPy or NVRTC is missing; the message says how to install them.
    ValueError
        If NVRTC does not know arch, or the source does not compile; the message is NVRTC's.
    """
    nvrtc = cupy_with_nvrtc().cuda.nvrtc
    source = read_source() if source is None else source
    program = nvrtc.createProgram(source, "layernorm.cu", (), ())
    try:
        for kernel in kernels:
            nvrtc.addNameExpression(program, kernel)
        nvrtc.compileProgram(program, _flags(arch, kernels, source))
        ptx, log = nvrtc.getPTX(program), nvrtc.getProgramLog(program)
        ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
        names = {kernel: nvrtc.getLoweredName(program, kernel) for kernel in kernels}
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip()
        raise ValueError(f"no kernel for {arch}: {log or error}") from None
    finally:
        nvrtc.destroyProgram(program)
    return {kernel: _compiled(name, ptx, log) for kernel, name in names.items()}


def _flags(arch, kernels, source):
    """Return the options that CuPy adds when it compiles for a real GPU, and that of a report."""
    flags = [f"-arch={arch}", *options(kernels), "-ftz=true", "--ptxas-options=-v"]
    if "-DWITH_" in " ".join(flags) or "#include <cuda_" in source:
        from cuda import pathfinder  # which CuPy needs, too

        flags.append(f"-I{pathfinder.find_nvidia_header_directory('cudart')}")
    return tuple(flags)


def is_valid(launch):
    """Return True if NVRTC compiles the kernel of a Launch, False if not, None if it is missing."""
    try:
        return bool(compile("sm_80", [launch.kernel], launch.source))
    except ValueError:
        return False
    except RuntimeError:
        return None


def cupy_with_nvrtc():
    """Return CuPy; RuntimeError, with what to install, if there is none or it lacks NVRTC."""
    try:
        import cupy  # here and not above, so that lnlib can be imported where there is no CuPy

        cupy.cuda.nvrtc.getVersion()
    except ImportError:
        raise RuntimeError(f"CuPy is not installed ({INSTALL}; not on macOS)") from None
    except Exception as error:  # each version of CuPy has its own
        raise RuntimeError(f"NVRTC, the kernel compiler, is missing: {INSTALL} ({error})") from None
    return cupy


def _compiled(name, ptx, log):
    """Find what PTX and log say of the kernel with this mangled name."""
    report = re.search(rf"entry function '{name}'.*?(?=entry function|\Z)", log, re.DOTALL)[0]
    body = re.search(rf"\.entry {name}\(.*?\n}}", ptx, re.DOTALL)[0]
    found = re.findall(r"(\d+) (registers|bytes spill stores|bytes smem)", report)
    # The first of each: functions that the kernel calls are reported after it.
    first = Counter({what: int(number) for number, what in reversed(found)})
    return Compiled(first["registers"], first["bytes spill stores"], first["bytes smem"], body)
