"""Watch NumPy work: every array operation of a function, with its FLOPs and the memory it touches.

The formulas of `lnlib.cost` are counted by hand from the source; this counts what really runs.
"""

import functools
import math
import re
import threading
from collections import OrderedDict
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

PAGE = 4096  # bytes: the unit in which `traffic` follows what is in the cache
PRODUCTS = ("matmul", "vecdot", "matvec", "vecmat")
NO_DATA = "shape ndim size result_type can_cast iscomplexobj may_share_memory empty_like".split()
# what makes an array, or another one of an array, and never tells the array
MAKERS = "empty zeros ones full array asarray ascontiguousarray".split()
METHODS = "astype copy cumsum dot fill flatten put ravel repeat reshape take tolist".split()


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
        What it does to the arrays through NumPy is seen, assignments and copies too. Not seen is
        what happens in other threads, or behind a list, a buffer or an address.
    *arrays : ndarray

    Returns
    -------
    result : object
        What function returned; its arrays will be seen by the next trace too.
    steps : list of Step
    """
    steps = []
    token = _active.set((*_active.get(), steps))
    try:
        with _watched_makers():
            return function(*(a.view(_Traced) for a in arrays)), steps
    finally:
        _active.reset(token)


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
        # all operands side by side
        for k in range(max((len(pages) for pages, _ in operands), default=0)):
            for pages, write in operands:
                if k < len(pages):
                    page = pages[k]
                    moved += page not in cache and not write
                    cache[page] = cache.pop(page, False) or write
                    if len(cache) * PAGE > cache_bytes:
                        moved += cache.popitem(last=False)[1]
    return (moved + sum(cache.values())) * PAGE


_active = ContextVar("active", default=())  # the lists of the traces that run, outermost first


class _Traced(np.ndarray):
    """An array that writes down what is done with it, and so do the results."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        inputs, options = [_plain(a) for a in inputs], {k: _plain(v) for k, v in options.items()}
        if out:
            options["out"] = tuple(_plain(a) for a in out)
        result = getattr(ufunc, method)(*inputs, **options)
        results = inputs[:1] if method == "at" else result
        reads = list(_arrays((inputs, options.get("where"))))
        name = ufunc.__name__ + (method != "__call__") * f".{method}"
        _record(name, _ufunc_flops(ufunc, method, inputs, options, result), reads, results)
        return _traced(result)

    def __array_function__(self, function, types, args, kwargs):
        call = super().__array_function__  # runs the function, whose ufuncs record themselves
        if function.__name__ in NO_DATA:
            return call(function, types, args, kwargs)
        run = functools.wraps(function)(lambda *a, **options: call(function, types, a, options))
        return _watch(run, args, kwargs)

    def __getitem__(self, index):
        result = super().__getitem__(index)
        if isinstance(result, np.ndarray) and not _is_view(result, [self]):
            _record("getitem", 0, list(_arrays((self, index))), result)
        return result

    def __setitem__(self, index, value):
        target, value = _plain((self, value))
        target[index] = value
        written = target[index]
        if not isinstance(written, np.ndarray):
            return  # one number
        if isinstance(value, np.ndarray) and _same_place(written, value):
            return  # the second half of a[index] += b: nothing moves
        where = written if _is_view(written, [target]) else target  # if index has arrays, all
        _record("setitem", 0, list(_arrays((value, index))), where)


def _watched(function):
    return functools.wraps(function)(lambda *args, **kwargs: _watch(function, args, kwargs))


for _name in METHODS:
    setattr(_Traced, _name, _watched(getattr(np.ndarray, _name)))


def _watch(function, args, kwargs):
    """Call and record one step, unless what the function consists of recorded itself."""
    lists = _active.get()
    before = len(lists[-1]) if lists else 0
    result = function(*args, **kwargs)
    if not lists or len(lists[-1]) > before:
        return _traced(result)
    given = args[0] if result is None else kwargs.get("out")  # copyto and fill return nothing
    out = result if given is None else given
    writes, reads = list(_arrays(out)), list(_arrays((args, kwargs)))
    if given is None:
        if writes and all(_is_view(w, reads) for w in writes):
            return _traced(result)  # nothing moved
    else:
        reads = [r for r in reads if not any(_same_place(r, w) for w in writes)]
    _record(function.__name__, _function_flops(function.__name__, args, reads, writes), reads, out)
    return _traced(result)


def _record(name, flops, reads, writes):
    step = Step(name, int(flops), _ranges(reads), _ranges(w for w in _arrays(writes) if w.ndim))
    for steps in _active.get():
        steps.append(step)


def _ufunc_flops(ufunc, method, inputs, options, result):
    if method == "at":
        return inputs[0][inputs[1]].size
    if method in ("reduce", "reduceat"):
        return np.size(inputs[0])
    size = max((a.size for a in _arrays(result)), default=1)
    if ufunc.__name__ in PRODUCTS:
        axis = np.ravel(options["axes"][0])[-1] if "axes" in options else options.get("axis", -1)
        return 2 * size * np.shape(inputs[0])[axis]
    if "where" in options:
        return np.sum(options["where"]) * size // np.size(options["where"])
    return size


def _function_flops(name, args, reads, writes):
    if name == "einsum":
        text = np.einsum_path(*_plain(args), optimize=False)[1]
        return float(re.search(r"Naive FLOP count: *(\S+)", text)[1])
    if (
        name in ("dot", "vdot", "inner", "tensordot") and len(reads) == 2
    ):  # (m, k), (k, n) and (m, n)
        return 2 * math.isqrt(math.prod(a.size for a in (*reads, *writes)))
    return 0


_patching, _originals, _users = threading.Lock(), {}, [0]


@contextmanager
def _watched_makers():
    """Let np.empty and the like give traced arrays while any thread traces, and to that thread."""
    with _patching:
        if not _users[0]:
            _originals.update((name, getattr(np, name)) for name in MAKERS)
            for name, original in _originals.items():
                setattr(np, name, _watched_maker(name, original))
        _users[0] += 1
    try:
        yield
    finally:
        with _patching:
            _users[0] -= 1
            if not _users[0]:
                for name, original in _originals.items():
                    setattr(np, name, original)


def _watched_maker(name, original):
    @functools.wraps(original)
    def make(*args, **kwargs):
        if not _active.get():
            return original(*args, **kwargs)
        if name in ("empty", "zeros"):  # the system clears the pages of large arrays of zeros
            return original(*args, **kwargs).view(_Traced)
        return _watch(original, args, kwargs)

    return make


def _arrays(value):
    """Yield the arrays in nested tuples, lists and dictionaries, as plain arrays."""
    if isinstance(value, np.ndarray):
        yield value.view(np.ndarray)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))


def _plain(value):
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, np.ndarray) else value


def _traced(value):
    if type(value) in (tuple, list):
        return type(value)(map(_traced, value))
    return value.view(_Traced) if isinstance(value, np.ndarray) else value


def _is_view(a, others):
    """Whether a lies in one of the others (new memory never does), or is empty."""
    return not a.size or any(np.may_share_memory(*_plain((a, b))) for b in others)


def _same_place(a, b):
    return (a.ctypes.data, a.shape, a.strides) == (b.ctypes.data, b.shape, b.strides)


def _pages(operand):
    address, size = operand
    return range(address // PAGE, (address + size - 1) // PAGE + 1)


def _ranges(arrays):
    """Return address and size of what the arrays span, overlaps once."""
    ranges = []
    for low, high in sorted(np.lib.array_utils.byte_bounds(a) for a in arrays if a.size):
        if ranges and low < sum(ranges[-1]):
            start, size = ranges.pop()
            low, high = start, max(start + size, high)
        ranges.append((low, high - low))
    return ranges
