"""The exercises of the lessons: `check` tries a learner's function and says what is missing."""

from importlib import import_module
from pathlib import Path

from .checker import EXERCISES, Verdict, check, inputs

for _path in sorted(Path(__file__).parent.glob("lesson_*.py")):
    import_module(f".{_path.stem}", __name__)  # each fills EXERCISES

__all__ = ["EXERCISES", "Verdict", "check", "inputs"]
