"""Watch NumPy work: every array operation of a function, with its FLOPs and the memory it touches.

The formulas of `lnlib.cost` are counted by hand from the source; this counts what really runs.
"""

from collections import OrderedDict
from typing import NamedTuple
from unittest import mock

import numpy as np

PAGE = 4096  # bytes: the unit in which `traffic` follows what is in the cache


class Step(NamedTuple):
    """One NumPy operation.

    Attributes
    ----------
    name : str
        Of the ufunc, with ".reduce" for sums and the like.
    flops : int
        One for each element that an elementwise operation writes or a reduction reads (a
        comparison, an absolute value or a root counts as one), two for each product in a matrix
        product.
    reads, writes : list of (int, int)
        Address and size, in bytes, of the arrays that are read and written.
    """

    name: str
    flops: int
    reads: list
    writes: list


def trace(function, *arrays):
    """Call function(*arrays) and record its array operations.

    Parameters
    ----------
    function : callable
        Whatever it does to the arrays through NumPy's ufuncs is seen; plain copies are not.
    *arrays : ndarray

    Returns
    -------
    result : object
        What function returned.
    steps : list of Step
    """
    empty = np.empty

    def traced_empty(*args, **kwargs):
        return empty(*args, **kwargs).view(_Traced)

    _Traced.steps = steps = []
    try:
        with mock.patch("numpy.empty", traced_empty), mock.patch("numpy.asarray", np.asanyarray):
            return function(*(a.view(_Traced) for a in arrays)), steps
    finally:
        _Traced.steps = None


def traffic(steps, cache_bytes):
    """Bytes that go to and from memory when a cache of a given size serves the steps.

    Parameters
    ----------
    steps : list of Step
    cache_bytes : int
        The cache drops what was not used for longest, in pages of 4096 bytes.

    Returns
    -------
    bytes : int
        Pages that were read and not in the cache, and pages that were written and had to leave
        (all of them, in the end). A page that is only written is not read first; on hardware that
        does so, writes count twice.
    """
    cache, moved = OrderedDict(), 0  # page -> whether it was written, least recently used first
    for step in steps:
        operands = [(_pages(r), False) for r in step.reads] + [
            (_pages(w), True) for w in step.writes
        ]
        for k in range(max(len(pages) for pages, _ in operands)):  # all operands side by side
            for pages, write in operands:
                if k < len(pages):
                    page = pages[k]
                    moved += page not in cache and not write
                    cache[page] = cache.pop(page, False) or write
                    if len(cache) * PAGE > cache_bytes:
                        moved += cache.popitem(last=False)[1]
    return (moved + sum(cache.values())) * PAGE


class _Traced(np.ndarray):
    """An array that writes down every ufunc it takes part in, and so do the results."""

    steps = None  # a list while `trace` runs

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        inputs = [_plain(a) for a in inputs]
        if out:
            options["out"] = tuple(_plain(a) for a in out)
        result = getattr(ufunc, method)(*inputs, **options)
        results = result if isinstance(result, tuple) else (result,)
        if _Traced.steps is not None:
            _Traced.steps.append(_step(ufunc, method, inputs, results))
        wrapped = tuple(r.view(_Traced) if isinstance(r, np.ndarray) else r for r in results)
        return wrapped if isinstance(result, tuple) else wrapped[0]


def _pages(operand):
    address, size = operand
    return range(address // PAGE, (address + size - 1) // PAGE + 1)


def _plain(a):
    return a.view(np.ndarray) if isinstance(a, np.ndarray) else a


def _step(ufunc, method, inputs, results):
    arrays = [a for a in inputs if isinstance(a, np.ndarray)]
    size = max(a.size for a in (arrays if method == "reduce" else results))
    if ufunc in (np.matmul, np.vecdot):
        size *= 2 * arrays[0].shape[-1]
    name = ufunc.__name__ + (".reduce" if method == "reduce" else "")
    return Step(name, size, _ranges(arrays), _ranges(r for r in results if np.ndim(r)))


def _ranges(arrays):
    bounds = {np.lib.array_utils.byte_bounds(a) for a in arrays if a.size}
    return [(low, high - low) for low, high in sorted(bounds)]
