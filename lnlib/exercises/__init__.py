"""The exercises of the lessons: `check` tries a learner's function and says what is missing."""

from ..checker import Verdict
from .registry import check, inputs, load_exercises

__all__ = ["Verdict", "check", "inputs", "load_exercises"]


def __getattr__(name):
    """Return EXERCISES, for which all lessons are read; `check` reads up to the one it needs."""
    if name == "EXERCISES":
        return load_exercises()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
