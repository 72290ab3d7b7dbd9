"""Which part of lnlib may import which, so that each can be read, and lifted out, by itself."""

import ast
import doctest
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from execute_notebooks import ROOT, all_notebooks, cells_of

from lnlib import checker, emulator

LNLIB = ROOT / "lnlib"
ARROWS = {  # part of lnlib: the parts that it may import, besides itself
    "core": set(),
    "checker": set(),
    "emulator": set(),
    "compiled": {"emulator"},  # which finds a C++ compiler
    "gpu": {"core", "emulator"},
    "exercises": {"core", "checker", "gpu"},
}
OTHERS = {"numpy", "matplotlib", "IPython", "ipywidgets", "cupy", "cuda"}
SAME_MEANING = {  # names that stand in several modules, and mean the same in each
    "layer_norm_forward", "layer_norm_backward", "available", "status", "backend", "main",
}  # fmt: skip


def part_of(module):
    """Return the part to which a module belongs: its folder, or the core."""
    part = module.split(".")[1] if "." in module else "core"
    return part if (LNLIB / part).is_dir() else "core"


def imported(source, module=""):
    """Return what a source imports, as dotted names; module is its own name."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(module.split(".")[: -node.level]) if node.level else ""
            home = ".".join(filter(None, [package, node.module]))
            names |= {f"{home}.{alias.name}" for alias in node.names}
    return names


def name_of(path):
    """Return the dotted name of a module; a package's ends in __init__."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = {name_of(path): path.read_text("utf-8") for path in sorted(LNLIB.rglob("*.py"))}


@pytest.mark.parametrize("module", MODULES)
def test_arrows_point_one_way(module):
    found, part = imported(MODULES[module], module), part_of(module)
    ours = {name for name in found if name.split(".")[0] == "lnlib"}
    assert {part_of(name) for name in ours} <= ARROWS[part] | {part}
    assert {name.split(".")[0] for name in found - ours} <= OTHERS | sys.stdlib_module_names
    if module in ("lnlib.layernorm", "lnlib.checks"):
        assert {".".join(name.split(".")[:2]) for name in ours} <= {"lnlib.checks"}
    private = [name for name in found if re.search(r"\._(?!_)", name)]
    assert not private, "what begins with an underscore stays in its module"


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: path.name)
def test_notebooks_import_no_framework(path):
    code = [cell.source for cell in cells_of(path) if cell.cell_type == "code"]
    found = {name.split(".")[0] for name in imported("\n".join(code))}
    assert found <= OTHERS | {"lnlib"} | sys.stdlib_module_names


@pytest.mark.parametrize("tool", ["checker", "emulator"])
def test_tools_know_nothing_of_the_layer(tool):
    words = re.compile(r"layer.?norm|gamma|rstd|x_hat|\b(dy|eps)\b", re.IGNORECASE)
    for path in (LNLIB / tool).rglob("*.*"):
        assert path.suffix == ".pyc" or not words.search(path.read_text("utf-8")), path


lines = pytest.mark.skipif(not shutil.which("addr2line"), reason="no addr2line: no lines named")


@pytest.mark.parametrize("tool", [checker, pytest.param(emulator, marks=lines)])
def test_the_example_of_a_tool_is_true(tool):
    failed, tried = doctest.testmod(tool)
    assert failed == 0 < tried


def test_importing_is_light():
    """Nothing imports CuPy when it is imported, and only plots imports Matplotlib."""
    light = [name for name in MODULES if not re.match(r"lnlib\.plots\b", name)]
    code = f"import importlib, sys\nfor name in {light}: importlib.import_module(name)\n"
    code += "print({'matplotlib', 'cupy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def defined(source):
    """Return the functions, classes and constants that a module defines."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return {name for name in names if not name.startswith("__")}


def test_a_name_means_one_thing():
    counts = Counter(name for source in MODULES.values() for name in defined(source))
    assert {name for name, count in counts.items() if count > 1} == SAME_MEANING
