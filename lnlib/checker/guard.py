"""Call what a learner wrote: the call ends, and NumPy is afterwards what it was before."""

import contextlib
import functools
import signal
import threading
from unittest import mock

import numpy as np

LIMIT = 20.0  # seconds, for each call


class TooLong(BaseException):
    """Raised in a function that has run for LIMIT seconds."""


def time_limit(seconds):
    """Return a context in which TooLong is raised after so many seconds.

    Alarms exist in the main thread only, and not on Windows. Elsewhere, a text says after so many
    seconds how to interrupt. A browser (Pyodide) has neither alarms nor threads: nothing stops an
    endless loop there, and the learner must restart the kernel.
    """
    main = threading.current_thread() is threading.main_thread()
    return (_alarm if main and hasattr(signal, "setitimer") else _hint)(seconds)


@contextlib.contextmanager
def _alarm(seconds):
    def stop(*_):
        raise TooLong(f"it ran for {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)


@contextlib.contextmanager
def _hint(seconds):
    text = f"Still running after {seconds:g} s. In Jupyter, ■ (or the key I, twice) stops it."
    hint = threading.Timer(seconds, print, [text])
    with contextlib.suppress(RuntimeError):  # no threads here
        hint.start()
    try:
        yield
    finally:
        hint.cancel()


def guarded(function, changed):
    """Return function with a time limit; names of NumPy that it sets are put back, and listed."""

    def call(*arguments):
        numpy = dict(vars(np))
        try:
            with np.errstate(all="ignore"), time_limit(LIMIT):
                return function(*arguments)
        finally:
            now = vars(np)
            changed.extend(f"np.{name}" for name in numpy if now.get(name) is not numpy[name])
            now.update(numpy)

    call.__wrapped__ = function
    return call


def _filled_with_nan(make):
    @functools.wraps(make)  # what watches NumPy goes by the names of its functions
    def filled(*args, **options):
        array = make(*args, **options)
        if array.dtype.kind in "fc":
            array.fill(np.nan)
        return array

    return filled


def unwritten_as_nan():
    """Let np.empty and np.empty_like give NaN, so that results which nobody writes can be seen."""
    makers = {name: _filled_with_nan(getattr(np, name)) for name in ("empty", "empty_like")}
    return mock.patch.multiple(np, **makers)
