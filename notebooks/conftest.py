"""How pytest runs the lessons: 00 to 04 with Python and NumPy alone, 06 as far as CuPy is there.

The kernels of lessons 00 to 04 and of their solutions start with tests/bare/sitecustomize.py, which
hides CuPy, compilers and processes: so these lessons can also run in a browser.
"""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BARE = HERE.parent / "tests/bare"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """Start the kernel of a lesson up to 04 in its bare environment."""
    if item.path.name >= "05" or item.parent.kernel is not None:
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        paths = [str(BARE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment.setenv("PYTHONPATH", os.pathsep.join(paths))
        environment.setenv("PATH", "")
        result = yield
    kernel = item.parent.kernel.kc
    probe = {"code": "import os; os.system('')", "silent": True, "store_history": False}
    reply = kernel.execute(**probe, reply=True, timeout=60)["content"]
    assert reply.get("evalue", "").startswith("no processes here"), reply
    return result


def pytest_collection_modifyitems(items):
    """Without CuPy, skip lesson 06 from the first cell that asks NVIDIA's compiler."""
    if importlib.util.find_spec("cupy"):
        return
    found = False
    for item in items:
        if item.path == HERE / "06_fused_gpu_kernel.ipynb":
            found |= "gpu.occupancy(" in item.cell.source or "gpu.compile(" in item.cell.source
            if found:
                item.add_marker(pytest.mark.skip(reason="needs CuPy and NVIDIA's compiler"))
