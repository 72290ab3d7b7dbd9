"""lnlib/checker as a tool of its own: its example, its borders, and where nothing can be timed."""

import ast
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lnlib import checker

FOLDER = Path(checker.__file__).parent
BARE = Path(__file__).parent / "bare"


def test_the_example_is_true():
    assert doctest.testmod(checker).failed == 0 < doctest.testmod(checker).attempted


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_it_can_be_lifted_out(path):
    text = path.read_text("utf-8")
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert all(node.level <= 1 and "lnlib" not in (node.module or "") for node in imports)
    assert not re.search(r"(?i)layer ?norm|\b(x_hat|rstd|gamma|eps|dy|dgamma)\b", text)


def test_check_judges_without_threads_and_alarms():
    """As in a browser; see lnlib.checker.guard."""
    code = """if True:
        import signal
        from lnlib.exercises import check
        def row_mean(x):
            return x.mean(axis=0)
        print(hasattr(signal, "setitimer"), check(row_mean))
    """
    path = os.pathsep.join([str(BARE), str(FOLDER.parent.parent)])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False row_mean: wrong\n  mean: a wrong axis: axis 0")
