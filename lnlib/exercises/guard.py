"""Call what a learner wrote: it ends, and NumPy is afterwards what it was."""

import signal
import threading
from contextlib import contextmanager

import numpy as np

LIMIT = 20.0  # seconds, for each call


class TooLong(BaseException):
    """Raised in a function that has run for LIMIT seconds."""


@contextmanager
def time_limit(seconds):
    """Raise TooLong after so many seconds; without alarms, print how to interrupt."""
    alarms = hasattr(signal, "setitimer")
    if not alarms or threading.current_thread() is not threading.main_thread():
        text = f"Still running after {seconds:g} s. In Jupyter, ■ (or the key I, twice) stops it."
        hint = threading.Timer(seconds, print, [text])
        hint.start()
        try:
            yield
        finally:
            hint.cancel()
        return

    def stop(*_):
        raise TooLong

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)


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


def _poisoned(make):
    def filled(*args, **options):
        array = make(*args, **options)
        if array.dtype.kind in "fc":
            array.fill(np.nan)
        return array

    return filled


@contextmanager
def unwritten_as_nan():
    """Let np.empty and np.empty_like give NaN, so that results which nobody writes can be seen."""
    kept = np.empty, np.empty_like
    np.empty, np.empty_like = map(_poisoned, kept)
    try:
        yield
    finally:
        np.empty, np.empty_like = kept
