"""Time functions side by side.

All of them are timed in turn, in one process, over and over, and the medians compared: what
disturbs one of them disturbs the others.
"""

import time

import numpy as np

# The processor's time does not count what other programs do; not every system measures it finely.
FINE = time.get_clock_info("process_time").resolution < 1e-7
clock = time.process_time if FINE else time.perf_counter


def medians(functions, seconds=1.0):
    """Time functions side by side.

    Parameters
    ----------
    functions : dict of str to callable
        Called without arguments, in turn.
    seconds : float
        For all of them together; each is timed at least three times.

    Returns
    -------
    dict of str to float
        The median time of one call, in seconds: of the processor, where the system measures it.
    """
    calls = {}
    for name, function in functions.items():  # also the warm-up
        start = clock()
        function()
        calls[name] = int(1e-3 / (clock() - start)) + 1  # a millisecond at least
    times = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[name]) < 3:
        for name, function in functions.items():
            start = clock()
            for _ in range(calls[name]):
                function()
            times[name].append((clock() - start) / calls[name])
    return {name: float(np.median(values)) for name, values in times.items()}


def both_passes(forward, backward, arrays):
    """Return a function that runs forward and backward on arrays = (dy, x, gamma, beta)."""
    dy, x, gamma, beta = arrays

    def run():
        _, cache = forward(x, gamma, beta)
        backward(dy, cache)

    return run


def random_arrays(shape, dtype, seed=0):
    """Return dy, x, gamma and beta, with means that are not zero."""
    rng = np.random.default_rng(seed)
    shapes = shape, shape, shape[-1:], shape[-1:]
    return [(0.5 + rng.standard_normal(s)).astype(dtype) for s in shapes]
