"""Time functions side by side.

All of them are timed in turn, in one process, over and over, and the least times compared: another
program can only add to a time, and what disturbs one of them disturbs the others.
"""

import time
import timeit

import numpy as np

# The processor's time does not count what other programs do; not every system measures it finely.
FINE = time.get_clock_info("process_time").resolution < 1e-7
clock = time.process_time if FINE else time.perf_counter


def least(functions, seconds=1.0):
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
        The least time of one call, in seconds: of the processor, where the system measures it.
    """
    timers = {name: timeit.Timer(function, timer=clock) for name, function in functions.items()}
    # the first call is the warm-up; later ones are repeated for a millisecond at least
    calls = {name: int(1e-3 / timer.timeit(1)) + 1 for name, timer in timers.items()}
    times = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 3:
        for name, timer in timers.items():
            times[name].append(timer.timeit(calls[name]) / calls[name])
    return {name: min(values) for name, values in times.items()}


def settled(measure, rounds=6):
    """Measure times again until they settle, and return the least of each.

    Another program can only add to a time. It may come or go between two measurements, so what is
    compared belongs into the same dict.

    Parameters
    ----------
    measure : callable
        Called without arguments, it returns a dict of times.
    rounds : int
        How often to measure at most: fewer times if a round lowers no time by more than 5 %.

    Returns
    -------
    dict
        The least of each time.
    """
    best = measure()
    for _ in range(rounds - 1):
        again = measure()
        lowered = any(again[key] < 0.95 * best[key] for key in best)
        best = {key: min(best[key], again[key]) for key in best}
        if not lowered:
            break
    return best


def both_passes(forward, backward, arrays):
    """Return a function that runs forward and backward on arrays = (dy, x, gamma, beta)."""
    dy, *of_forward = arrays
    return lambda: backward(dy, forward(*of_forward)[1])


def random_arrays(shape, dtype, seed=0):
    """Return dy, x, gamma and beta. Rows are around 0: `lnlib.blocked` needs to centre none.

    A row's mean is not 0, but about 1 / sqrt(D): a layer that forgets it gives wrong numbers.
    """
    rng = np.random.default_rng(seed)
    dy, x = (rng.standard_normal(shape) for _ in range(2))
    gamma, beta = (0.5 + rng.standard_normal(shape[-1:]) for _ in range(2))
    return [a.astype(dtype) for a in (dy, x, gamma, beta)]
