"""Boundaries inside lnlib: private names stay in their module, and a name means one thing."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

LNLIB = Path(__file__).resolve().parent.parent / "lnlib"
SAME_MEANING = {  # names that stand in several modules, and mean the same in each
    "layer_norm_forward", "layer_norm_backward", "available", "status", "backend", "main",
}  # fmt: skip


def borrowed(source):
    """Return the private names that a module imports; ruff finds those it reaches for (SLF001)."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)]
    names = [f"{node.module or ''}.{alias.name}" for node in nodes for alias in node.names]
    return [name for name in names if re.search(r"(^|\.)_(?!_)", name)]


@pytest.mark.parametrize("path", sorted(LNLIB.rglob("*.py")), ids=lambda p: p.stem)
def test_no_module_uses_private_names_of_another(path):
    assert borrowed(path.read_text("utf-8")) == []


def test_borrowed_names_are_found():
    assert borrowed("from .layernorm import _check_eps, eps") == ["layernorm._check_eps"]
    assert borrowed("from . import _run") == ["._run"]
    assert borrowed("from ._run import run\nfrom __future__ import annotations") == ["_run.run"]


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
    counts = Counter(
        name for path in LNLIB.rglob("*.py") for name in defined(path.read_text("utf-8"))
    )
    assert {name for name, count in counts.items() if count > 1} == SAME_MEANING


def test_definitions_are_found():
    assert defined("A, (b, _c) = 1, (2, 3)\ndef f(x): y = x\nclass C: d = 1") == set("Abf") | {
        "_c", "C",
    }  # fmt: skip
