"""Boundaries inside lnlib: what begins with an underscore stays in its module."""

import ast
import re
from pathlib import Path

import pytest

LNLIB = Path(__file__).resolve().parent.parent / "lnlib"


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
