"""CUDA's declarations for a C++ compiler, and that compiler's errors for a reader of CUDA."""

import re

from . import nvrtc

# CUDA's words that are valid, though not known here, where NVRTC cannot be asked.
OTHER_WORDS = re.compile(
    r"cooperative_groups|cg|cuda|nvcuda|wmma|__(dp4a|nanosleep|trap|assert_fail|match_\w+_sync|"
    r"reduce_\w+_sync|activemask|half2|nv_bfloat162|h\w+2|byte_perm|brev|funnelshift_\w+|asm)\b"
)


class EmulationError(RuntimeError):
    """A kernel did what no kernel may do; the message says who did it and where."""


class Unsupported(RuntimeError):
    """Valid CUDA that the emulator does not know; the message says what."""


def translate(source):
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
    """Turn one declaration of shared arrays into references to what the emulator provides.

    "__shared__ float a[8], b;" becomes "struct a_declared { float a[8], b; };" and for each name
    "decltype(auto) a = emulated::shared<decltype(a_declared::a)>(...);".
    """
    declared = re.sub(r"\b(extern|static|__shared__)\b", "", match[0])
    declared, sized_at_launch = re.subn(r"\[\s*\]", "[1]", declared)
    parts = re.split(r",(?![^<\[(]*[>\])])", declared)
    names = [re.search(r"(\w+)\s*(\[.*\])?\s*;?$", part, re.DOTALL)[1] for part in parts]
    made = f"struct {names[0]}_declared {{ {declared} }};"
    for name in names:
        made += (
            f" static void *{name}_site; decltype(auto) {name} = emulated::"
            f"{'dynamic_' * sized_at_launch}shared<decltype({names[0]}_declared::{name})>"
            f'(&{name}_site, "{name}");'
        )
    return made


def errors_in(log):
    """Return (file:line, message) of each error in what a compiler says."""
    pattern = r"(?m)^([^\n]*?:\d+)(?::\d+)?: (?:fatal )?error: (.*)$"
    return re.findall(pattern, log) or [("", (log.strip() or "no word").splitlines()[-1])]


def explain(kernel, source, log):
    """Raise what is to be said of a kernel that does not compile, with the line quoted."""
    errors = errors_in(log)
    place, error = next((e for e in errors if "emulator.h" not in e[0]), errors[0])
    quoted = _lines(source).get(place, "").strip()
    name = re.search(r"[‘'\"]([\w:]+)", error)
    name = name[1] if name else quoted
    if foreign := re.search(r"(?m)#\s*include\b.*|\basm\b|\b(std|cuda)\b *::", translate(source)):
        raise Unsupported(f"the emulator does not know {foreign[0]}")  # not every NVRTC does
    try:
        valid = bool(nvrtc.compile("sm_80", [kernel], source))
    except RuntimeError:  # NVRTC is not here
        valid = OTHER_WORDS.match(name)
    except ValueError:
        valid = False
    if valid and "return-type" not in error:  # nvcc, too, only warns of that
        raise Unsupported(f"the emulator does not know {name} ({place}: {quoted})")
    said = f"{kernel} does not compile: {place}: error: {error}\n    {quoted}"
    raise EmulationError(said.rstrip())


def _lines(source):
    """Return {file:line: text} as the compiler counts them."""
    lines = {}
    parts = re.split(r'(?m)^#line (\d+) "(.*)".*\n?', f'#line 1 "layernorm.cu"\n{source}')
    for first, file, text in zip(parts[1::3], parts[2::3], parts[3::3]):
        for number, line in enumerate(text.splitlines(), int(first)):
            lines[f"{file}:{number}"] = line
    return lines
