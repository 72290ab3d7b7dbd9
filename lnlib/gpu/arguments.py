"""What the kernels take: the checks of their arguments, which the GPU and the emulator share."""

import numpy as np

from ..checks import check_rows
from .dispatch import STORED


def check_kernel(kernel, known):
    """Raise ValueError if this is no kernel of a pass."""
    if kernel not in known:
        raise ValueError(f"kernel must be one of {', '.join(known)}, got {kernel!r}")


def check_size(x):
    """Raise ValueError if x has no entries in a row, or more rows or entries than an int counts."""
    check_rows(x)
    D = x.shape[-1]
    if D >= 2**30 or x.size // D >= 2**31:
        raise ValueError(f"x must have D < 2**30 and fewer than 2**31 rows, got shape {x.shape}")


def load_width(backend, width, D, *arrays):
    """Return how many entries one load can take: 16 bytes if rows start at multiples of that."""
    most = 16 // arrays[0].dtype.itemsize
    aligned = D % most == 0 and all(backend.address(a) % 16 == 0 for a in arrays)
    best = most if aligned else 1
    if width is True or width not in (None, 1, best):
        known = f"1, or {most} if rows start at multiples of 16 bytes"
        raise ValueError(f"width must be {known}, got {width}")
    return width or best


def check_parameter(backend, name, array, x):
    """Raise TypeError or ValueError if this cannot be gamma for x: of its dtype, or float32."""
    is_float32 = getattr(array, "dtype", None) == np.float32
    check_array(backend, name, array, x.shape[-1:], np.float32 if is_float32 else x.dtype)


def check_array(backend, name, array, shape=None, dtype=None):
    """Raise TypeError or ValueError if the kernels cannot read this array, or it is another's."""
    kind = backend.xp.ndarray
    if not isinstance(array, kind) or np.ma.isMaskedArray(array):
        full = f"{kind.__module__}.{kind.__name__}"
        raise TypeError(f"{name} must be a {full}, got {type(array).__name__}")
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {array.dtype}")
    if array.dtype.name not in STORED or not array.dtype.isnative:
        known = ", ".join(f"{dtype} ({cpp})" for dtype, cpp in STORED.items())
        raise TypeError(f"{name} must have one of the dtypes {known}, got {array.dtype}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, to fit x, got shape {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous, got a view; ascontiguousarray copies it")
    backend.check_place(name, array)
