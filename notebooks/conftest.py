"""How pytest runs the lessons: 00 to 05 and 11 with NumPy alone, 09 as far as CuPy is there.

The kernels of the index, of lessons 00 to 05 and 11 and of their solutions start with
tests/bare/sitecustomize.py, which hides CuPy, compilers, the debugger and processes: so these
pages can also run in a browser.
"""

import importlib.util
import os
from pathlib import Path

import nbval.kernel
import pytest
from execute_notebooks import QUIET

HERE = Path(__file__).resolve().parent
BARE = HERE.parent / "tests/bare"
# Nobody compares the pictures. To crop a figure and to lay it out is to draw it several times.
DRAWN_ONCE = """
get_ipython().config.InlineBackend.print_figure_kwargs = {"bbox_inches": None}
if MATPLOTLIB:
    from matplotlib.figure import Figure
    Figure.set_layout_engine, Figure._layout_engine = lambda self, *args, **options: None, None
"""


def starts_twice(start_new_kernel):
    """Return nbval's start of a kernel, which tries again: others may take one of its ports first.

    jupyter_client looks for five free ports and leaves them; the kernel binds them a moment later.
    """

    def start(**options):
        try:
            return start_new_kernel(extra_arguments=QUIET, **options)
        except RuntimeError:
            return start_new_kernel(extra_arguments=QUIET, **options)

    return start


nbval.kernel.start_new_kernel = starts_twice(nbval.kernel.start_new_kernel)


def run_unseen(kernel, code):
    """Run code in a kernel, outside the notebook's history; return the kernel's reply."""
    return kernel.kc.execute(code, silent=True, store_history=False, reply=True, timeout=60)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """Start the kernel of a lesson, up to 05 and for 11 in its bare environment."""
    if item.parent.kernel is not None:
        return (yield)
    bare = item.path.name[:2] in "in 00 01 02 03 04 05 11".split()  # the first is the index
    with pytest.MonkeyPatch.context() as environment:
        if bare:
            paths = [str(BARE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            environment.setenv("PYTHONPATH", os.pathsep.join(paths))
            environment.setenv("PATH", "")
        result = yield
    drawn_once = DRAWN_ONCE.replace("MATPLOTLIB", str("matplotlib" in item.path.read_text("utf-8")))
    reply = run_unseen(item.parent.kernel, drawn_once)["content"]
    assert reply["status"] == "ok", reply
    if bare:
        reply = run_unseen(item.parent.kernel, "import os; os.system('')")["content"]
        assert reply.get("evalue", "").startswith("no processes here"), reply
    return result


def pytest_collection_modifyitems(items):
    """Without CuPy, skip lesson 09 from the first cell that asks NVIDIA's compiler."""
    if importlib.util.find_spec("cupy"):
        return
    found = False
    for item in items:
        if item.path == HERE / "09_kernel_speed.ipynb":
            found |= "gpu.occupancy(" in item.cell.source or "gpu.compile(" in item.cell.source
            if found:
                item.add_marker(pytest.mark.skip(reason="needs CuPy and NVIDIA's compiler"))
