"""One BLAS thread a process, also in the notebooks' kernels: small products only wait for more."""

import os
import sys

for name in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "VECLIB_MAXIMUM"):
    os.environ.setdefault(f"{name}_THREADS", "1")  # read when NumPy is imported

# nbval reads notebooks by nbformat, nbformat asks jsonschema, and that builds parsers of addresses,
# which no notebook has: two seconds in every process. Without this module it does not.
sys.modules.setdefault("rfc3987_syntax", None)
pytest_plugins = ["nbval.plugin"]


def pytest_xdist_auto_num_workers():
    """One worker more than cores: while a kernel starts, its worker waits."""
    return (os.cpu_count() or 1) + 1
