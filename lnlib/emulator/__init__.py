'''CUDA C++ on a CPU: run a kernel without a GPU, thread by thread, and watch every access.

The kernel is compiled as it stands, by the C++ compiler of this machine (g++, clang++ or Zig). The
header emulator.h gives CUDA's words their meaning, and emulator.cpp is called wherever the kernel
touches memory. Each launch is a process of its own: nothing that a kernel does can harm Python.

>>> import numpy as np
>>> from lnlib.emulator import Launch, run
>>> source = """__global__ void reverse(const float *x, float *out, int n)
... {
...     __shared__ float copy[64];
...     copy[threadIdx.x] = x[threadIdx.x];
...     __syncthreads();
...     out[threadIdx.x] = copy[n - 1 - threadIdx.x];
... }"""
>>> x = np.arange(4, dtype=np.float32)
>>> arguments = {"x": x, "out": np.empty_like(x), "n": np.int32(4)}
>>> run(Launch(source, "reverse", blocks=1, threads=4, arguments=arguments))["out"]
array([3., 2., 1., 0.], dtype=float32)
>>> race = source.replace("__syncthreads();", "")
>>> run(Launch(race, "reverse", blocks=1, threads=4, arguments=arguments))
Traceback (most recent call last):
lnlib.emulator.translate.EmulationError: reverse: copy[2]: thread 2 writes it in line 4, and \
thread 1 read it in line 6, with no barrier in between, in block 0
      4: copy[threadIdx.x] = x[threadIdx.x];
      6: out[threadIdx.x] = copy[n - 1 - threadIdx.x];

What it reports, with the threads and the lines: an access outside of an array, or at an address
that is not aligned; a race between the threads of a block, or between blocks that no atomic and
fence order, in arrays, shared memory and __device__ variables; a write where another thread has
read; __ldg of what a thread of the kernel writes; a barrier or a shuffle that some threads do not
reach, though they have not ended; more threads than __launch_bounds__ allows; a call of a function
without __device__; shared memory beyond the limits of sm_90; a thread that never ends. If blocks
wait for the last of them, the kernel is run again with the blocks in the opposite order, so that a
last block which is known by its number is found out. Shared memory that nobody has written holds
NaN, and registers hold NaN or huge numbers. With flush=True, float32 numbers below 2**-126 count as
zero in arithmetic, as with -ftz=true on a GPU. It also counts what a kernel asks of memory: see
`Traffic`.

What it does not check: how long anything takes. It knows blocks and grids of one dimension and
warps that run in any order, but not several blocks that run at a time. sqrtf and the like are those
of the CPU; flush=True flushes float64 below 2**-1022, too. Of the reads of one number it remembers
those of two threads in the latest block and one in another block. A thread may write what only it
has read by __ldg before. Two shuffles in one line count as one. That __restrict__ is true is not
checked; nor is an index by a pointer into a __device__ array. Constructors need no __device__ here.
Blocks listen to each other through one integer: what a block has heard from a third one does not
count as said. A volatile access is an access like any other. CUDA that the emulator does not know
raises `Unsupported`, which does not mean that the kernel is wrong.

It needs NumPy, and Linux or macOS. `status` says what is missing. What is compiled is kept until
Python ends. If the variable CUDA_EMULATOR_FOLDER of the environment names a folder, it is kept
there, and every process that has this variable uses it again.
'''

from .build import NoCompiler, available, compiler, status
from .launch import FLUSHES, SHARED_LIMIT, Launch, Traffic, run
from .translate import EmulationError, Unsupported, without_comments
