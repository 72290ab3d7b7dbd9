"""Watch NumPy work: every array operation of a function, with its FLOPs and the memory it touches.

The formulas of `lnlib.cost` are counted by hand from the source; this counts what really runs.
The arrays of a traced function are of a subclass that writes down what is done with it.
"""

import functools
import itertools
import math
import re
import threading
from collections import OrderedDict
from typing import NamedTuple
from unittest import mock

import numpy as np

PAGE = 4096  # bytes: the unit in which `traffic` follows what is in the cache
PRODUCTS = "matmul vecdot matvec vecmat".split()  # the ufuncs that do more than one per element
# what makes arrays, or plain arrays of traced ones: patched during a trace
MAKERS = "empty zeros ones full array asarray ascontiguousarray".split()
UNWRITTEN = "empty empty_like zeros".split()  # the system clears the pages of large arrays
METHODS = "astype copy cumsum dot fill flatten ravel repeat reshape take".split()


class Step(NamedTuple):
    """One NumPy operation.

    Attributes
    ----------
    name : str
        Of the ufunc, with ".reduce" for sums and the like, or of the function; "setitem" for
        a[index] = value, "getitem" for an index that copies.
    flops : int
        One for each element that an elementwise operation writes or a reduction reads (a
        comparison, an absolute value or a root counts as one), two for each product in a matrix
        product, NumPy's own count for einsum, none for other functions.
    reads, writes : list of (int, int)
        Address and size, in bytes, of the arrays that are read and written, from the first byte
        to the last, whatever lies between.
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
        What it does to the arrays through NumPy is seen, assignments and copies too. Not seen are
        single elements, and what happens behind a list, a buffer or an address; a trace within this
        one keeps its steps. Traces in other threads wait for this one.
    *arrays : ndarray

    Returns
    -------
    result : object
        What function returned; its arrays will be seen by the next trace too.
    steps : list of Step
    """
    steps, makers = [], {name: _watched(getattr(np, name)) for name in MAKERS}
    with _one_thread, mock.patch(f"{__name__}._steps", steps), mock.patch.multiple(np, **makers):
        return function(*(a.view(_Traced) for a in arrays)), steps


def traffic(steps, cache_bytes, write_allocate=False, page_bytes=PAGE):
    """Bytes that go to and from memory when a cache of a given size serves the steps.

    Parameters
    ----------
    steps : list of Step
    cache_bytes : int
        The cache drops what was not used for longest, in pages.
    write_allocate : bool
        Whether a page that is written, and not in the cache, is read first, as most hardware does.
    page_bytes : int
        Of a page: larger ones are counted sooner, and at the ends of arrays less exactly.

    Returns
    -------
    bytes : int
        Pages that were read and not in the cache, and pages that were written and had to leave
        (all of them, in the end).
    """
    cache, moved = OrderedDict(), 0  # page -> whether it was written, least recently used first
    room = cache_bytes // page_bytes
    for page, write in itertools.chain.from_iterable(_pages(s, page_bytes) for s in steps):
        if page in cache:
            cache.move_to_end(page)
            if write:
                cache[page] = True
            continue
        moved += write_allocate or not write
        cache[page] = write
        if len(cache) > room:
            moved += cache.popitem(last=False)[1]
    return (moved + sum(cache.values())) * page_bytes


def _pages(step, page_bytes):
    """Yield (page, whether it is written) in the order of a step that goes through its operands."""
    spans = step.reads + step.writes
    pages = [
        range(start // page_bytes, (start + size - 1) // page_bytes + 1) for start, size in spans
    ]
    for beside in itertools.zip_longest(*pages):
        for operand, page in enumerate(beside):
            if page is not None:  # else this operand is shorter
                yield page, operand >= len(step.reads)


_one_thread = threading.RLock()  # which may trace, also within a trace
_steps = None  # what is being recorded


class _Traced(np.ndarray):
    """An array that writes down what is done with it, and so do the results."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        inputs, options = _as(np.ndarray, inputs), _as(np.ndarray, options)
        result = getattr(ufunc, method)(*inputs, **options)
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        flops = _ufunc_flops(ufunc, method, inputs, options, result)
        reads = inputs, options.get("where")
        _record(name, flops, reads, inputs[0] if method == "at" else result)
        return _as(_Traced, result)

    def __array_function__(self, function, types, args, kwargs):
        call = super().__array_function__
        return _watch(function.__name__, lambda: call(function, types, args, kwargs), args, kwargs)

    def __getitem__(self, index):
        result = super().__getitem__(index)
        if isinstance(result, np.ndarray) and result.size and not np.may_share_memory(result, self):
            _record("getitem", 0, (self, index), result)
        return result

    def __setitem__(self, index, value):
        target, index, value = _as(np.ndarray, (self, index, value))
        target[index] = value
        part = target[index]
        if not isinstance(part, np.ndarray):
            return
        if part.__array_interface__ == getattr(value, "__array_interface__", None):
            return  # the second half of a[index] += b: nothing moves
        # an index with arrays counts as the whole array
        written = part if np.may_share_memory(part, target) else target
        _record("setitem", 0, (value, index), written)


def _watched(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return _watch(function.__name__, lambda: function(*args, **kwargs), args, kwargs)

    return call


for _name in METHODS:
    setattr(_Traced, _name, _watched(getattr(np.ndarray, _name)))


def _watch(name, call, args, kwargs):
    """Call, and record the call as one step, unless the calls inside it have been recorded."""
    if _steps is None:
        return call()
    before = len(_steps)
    result = call()
    if len(_steps) == before and name not in UNWRITTEN:
        _record_call(name, args, kwargs, result)
    return _as(_Traced, result)


def _record_call(name, args, kwargs, result):
    """Record a call that reads its arguments and writes out= or its result, unless nothing moves.

    A call that returns None, such as copyto and fill, writes its first argument.
    """
    target = kwargs.get("out")
    if result is None and args:
        target, *args = args
    reads = _arrays((args, kwargs | {"out": None}))
    writes = _arrays(result if target is None else target)
    is_new = any(w.size and not any(np.may_share_memory(w, r) for r in reads) for w in writes)
    is_number = isinstance(result, np.generic)
    if is_new or is_number or target is not None:  # else the result is a view, or a shape
        _record(name, _function_flops(name, args, reads, writes), reads, writes)


def _record(name, flops, reads, writes):
    if _steps is not None:
        _steps.append(Step(name, int(flops), _byte_ranges(reads), _byte_ranges(writes)))


def _ufunc_flops(ufunc, method, inputs, options, result):
    if ufunc.__name__ in PRODUCTS:
        return 2 * np.size(result) * np.shape(inputs[0])[options.get("axis", -1)]
    counted = result if method == "__call__" else inputs[0]
    if method == "at":
        counted = counted[inputs[1]]
    where = options.get("where", True)
    return np.size(counted) * np.count_nonzero(where) // max(1, np.size(where))


def _function_flops(name, args, reads, writes):
    if name == "einsum":
        text = np.einsum_path(*_as(np.ndarray, args), optimize=False)[1]
        return float(re.search(r"Naive FLOP count: *(\S+)", text)[1])
    if name in ("dot", "vdot", "inner") and len(reads) == 2:  # (m, k), (k, n) and (m, n)
        return 2 * math.isqrt(math.prod(a.size for a in reads + writes))
    return 0


def _arrays(value):
    """Return the arrays in nested tuples, lists and dictionaries, as plain arrays."""
    if isinstance(value, np.ndarray):
        return [value.view(np.ndarray)]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [a for item in value for a in _arrays(item)] if isinstance(value, tuple | list) else []


def _as(kind, value):
    """Return value with the arrays in it, in tuples, lists and dictionaries, as views of a kind."""
    if isinstance(value, np.ndarray):
        return value.view(kind)
    if type(value) in (tuple, list):
        return type(value)(_as(kind, item) for item in value)
    if isinstance(value, dict):
        return {name: _as(kind, item) for name, item in value.items()}
    return value


def _byte_ranges(value):
    """Return address and size of what the arrays in value span, overlaps once: x == x[:, :1]."""
    ranges = []
    bounds = (np.lib.array_utils.byte_bounds(a) for a in _arrays(value) if a.size)
    for low, high in sorted(bounds):
        if ranges and low < sum(ranges[-1]):
            start, size = ranges.pop()
            low, high = start, max(start + size, high)
        ranges.append((low, high - low))
    return ranges
