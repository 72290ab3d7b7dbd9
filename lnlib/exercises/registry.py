"""The exercises of this course by the names of their functions, and `check`, which judges one."""

import copy
import difflib
from importlib import import_module
from pathlib import Path

import numpy as np

from ..checker import Exercise, Verdict, edits, functions_of, verdict_on
from ..checker.edits import source_of_function

EXERCISES = {}  # name of the function -> Exercise; `load_exercises` fills it
ALL_ROWS = "axis=(0, 1)", "axis=tuple(range(dy.ndim - 1))"
OF_A_ROW = """
    axis=-1 => axis=0  # a wrong axis: axis 0 mixes rows; a row lies along axis=-1.
    axis=-1 => axis=1  # a wrong axis: axis 1 mixes the T rows; a row lies along axis=-1.
    axis=-1 => axis=(0, 1)  # wrong axes: axes 0 and 1 mix rows; a row lies along axis=-1.
    axis=-1 => axis=None  # no axis: that takes the whole array; a row lies along axis=-1.
"""
OF_ALL_ROWS = """
    ROWS => axis=0  # a wrong axis: axis 0 alone; to add up all rows, take all axes but the last.
    ROWS => axis=1  # a wrong axis: axis 1 alone; to add up all rows, take all axes but the last.
    ROWS => axis=-1
        a wrong axis: axis=-1 lies along a row; to add up all rows, take all axes but the last.
    ROWS => axis=None
        no axis: that takes the whole array; to add up all rows, take all axes but the last.
"""


def axes_of(right):
    """Return {what is wrong: edits} for the axes that stand in the source of right."""
    source = source_of_function(right)
    tables = [OF_ALL_ROWS.replace("ROWS", rows) for rows in ALL_ROWS if rows in source]
    return edits("".join([OF_A_ROW * ("axis=-1" in source), *tables]))


def exercise(outputs, cases, widen=False, **options):
    """Register the decorated function as the right answer of an exercise named like it.

    Parameters
    ----------
    outputs : str
        The names of what it returns, separated by spaces.
    cases : dict of str to tuple, or callable
        What is special about the input -> the arguments; or () -> such a dict, or its items.
    widen : bool
        Whether the answer's numbers are compared with those of the right answer in float64. Then
        the case is one array, and so is the result.
    **options
        See `lnlib.checker.Exercise`.
    """

    def as_dict():
        return dict(cases() if callable(cases) else copy.deepcopy(cases))

    def register(right):
        if widen:
            options["expected"] = lambda x: right(x.astype(np.float64)).astype(x.dtype)
        shows_axes = options.get("rtol") != 0  # True and False do not
        axes = functions_of(axes_of(right), right) if shows_axes else []
        known = getattr(right, "mistakes", []) + axes
        EXERCISES[right.__name__] = Exercise(right, outputs.split(), as_dict, known, **options)
        return right

    return register


def load_exercises(name=None):
    """Read the lessons' files in their order, up to the exercise of that name; return EXERCISES."""
    for path in sorted(Path(__file__).parent.glob("lesson_*.py")):
        if name in EXERCISES:
            break
        import_module(f".{path.stem}", __package__)
    return EXERCISES


def inputs(exercise, number):
    """Return the arguments of an exercise's input, as fresh copies.

    Parameters
    ----------
    exercise : str or callable
        Its name, or a function of that name.
    number : int
        Of the input, from 1 on, as `check` names it.
    """
    name = getattr(exercise, "__name__", exercise)
    cases = load_exercises(name)[name].cases()
    return copy.deepcopy(list(cases.values())[number - 1])


def check(function):
    """Check a learner's function; its name says which exercise it answers.

    Parameters
    ----------
    function : callable
        What the learner wrote. Whatever it does, nothing is raised but KeyboardInterrupt. A call
        that takes too long is stopped. On Windows, or in a thread, you must interrupt it; in a
        browser, you must restart the kernel.

    Returns
    -------
    Verdict
        Printed, it says "right", "not done yet", or "wrong" and what is missing; "not checked"
        if that cannot be said here.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    problem = None
    if not callable(function):
        problem = "Give check the function itself, without parentheses after its name."
    elif name not in load_exercises(name):
        near = difflib.get_close_matches(name, EXERCISES, n=1, cutoff=0.8)
        hint = f"Is it {near[0]}?" if near else "Define it with def, by the name in the exercise."
        problem = f"No exercise has a function of this name. {hint}"
    if problem:
        return Verdict("wrong", name, (problem,))

    def call_of(number):
        return f"from lnlib.exercises import inputs; {name}(*inputs({name}, {number}))"

    return verdict_on(function, EXERCISES[name], call_of)
