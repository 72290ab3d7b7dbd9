"""lnlib/checker as a tool of its own: its example, and a place where nothing can be timed."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

from lnlib import checker

BARE = Path(__file__).parent / "bare"


def test_the_example_is_true():
    assert doctest.testmod(checker).failed == 0 < doctest.testmod(checker).attempted


def test_check_judges_without_threads_and_alarms():
    """As in a browser; see lnlib.checker.guard."""
    code = """if True:
        import signal
        from lnlib.exercises import check
        def row_mean(x):
            return x.mean(axis=0)
        print(hasattr(signal, "setitimer"), check(row_mean))
    """
    path = os.pathsep.join([str(BARE), str(BARE.parents[1])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False row_mean: wrong\n  mean: a wrong axis: axis 0")
