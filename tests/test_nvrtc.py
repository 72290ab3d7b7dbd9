"""The CUDA kernels as NVRTC compiles them: registers, PTX, occupancy, and what it refuses."""

import re

import pytest
from launches import HALF_TYPES, needs_nvrtc

from lnlib import gpu
from lnlib.gpu import dispatch, nvrtc, residency

# ---- What is compiled ----------------------------------------------------------------------------

MAIN = "forward", "backward", "row_means", "backward_columns"


def alike(name):
    """Return what decides of a kernel's registers: where sums are held, its resident threads."""
    threads, *numbers = map(int, re.findall(r"\b\d+", name))
    if "IN_" in name:
        numbers[-1] *= threads  # blocks
    return re.sub(r"\b\d+", "", name), *numbers


def kernels_of(arch, x, gamma):
    """Return one of all that are alike: of those with wide loads the main ones, on a T4 nearly all.

    The variants without half types are there only where they are largest.
    """
    chosen = rf"({'|'.join(MAIN)})<\d+, (\d+, )?[48]\b"
    if (arch, x) == ("sm_75", "float32"):
        chosen = rf"(?!({'|'.join(dispatch.FLOAT32_ONLY)})<(32|64|128),)"
    names = dispatch.every(residency.LIMITS[arch].shared_per_block, x, gamma)
    return [*{alike(name): name for name in names if re.match(chosen, name)}.values()]


# Architecture, dtypes of x and gamma, what stands in the names. The oldest generation and the
# newest: sm_70 runs what sm_75 runs, sm_89 what sm_86 does. For sm_80, sm_90 lesson 09 compiles.
# Of sm_120 the kernels that sm_100 lacks. A T4 has no bfloat16. Kernels that keep their sums in
# shared memory need not see float16, too: they read and write numbers by the same two conversions.
COMPILED = [("sm_75", "float32", "float32", ""), ("sm_100", "float32", "float32", "")]
COMPILED += [("sm_120", "float32", "float32", "IN_REGISTERS")]
COMPILED += [("sm_75" if name == "float16" else "sm_90", name, name, "") for name in HALF_TYPES]
COMPILED += [("sm_86", "uint16", "float32", "")]


@needs_nvrtc
@pytest.mark.parametrize("arch, x, gamma, which", COMPILED)
def test_compiles_without_spills(arch, x, gamma, which):
    if int(arch.removeprefix("sm_")) not in nvrtc.cupy_with_nvrtc().cuda.nvrtc.getSupportedArchs():
        pytest.skip(f"this NVRTC does not compile for {arch}")
    names = [name for name in kernels_of(arch, x, gamma) if which in name]
    assert len(names) > 3 and (which or set(MAIN) <= {name.split("<")[0] for name in names})
    for name, kernel in gpu.compile(arch, names).items():
        assert kernel.spilled == 0 and kernel.registers > 0, name
        tile, in_registers, _ = name.partition(", IN_REGISTERS")
        if in_registers:  # as many warps as fit with 64 registers a thread, or 80
            threads, *_, blocks = map(int, re.findall(r"\d+", tile))
            assert residency.resident_blocks(arch, threads, kernel.registers)[0] >= blocks


@needs_nvrtc
def test_vector_loads_shuffles_and_barriers_in_ptx():
    names = ["forward<64, 4, 4>", "forward<64, 16, 1>", "forward<32, 1, 4>"]
    wide, narrow, warp = (kernel.ptx for kernel in gpu.compile("sm_90", names).values())
    x_gamma_beta = 4 + 4 + 4
    assert wide.count("ld.global.nc.v4.f32") == x_gamma_beta
    assert wide.count("st.global.v4.f32") == 4
    assert narrow.count("ld.global.nc.f32") == 3 * 16 and "v4" not in narrow
    assert wide.count("shfl.sync.bfly") == 3 * (5 + 1) and wide.count("bar.sync") == 3
    assert warp.count("shfl.sync.bfly") == 3 * 5 and "bar.sync" not in warp


@needs_nvrtc
def test_spills_and_shared_memory_are_reported():
    name = "forward<64, 16, 1>"
    usual = gpu.compile("sm_90", [name])[name]
    assert (usual.spilled, usual.shared) == (0, 2 * 2 * 4)
    tight = gpu.read_source().replace("CAPPED ? 1024 / (THREADS * ROWS) : 0", "32")
    crowded = gpu.compile("sm_90", [name], tight)[name]
    assert crowded.registers <= 32 and crowded.spilled > 0


@needs_nvrtc
def test_what_a_kernel_calls_is_not_reported_for_it():
    source = """
    __noinline__ __device__ float called(float v) { return __sinf(v); }
    template <int N> __global__ void __launch_bounds__(1024, 2) crowded(float *x)
    {
        float kept[N];
        for (int k = 0; k < N; k++) kept[k] = x[k];
        x[0] = called(x[1]);
        __syncthreads();
        for (int k = 0; k < N; k++) x[N + k] = kept[k];
    }"""
    assert gpu.compile("sm_90", ["crowded<64>"], source)["crowded<64>"].spilled > 0


NOT_COMPILED = [
    ({"arch": "sm_1"}, "no kernel for sm_1: .*architecture"),
    ({"source": "__global__ void f() { x }", "kernels": ["f"]}, '"x" is undefined'),
    ({"kernels": ["forward<1>"]}, "no kernel for sm_90"),
]


@needs_nvrtc
@pytest.mark.parametrize("change, message", NOT_COMPILED)
def test_compiler_errors_are_passed_on(change, message):
    with pytest.raises(ValueError, match=message):
        gpu.compile(**({"arch": "sm_90", "kernels": ["forward<64, 4, 4>"]} | change))


# ---- Occupancy -----------------------------------------------------------------------------------


def test_resident_blocks_by_the_documented_formula():
    """Worked by hand from the tables of the CUDA programming guide."""
    resident = residency.resident_blocks
    assert resident("sm_90", 64, 40) == (24, "registers")  # 16384 // 1280 = 12 warps a quarter
    assert resident("sm_90", 256, 128, 64 * 1024) == (2, "registers")
    assert resident("sm_90", 512, 64, 100 * 1024) == (2, "registers")
    assert resident("sm_75", 256, 128, 64 * 1024) == (1, "shared memory")
    assert resident("sm_75", 1024, 64) == (1, "threads")  # the registers are full, too
    assert resident("sm_86", 32, 16) == (16, "blocks")
    assert resident("sm_89", 512, 32) == (3, "threads")
    assert resident("sm_80", 128, 32, 32 * 1024) == (4, "shared memory")  # 164 // (32 + 1)
    with pytest.raises(ValueError, match="arch must be one of sm_70, .*, got 'sm_60'"):
        resident("sm_60", 64, 40)


@needs_nvrtc
def test_occupancy_of_a_launch():
    full = gpu.occupancy("backward", 65536, 1024, "sm_90")
    assert full.kernel == "backward<32, 8, 4, 8, 2, IN_SHARED>" and full.spilled == 0
    assert full.resident == 2 and full.blocks == 512  # of 2 * 264: two full waves of 16 rows a warp
    assert full.bytes_in_flight == 2 * 8 * 2 * 1024 * 4
    fewer = gpu.occupancy("backward", 65536, 1024, "sm_90", multiprocessors=114)  # on PCI Express
    assert (fewer.resident, fewer.blocks) == (2, 456)  # two full waves of 228
    assert gpu.occupancy("forward", 8192, 1024, "sm_90").waves > 1
    on_a_t4 = gpu.occupancy("backward", 8192, 4096, "sm_75")
    assert on_a_t4.resident == 2 and on_a_t4.bytes_in_flight == 2 * 8 * 4096
    twice = [gpu.occupancy(kernel, 2048, 16384, "sm_75") for kernel in ("row_means", "backward")]
    assert [one.blocks for one in twice] == [2048, 160]
    assert [one.bytes_in_flight for one in twice] == [2 * 4 * 16384, 4 * 256 * 32]
