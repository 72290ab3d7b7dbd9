"""Boundaries inside lnlib: what begins with an underscore stays in its module."""

import ast
from pathlib import Path

import pytest

LNLIB = Path(__file__).resolve().parent.parent / "lnlib"
NAMED_TUPLE = {"_replace", "_fields", "_asdict", "_make"}  # public, though written like this


def private(name):
    return name.startswith("_") and not name.startswith("__")


def borrowed(source):
    """Return the private names that a module imports, or reaches for in a module it imports."""
    found, modules = [], set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                modules.add((alias.asname or alias.name).split(".")[0])
                if any(map(private, f"{getattr(node, 'module', '')}.{alias.name}".split("."))):
                    found.append(alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            owner = node.value
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name) and owner.id in modules and node.attr not in NAMED_TUPLE:
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", sorted(LNLIB.rglob("*.py")), ids=lambda p: p.stem)
def test_no_module_uses_private_names_of_another(path):
    assert borrowed(path.read_text("utf-8")) == []


def test_borrowed_names_are_found():
    assert borrowed("from .layernorm import _check_eps, row_mean") == ["_check_eps"]
    assert borrowed("from ..gpu import emulator\nemulator._run(1)") == ["emulator._run"]
    assert borrowed("import numpy as np\nnp._core.umath") == ["np._core"]
    assert borrowed("from ._run import run") == ["run"]
    assert borrowed("import copy\nself._kept = copy.copy(cache._replace(x=1))") == []
