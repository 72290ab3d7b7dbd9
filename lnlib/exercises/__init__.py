"""The exercises of the lessons: `check` tries a learner's function and says what is missing."""

from ..checker import Verdict
from .registry import check, inputs, load

__all__ = ["Verdict", "check", "inputs", "load"]


def __getattr__(name):
    """Return EXERCISES, for which all lessons are read; `check` reads up to the one it needs."""
    if name == "EXERCISES":
        return load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
