"""Try a learner's function on data that tells mistakes apart, and say what is missing.

An exercise is the right answer, the inputs to try it on, and the known mistakes. The right answer
is the text that the solutions notebook shows; most mistakes are edits of it. A wrong answer is
compared with every mistake before anything else is said.
"""

import contextlib
import copy
import difflib
import html
import inspect
import re
import textwrap
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import guard
from .compare import NOT_DONE, RIGHT, BadResult, compare, values_of
from .describe import Terms
from .edits import axes_of, edits, functions_of

_ONE_AT_A_TIME = threading.RLock()  # warnings and patches are those of the whole process
EXERCISES = {}  # name of the function -> Exercise; `load` fills it

_WRAP = textwrap.TextWrapper(92, initial_indent="  ", subsequent_indent="    ")
_WRAP.break_long_words = _WRAP.break_on_hyphens = False
_AGAIN = "Run it again: "  # a call follows, which can be copied: this line is never broken


_OTHER_WORDS = {  # for errors of NumPy that beginners often see
    "The truth value of an.*": "max, min and if want one number; np.maximum, np.where any number",
    ".*inhomogeneous shape.*": "is one of them a tuple, from a function with several results?",
    r"(.*shapes (\([\d,]+),\d+\) \2,?\))": r"\1: is keepdims=True missing in a mean?",
}


class Exercise(NamedTuple):
    """What a learner's function is compared with.

    Attributes
    ----------
    right : callable
        The right answer, as the solutions notebook has it.
    outputs : list of str
        What the function returns, in order.
    cases : callable
        () -> dict: what is special about the input -> the arguments.
    mistakes : list of (str, callable)
        What is wrong, in words, and a function that does it wrong.
    terms : Terms or None
        A wrong output that is a sum of these is told as such a sum.
    rtol : float
        How far from right is still right, relative to the largest entry of the row; 0 for bool.
    prepare : callable or None
        Turns what the learner wrote into a function of a case's arguments: kernels are compiled
        here. None if it is one.
    judge : callable
        Of a function whose numbers are right: None, a `Score`, or what is still wrong with it.
    expected : callable or None
        What the numbers are compared with, of a case's arguments, where the right answer has
        too few digits.
    """

    right: Callable
    outputs: list
    cases: Callable
    mistakes: list
    terms: Terms | None = None
    rtol: float = 1e-9
    prepare: Callable | None = None
    judge: Callable = lambda function: None
    expected: Callable | None = None


# Status -> a sign, and a colour that stands out on a white page (3:1) and on a dark one
_SIGNS = {
    "right": ("✓", "#388e3c"),
    "wrong": ("✗", "#d32f2f"),
    "not done yet": ("…", "#757575"),
    "not checked": ("?", "#b26a00"),
}


class Verdict(NamedTuple):
    """The answer to a learner.

    Attributes
    ----------
    status : {"right", "wrong", "not done yet", "not checked"}
    name : str
        Of the exercise.
    remarks : tuple of str
        Why, a sentence or two each.
    """

    status: str
    name: str
    remarks: tuple = ()

    def __repr__(self):
        lines = (f"  {r}" if r.startswith(_AGAIN) else _WRAP.fill(r) for r in self.remarks)
        return "\n".join([f"{self.name}: {self.status}", *lines])

    def _repr_html_(self):
        """Return what `repr` says, with a coloured edge and the call to run again as code."""
        sign, colour = _SIGNS[self.status]
        lines = [f"<b>{sign} {html.escape(self.name)}: {self.status}</b>"]
        for remark in self.remarks:
            text, again, call = html.escape(remark, quote=False).partition(_AGAIN)
            code = f"<pre><code>{call.replace('; ', chr(10), 1)}</code></pre>" if again else ""
            lines.append(f"<div>{text}{again.strip()}{code}</div>")
        style = f"border-left: 5px solid {colour}; padding-left: 10px"
        return "\n".join([f'<div style="{style}">', *lines, "</div>"])


class Score(str):
    """What a right answer achieved, in words; a `judge` may return it."""


class NotChecked(Exception):
    """Raised by `prepare` or `judge` for what cannot be judged here; the message says why."""


def exercise(outputs, cases, **options):
    """Register the decorated function as the right answer of an exercise named like it.

    Parameters
    ----------
    outputs : str
        The names of what it returns, separated by spaces.
    cases, **options
        See `Exercise`.
    """

    def register(right):
        task = Exercise(right, outputs.split(), cases, right.mistakes, **options)
        axes = functions_of(axes_of(right), right) if task.rtol else []  # True shows no axis
        EXERCISES[right.__name__] = task._replace(mistakes=right.mistakes + axes)
        return right

    return register


def mistakes(table, also=None):
    """Give the decorated function known mistakes.

    Parameters
    ----------
    table : str or dict
        Edits of the decorated function, see `edits.edits`, or what is wrong, in words -> a
        function that does it wrong.
    also : (old, new), optional
        See `edits.edits`.
    """
    wrong = edits(table, also) if isinstance(table, str) else table

    def add(right):
        right.mistakes = functions_of(wrong, right) + getattr(right, "mistakes", [])
        return right

    return add


def load(name=None):
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
    cases = load(name)[name].cases()
    return copy.deepcopy(list(cases.values())[number - 1])


def check(function):
    """Check a learner's function; its name says which exercise it answers.

    Parameters
    ----------
    function : callable
        What the learner wrote. Whatever it does, nothing is raised but KeyboardInterrupt. A call
        that takes longer than `guard.LIMIT` seconds is stopped; on Windows, or in a thread,
        there are no alarms, and you must interrupt it.

    Returns
    -------
    Verdict
        Printed, it says "right", "not done yet", or "wrong" and what is missing; "not checked"
        if that cannot be said here.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    if not callable(function):
        return _wrong(name, "Give check the function itself, without parentheses after its name.")
    if name not in load(name):
        near = difflib.get_close_matches(name, EXERCISES, n=1, cutoff=0.8)
        hint = f"Is it {near[0]}?" if near else "Define it with def, by the name in the exercise."
        return _wrong(name, f"No exercise has a function of this name. {hint}")
    with (
        _ONE_AT_A_TIME,
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        guard.unwritten_as_nan(),
    ):
        warnings.simplefilter("ignore")
        return _check(name, function, EXERCISES[name])


def _wrong(name, *remarks):
    return Verdict("wrong", name, tuple(remark for remark in remarks if remark))


def _check(name, function, task):
    if trouble := _signature_trouble(function, task.right):
        return _wrong(name, trouble)
    cases, results, changed = task.cases(), [], []
    call = guard.guarded(function, changed)
    prepared = task.prepare(call) if task.prepare else call
    for arguments in cases.values():
        given = copy.deepcopy(arguments)
        try:
            results.append(values_of(prepared(*given), task.outputs))
        except BaseException as error:
            return _stopped(name, error, function, task, len(results))
        changed += _changed(given, arguments, task.right)
    if all(value is None for values in results for value in values):
        code = _code_of(function)
        begun = code and (code.co_names or code.co_nlocals > code.co_argcount)
        hint = ("It returns nothing: is the return missing?",) if begun else ()
        return Verdict("not done yet", name, hint)
    remarks, first = compare(task, cases, results)
    said = {}  # remark -> on which outputs
    for output, remark in remarks.items():
        said.setdefault(remark, []).append(output)
    wrong = [remark for remark in said if remark not in (RIGHT, NOT_DONE)]
    order = (*wrong, NOT_DONE, RIGHT) if list(said) != [RIGHT] else ()
    inform = [f"{', '.join(said[remark])}: {remark}" for remark in order if remark in said]
    if changed:
        start = "It" if inform else "The numbers are right, but it"
        names = " and ".join(dict.fromkeys(changed))
        inform.append(
            f"{start} changes {names} in place (with -=, *=, out= or an index on the left of =). "
            "The caller still needs the old values: make a new array."
        )
    if wrong or changed:
        return _wrong(name, *inform, _again(name, task, first) if wrong else "")
    if inform:
        return Verdict("not done yet", name, tuple(inform))
    try:
        judgement = task.judge(call)
    except BaseException as error:
        return _stopped(name, error, function, task)
    if judgement and not isinstance(judgement, Score):
        return _wrong(name, judgement)
    return Verdict("right", name, (_tried(list(cases), task.rtol), *filter(None, [judgement])))


def _stopped(name, error, function, task, number=None):
    """Return the verdict on a function that has raised an error, for the input of that number."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, NotChecked):
        return Verdict("not checked", name, (str(error),))
    if isinstance(error, NotImplementedError):
        return Verdict("not done yet", name, tuple(filter(None, [_text_of(error)])))
    again = "" if number is None else _again(name, task, number)
    return _wrong(name, _what_was_raised(error, function), again)


def _again(name, task, number):
    """Return the call that went wrong, as the learner can run it; "" for a kernel."""
    if task.prepare:
        return ""
    arguments = list(task.cases().values())[number]
    if all(isinstance(a, int | float | str) for a in arguments):
        return f"{_AGAIN}{name}({', '.join(map(repr, arguments))})"
    call = f"{name}(*inputs({name}, {number + 1}))"
    return f"{_AGAIN}from lnlib.exercises import inputs; {call}"


def _tried(labels, rtol):
    """Return what a right answer was tried on."""
    some = labels if len(labels) <= 6 else labels[-4:]
    many = f"{len(labels)} inputs{', among them' if some != labels else ''}"
    within = f"within {rtol:.0e}" if rtol else "as they should be"
    return f"Tried on {many if len(labels) > 1 else '1 input'}: {'; '.join(some)}. All {within}."


def _code_of(function):
    code = getattr(function, "__code__", None)
    return code if inspect.iscode(code) else None


def _signature_trouble(function, right):
    """Return what is wrong with the arguments that function takes, or None."""
    expected = list(inspect.signature(right).parameters)
    try:
        signature = inspect.signature(function)
    except Exception:  # a callable without a signature: see what happens
        return None
    mine = list(signature.parameters)
    with contextlib.suppress(TypeError):
        signature.bind(*expected)
        if mine == expected or set(mine) != set(expected):  # other names will do, in order
            return None
    return f"It must take ({', '.join(expected)}), and takes {signature}."


def _text_of(error):
    """Return the first line of what an exception says, without addresses."""
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)).strip()
    except Exception:
        return ""
    return text.splitlines()[0][:200] if text else ""


def _what_was_raised(error, function):
    """Say what was raised, and in which line of the function."""
    if isinstance(error, BadResult):
        return f"It {error}."
    if isinstance(error, guard.TooLong):
        return f"It was stopped after {guard.LIMIT:g} seconds: does one of its loops never end?"
    text = _text_of(error)
    for said, words in _OTHER_WORDS.items():
        text = re.sub(said, words, text)
    where, code, step = "", _code_of(function), error.__traceback__
    while step:
        if step.tb_frame.f_code is code:
            where = f" in line {step.tb_lineno - code.co_firstlineno + 1} of the function"
        step = step.tb_next
    return f"It stops with {type(error).__name__}{where}{': ' if text else '.'}{text}"


def _changed(given, before, right):
    """Return the names of the arguments whose arrays are not what they were."""
    names = [*inspect.signature(right).parameters] or len(given) * ["an argument"]
    return [name for name, a, b in zip(names, given, before) if not _same(a, b)]


def _same(a, b):
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and np.array_equal(a, b, equal_nan=b.dtype.kind in "fc")
    if isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return True
