"""What all of the suite's processes share, also the notebooks' kernels."""

import os
import sys
import tempfile

# One BLAS thread a process: small products only wait for more.
for name in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "VECLIB_MAXIMUM"):
    os.environ.setdefault(f"{name}_THREADS", "1")  # read when NumPy is imported

# Each kernel is compiled once. The first process, which imports this before all others, removes it.
if "CUDA_EMULATOR_FOLDER" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="cuda-emulator-", ignore_cleanup_errors=True)
    os.environ["CUDA_EMULATOR_FOLDER"] = COMPILED.name

# nbval reads notebooks by nbformat, nbformat asks jsonschema, and that builds parsers of addresses,
# which no notebook has: two seconds in every process. Without this module it does not.
sys.modules.setdefault("rfc3987_syntax", None)
pytest_plugins = ["nbval.plugin"]


def pytest_xdist_auto_num_workers():
    """One worker more than cores: while a kernel starts, its worker waits."""
    return (os.cpu_count() or 1) + 1
