"""Compile the CUDA kernels without a GPU, and read what the compiler says about them."""

import re
from collections import Counter
from typing import NamedTuple

from . import passes


class Compiled(NamedTuple):
    """One instance of a kernel.

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


def compile(arch="sm_90", kernels=None, source=None):
    """Compile kernels for a GPU of this architecture; no GPU or driver is needed.

    Parameters
    ----------
    arch : str
        "sm_70", "sm_80", ...: "sm_" and the compute capability without its dot.
    kernels : iterable of str, optional
        C++ names of instances, such as "forward<64, 4, 4>". By default all that can be launched
        for float32 on a GPU with 227 KiB of shared memory per block.
    source : str, optional
        CUDA C++ to compile instead of layernorm.cu.

    Returns
    -------
    dict of str to Compiled

    Raises
    ------
    RuntimeError
        If CuPy or NVRTC is missing.
    ValueError
        If NVRTC does not know arch, or the source does not compile; the message is NVRTC's.
    """
    nvrtc = _nvrtc()
    kernels = list(passes.instances() if kernels is None else kernels)
    source = passes.read_source() if source is None else source
    # The options are those that CuPy adds when it compiles for a real GPU, and a report.
    options = [f"-arch={arch}", *passes.options(kernels), "-ftz=true", "--ptxas-options=-v"]
    if "-DHALF_TYPES" in options:
        from cuda import pathfinder  # which CuPy needs, too

        options.append(f"-I{pathfinder.find_nvidia_header_directory('cudart')}")
    program = nvrtc.createProgram(source, "layernorm.cu", (), ())
    try:
        for kernel in kernels:
            nvrtc.addNameExpression(program, kernel)
        nvrtc.compileProgram(program, tuple(options))
        ptx, log = nvrtc.getPTX(program), nvrtc.getProgramLog(program)
        ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
        names = {kernel: nvrtc.getLoweredName(program, kernel) for kernel in kernels}
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip()
        raise ValueError(f"no kernel for {arch}: {log or error}") from None
    finally:
        nvrtc.destroyProgram(program)
    return {kernel: _compiled(name, ptx, log) for kernel, name in names.items()}


def _nvrtc():
    try:
        import cupy

        cupy.cuda.nvrtc.getVersion()
    except ImportError:
        raise RuntimeError("CuPy is not installed (pip install cupy-cuda12x)") from None
    except Exception as error:  # each version of CuPy has its own
        raise RuntimeError(f"the kernel compiler NVRTC is missing ({error})") from None
    return cupy.cuda.nvrtc


def _compiled(name, ptx, log):
    """Find what PTX and log say of the kernel with this mangled name."""
    report = re.search(rf"entry function '{name}'.*?(?=entry function|\Z)", log, re.DOTALL)[0]
    body = re.search(rf"\.entry {name}\(.*?\n}}", ptx, re.DOTALL)[0]
    found = re.findall(r"(\d+) (registers|bytes spill stores|bytes smem)", report)
    # The first of each: functions that the kernel calls are reported after it.
    said = Counter({what: int(number) for number, what in reversed(found)})
    return Compiled(said["registers"], said["bytes spill stores"], said["bytes smem"], body)
