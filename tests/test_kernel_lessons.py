"""What lessons 08 and 09 say of compilers, messages and predicted speeds, held to what is so."""

import ast
import functools
import re
import struct

import numpy as np
import pytest
from execute_notebooks import NOTEBOOKS, cells_of
from launches import needs_nvrtc

from lnlib import gpu
from lnlib.gpu import dispatch, residency

PATHS = sorted(NOTEBOOKS.glob("0[89]_*.ipynb"))
CELLS = [cell for path in PATHS for cell in cells_of(path)]
SHOWN = [o["data"] for cell in CELLS for o in cell.get("outputs", []) if "data" in o]
ARCHITECTURES = {"T4": "sm_75", "A100": "sm_80", "H100": "sm_90"}
COUNTED = next(c.source for c in CELLS if "COUNTED = {" in c.source)
COUNTED = ast.literal_eval(COUNTED.partition("COUNTED = ")[2].partition("\n}")[0] + "}")
TABLES = "\n".join(data.get("text/markdown", "") for data in SHOWN)


def test_race_messages_quote_the_lines_they_name():
    source = gpu.read_source().replace("[warp] = value;\n    __syncthreads();", "[warp] = value;")
    x = np.ones((1, 1000), np.float32)
    with pytest.raises(gpu.EmulationError) as caught:
        gpu.emulate_forward(x, x[0], x[0], source=source)
    message, *quoted = str(caught.value).splitlines()
    numbers = re.findall(r"in line (\d+)", message)
    lines = source.splitlines()
    assert len(numbers) == 2
    assert quoted == [f"{n:>7}: {lines[int(n) - 1].strip()}" for n in numbers]
    with pytest.raises(gpu.EmulationError) as caught:  # line 1 of what: nothing to quote
        gpu.emulate_forward(x, x[0], x[0], source=f'#line 1 "elsewhere"\n{source}')
    assert str(caught.value) == message


def test_listings_are_of_functions():
    with pytest.raises(ValueError, match="name must be that of a function in layernorm.cu"):
        gpu.listing("no_such_function")


def test_several_groups_are_of_one_warp_each():
    """block_sum has no slots for groups: two of two warps each would mix their sums."""
    arguments = {f"p{k}": 1 for k in range(11)}
    launch = gpu.Launch(gpu.read_source(), "backward<64, 4, 4, 2, 1>", 1, 128, arguments)
    with pytest.raises(gpu.EmulationError, match="block_sum knows one group, or groups of one"):
        gpu.emulate(launch)


@functools.cache
def machine_code(instance, source, arch, *options):
    """Return a kernel's instructions, each as an int of 128 bits."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "layernorm.cu", (), ())
    nvrtc.addNameExpression(program, instance)
    nvrtc.compileProgram(program, (f"-arch={arch}", "-std=c++17", "-ftz=true", *options))
    cubin = nvrtc.getCUBIN(program)  # an ELF file: where its sections are, then what they are
    (at,), (size, sections) = (
        struct.unpack_from("<Q", cubin, 40),
        struct.unpack_from("<HH", cubin, 58),
    )
    for n in range(sections):
        _, _, flags, _, start, length = struct.unpack_from("<2I4Q", cubin, at + n * size)
        if flags & 4:  # code
            words = (cubin[k : k + 16] for k in range(start, start + length, 16))
            return [int.from_bytes(word, "little") for word in words]


def opcodes(instance, source, arch, *options, bits=9):
    """Return the lowest bits of a kernel's instructions, in order: what each of them does."""
    return [word % 2**bits for word in machine_code(instance, source, arch, *options)]


def instructions(instance, wanted, source, arch, *options, bits=9):
    """Return how many instructions of a kernel do one of these things."""
    return np.count_nonzero(np.isin(opcodes(instance, source, arch, *options, bits=bits), wanted))


@needs_nvrtc
def test_by_default_a_product_and_a_difference_are_fused():
    """Without leave to do so, only fmaf is: one instruction for each of 32 entries."""
    fused = gpu.read_source()
    old, new = "fmaf(gain.at[j], d.at[j], -of.mean)", "gain.at[j] * d.at[j] - of.mean"
    assert fused.count(old) == 1
    apart = fused.replace(old, new)
    # FFMA of three registers
    count = functools.partial(instructions, "backward<32, 8, 4, 8, 2>", 0x223, bits=12)
    by_default = count(apart, "sm_90")  # one more or less around them
    assert abs(count(fused, "sm_90") - by_default) <= 1 and by_default > 32
    counted = [count(source, "sm_90", "-fmad=false") for source in (fused, apart)]
    assert counted[0] - counted[1] in (32, 64)  # 64: the loop stands there twice


LOAD, BRANCH, EXIT, SHUFFLE, ARITHMETIC = 0x181, 0x147, 0x14D, 0x189, (0x20, 0x21, 0x23)


def path_of_a_row(code, arch):
    """Return the numbers of the instructions that a thread carries out for a row, in order.

    What a branch leads to behind the last instruction, warps reach that have diverged.
    """
    names = [word % 2**9 for word in code]
    guarded = [word >> 12 & 15 != 7 for word in code]

    def target(i):
        jump = code[i] >> 34 & 2**48 - 1
        jump = 4 * (jump - 2**48 * (jump >> 47))
        if arch == "sm_90":
            jump = 256 * jump + 4 * (code[i] >> 16 & 255)
        return i + 1 + jump // 16

    first = names.index(LOAD)
    last = next(i for i in range(first, len(code)) if names[i] == EXIT and not guarded[i])
    i, path = 0, []
    while i <= last:
        path.append(i)
        skips = names[i] == BRANCH and guarded[i] and i < target(i) <= last
        i = target(i) if skips and SHUFFLE in names[i : target(i)] else i + 1
    return path


def steps_of(path):
    """Return how many loads of a row wait for one another, after the first.

    An instruction names the barrier that opens when its result is there, and those it waits for.
    """
    now, opens = 0, [0] * 6
    for word in path:
        now = max([now] + [opens[b] for b in range(6) if word >> 116 + b & 1])
        barrier = word >> 110 & 7
        if barrier < 6:
            opens[barrier] = max(opens[barrier], now + (word % 2**9 == LOAD))
    return now - 1


@needs_nvrtc
def test_instructions_and_steps_are_as_lesson_09_counts_them():
    """What runs for a row. T4, A100: float32 arithmetic takes twice its time; it may decide."""
    for gpu_name, arch in ARCHITECTURES.items():
        chosen = dispatch.choose("forward", 4096, 4)
        code = machine_code(chosen.expression, gpu.read_source(), arch)
        path = [code[i] for i in path_of_a_row(code, arch)]
        numbers = 4096 * chosen.rows / chosen.threads  # of a thread
        arithmetic = sum(word % 2**9 in ARITHMETIC for word in path)
        assert arithmetic / numbers == pytest.approx(8, abs=0.5)
        count = len(path) if arch == "sm_90" else max(len(path), 2 * arithmetic)
        instructions, steps, _ = COUNTED[gpu_name]
        assert count / numbers == pytest.approx(instructions, abs=1.5), arch
        assert abs(steps_of(path) - steps) <= 1, arch
        alone = count == len(path)  # instructions decide, not arithmetic
        assert alone == (arch != "sm_75")


@needs_nvrtc
def test_what_becomes_of_roots():
    roots = """template <int N> __global__ void roots(float *x)
    {
        x[0] = rsqrtf(x[0]);
        x[1] = 1.0f / sqrtf(x[1]);
    }"""
    ptx = gpu.compile("sm_90", ["roots<1>"], roots)["roots<1>"].ptx
    found = re.findall(r"\b(?:rsqrt|sqrt|rcp)[.\w]*(?=\.f32)", ptx)
    assert found == ["rsqrt.approx.ftz", "sqrt.rn.ftz", "rcp.rn.ftz"]


def test_what_is_held():
    """The cell's output varies with the compiler, and is stored: it must be of today's kernels."""

    def row(name):
        return re.search(rf"^\| {re.escape(name)} \|(.*)\|$", TABLES, flags=re.M)[1]

    names = ("registers of a thread", "room for so many threads", "threads held", "blocks held")
    registers, room, threads, shown = (int(row(name)) for name in names)
    chosen = dispatch.choose("forward", 4096, 4)
    blocks, limited_by = residency.resident_blocks("sm_75", chosen.threads, registers)
    assert (limited_by, blocks, blocks * chosen.threads) == ("threads", shown, threads)
    assert room == residency.LIMITS["sm_75"].threads
    assert row("rows held").split() == ["8", "|", "8", "|", "8"]
    sources = "\n".join(cell.source for cell in CELLS)
    told = re.search(r"limits\.values\(\)\] == \[(.*)\]", sources)[1]
    scores = [float(score) for score in row("score in step").split("|")]
    assert scores == [float(score) for score in told.split(", ")]


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES.values())
def test_a_fence_also_empties_the_cache(arch):
    """Perhaps no run shows that the second fence is missing."""
    source, kernel = gpu.read_source(), "backward_single<32, 8, 4, 8, 2, IN_SHARED>"
    CCTL = (0x98F,)
    assert instructions(kernel, CCTL, source, arch, bits=12) == 2
    without = "".join(source.rsplit("    __threadfence();", 1))
    assert instructions(kernel, CCTL, without, arch, bits=12) == 1


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES.values())
def test_the_last_block_has_16_numbers_in_flight(arch):
    """SINGLE_LIMIT counts on it: a thread asks for so many, then adds them up in float64."""
    limit = residency.LIMITS[arch].shared_per_block
    kernel = dispatch.choose("backward_single", 1024, 4, limit)
    assert kernel.threads == (128 if arch == "sm_75" else 256)
    found = opcodes(kernel.expression, gpu.read_source(), arch)
    order = "".join({0x181: "load ", 0x029: "add "}.get(opcode, "") for opcode in found)
    assert 16 * "load " + 16 * "add " + 8 * "load " + 8 * "add " in order
