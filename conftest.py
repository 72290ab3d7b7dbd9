"""One BLAS thread a process, also in the notebooks' kernels: small products only wait for more."""

import os

for name in ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "VECLIB_MAXIMUM"):
    os.environ.setdefault(f"{name}_THREADS", "1")  # read when NumPy is imported
