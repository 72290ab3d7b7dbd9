"""One BLAS thread a process, and the blocked layer in blocks however small the input."""

import os

for name in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "VECLIB_MAXIMUM"):
    os.environ.setdefault(f"{name}_THREADS", "1")  # read when NumPy is imported: also by kernels

import pytest  # noqa: E402

from lnlib import blocked  # noqa: E402


@pytest.fixture(autouse=True)
def everything_in_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "SMALL", 0)
    monkeypatch.setattr(blocked, "FEW", 0)
