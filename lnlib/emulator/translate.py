"""CUDA's declarations for a C++ compiler, and that compiler's errors for a reader of CUDA."""

import functools
import re

# CUDA's words that are valid, though not known here, where no compiler of CUDA can be asked.
OTHER_WORDS = re.compile(
    r"cooperative_groups|cg|cuda|nvcuda|wmma|h2?(exp|log|r?sqrt|rcp|sin|cos)\w*|__(dp4a|nanosleep|trap|"
    r"assert_fail|match_\w+_sync|reduce_\w+_sync|h\w+|byte_perm|brev|funnelshift_\w+|asm)\b"
)
KNOWN_HEADERS = r"(?m)^[ \t]*#\s*include <(cuda|device_|c?math|std|c?float)[\w.]*>"
FOREIGN = r"(?m)#\s*include\b.*|\basm\b|\b(std|cuda)\b *::"
COMMENT_OR_STRING = r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
QUALIFIERS = r"(?:(?:extern|static|volatile|(?:__align__|alignas)\([^)]*\))\s+)*"
SHARED = rf"{QUALIFIERS}__shared__\s[^;{{}}=]*;"
BOUNDED = r"(?m)(^[^#\n]*__launch_bounds__\(((?:[^()]|\([^()]*\))*)\)[^;{}#]*\)\s*\{)"
FUNCTION = r"[\w>&*]\s+[&*]*(\w+|operator\W+)\s*\([^{}]*\)\s*(const\s*)?\{$"
NOT_ITS_HEAD = r"=|\b(__device__|__global__|constexpr|alignas|__align__|if|for|while|switch|else)\b"
OUTER_COMMA = r",(?![^<\[(]*[>\])])"  # not between brackets


class EmulationError(RuntimeError):
    """A kernel did what no kernel may do; the message says who did it and where."""


class Unsupported(RuntimeError):
    """Valid CUDA that the emulator does not know; the message says what."""


@functools.lru_cache(maxsize=8)  # most launches are of the last source again
def translate(source):
    """Turn the declarations of shared arrays into what C++ has for them; drop what it has not."""
    source = re.sub(KNOWN_HEADERS, "", without_comments(source))
    source = re.sub(BOUNDED, r"\1 emulated::launch_bounds(\2);", source)
    source = re.sub(r"[^;{}]*\{", _host_function, source)
    return re.sub(SHARED, _shared, source)


def without_comments(source):
    """Return C++ with a space, or its line breaks, in place of each comment."""

    def without(match):
        return "\n" * match[0].count("\n") or " " if match[0].startswith("/") else match[0]

    return re.sub(COMMENT_OR_STRING, without, source, flags=re.DOTALL)


def _host_function(match):
    """Put a check into a function without __device__: that no kernel calls it."""
    head = re.sub(r"(?m)^\s*#.*", "", match[0])
    if head.count("(") != head.count(")") or re.search(NOT_ITS_HEAD, head):
        return match[0]
    return match[0] + " emulated::host_function();" * bool(re.search(FUNCTION, head))


def _shared(match):
    """Turn one declaration of shared arrays into references to what the emulator provides.

    "__shared__ float a[8], b;" becomes "struct a_declared { float a[8], b; };" and for each name
    "decltype(auto) a = emulated::shared<decltype(a_declared::a)>(...);".
    """
    declared = re.sub(r"\b(extern|static|__shared__)\b", "", match[0])
    provider = "emulated::shared"
    if re.search(r"\[\s*\]", declared):  # no size here: the launch sets it
        declared = re.sub(r"\[\s*\]", "[1]", declared)
        provider = "emulated::dynamic_shared"
    names = [_last_name(part) for part in re.split(OUTER_COMMA, declared)]
    record = f"{names[0]}_declared"
    translated = f"struct {record} {{ {declared} }};"
    for name in names:
        found = f'{provider}<decltype({record}::{name})>(&{name}_site, "{name}")'
        translated += f" static void *{name}_site; decltype(auto) {name} = {found};"
    return translated


def _last_name(part):
    """Return the name in "float a[8]" or "b;": what stands before brackets, or at the end."""
    return re.search(r"(\w+)\s*(\[.*\])?\s*;?$", part, re.DOTALL)[1]


def errors_in(log):
    """Return (file:line, message) of each error in a compiler's log."""
    pattern = r"(?m)^([^\n]*?:\d+)(?::\d+)?: (?:fatal )?error: (.*)$"
    return re.findall(pattern, log) or [("", (log.strip() or "no word").splitlines()[-1])]


def explain(launch, log, is_valid):
    """Raise what is to be said of a kernel that does not compile, with the line quoted."""
    if foreign := re.search(FOREIGN, translate(launch.source)):
        raise Unsupported(f"the emulator does not know {foreign[0]}")  # no compiler has all headers
    errors = errors_in(log)
    place, error = next((e for e in errors if "emulator.h" not in e[0]), errors[0])
    quoted = _lines(launch).get(place, "").strip()
    named = re.search(r"[‘'\"]([\w:]+)", error)
    name = named[1] if named else quoted
    valid = is_valid(launch) if is_valid else None
    if valid is None:
        valid = OTHER_WORDS.match(name)
    if valid and not re.search("return-type|uninitialized", error):  # nvcc only warns of these
        raise Unsupported(f"the emulator does not know {name} ({place}: {quoted})")
    message = f"{launch.kernel} does not compile: {place}: error: {error}\n    {quoted}"
    raise EmulationError(message.rstrip())


def _lines(launch):
    """Return {file:line: text} as the compiler counts them."""
    lines = {}
    source = f'#line 1 "{launch.file}"\n{launch.source}'
    parts = re.split(r'(?m)^#line (\d+) "(.*)".*\n?', source)
    for first, file, text in zip(parts[1::3], parts[2::3], parts[3::3]):
        for number, line in enumerate(text.splitlines(), int(first)):
            lines[f"{file}:{number}"] = line
    return lines
