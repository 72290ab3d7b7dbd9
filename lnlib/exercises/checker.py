"""Try a learner's function on data that tells mistakes apart, and say what is missing.

An exercise is the right answer, the inputs to try it on, and the known mistakes, as functions with
the same arguments. A wrong answer is compared with every mistake before anything else is said.
"""

import copy
import difflib
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .compare import NOT_DONE, BadResult, compare, values_of

EXERCISES = {}  # name of the function -> Exercise; the files lesson_00 to lesson_07 fill it

_WRAP = textwrap.TextWrapper(
    92,
    initial_indent="  ",
    subsequent_indent="    ",
    break_long_words=False,
    break_on_hyphens=False,
)


class Exercise(NamedTuple):
    """What a learner's function is compared with.

    Attributes
    ----------
    right : callable
        The right answer; its name and its arguments are those of the stub.
    outputs : tuple of str
        What the function returns, in order.
    cases : callable
        () -> dict: what is special about the input -> the arguments.
    mistakes : dict of str to callable
        What is wrong, in words -> a function that does it wrong.
    terms : dict of str to callable
        An output -> a function of the arguments that returns {front: {term: array}}. A wrong
        output that is front * (a sum of multiples of the terms) is told as such a sum.
    rtol : float
        How far from right is still right, relative to the largest entry of the row; 0 for bool.
    prepare : callable
        Turns what the learner wrote into a function of the arguments: kernels are compiled here.
    judge : callable
        Of a function whose numbers are right: None, or what is still wrong with it.
    """

    right: Callable
    outputs: tuple
    cases: Callable
    mistakes: dict
    terms: dict
    rtol: float
    prepare: Callable
    judge: Callable


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
        return "\n".join([f"{self.name}: {self.status}", *map(_WRAP.fill, self.remarks)])


class NotChecked(Exception):
    """Raised by `prepare` if this machine lacks what the check needs; the message says what."""


def exercise(
    outputs, cases, mistakes, *,
    terms=None, rtol=1e-9, prepare=lambda f: f, judge=lambda f: None,
):  # fmt: skip
    """Register the decorated function as the right answer of an exercise named like it.

    Parameters
    ----------
    outputs : str
        The names of what it returns, separated by spaces.
    cases, mistakes, terms, rtol, prepare, judge
        See `Exercise`.
    """

    def register(right):
        EXERCISES[right.__name__] = Exercise(
            right, tuple(outputs.split()), cases, mistakes, terms or {}, rtol, prepare, judge
        )
        return right

    return register


def check(function):
    """Check a learner's function; its name says which exercise it answers.

    Parameters
    ----------
    function : callable
        What the learner wrote. Whatever it does, nothing is raised.

    Returns
    -------
    Verdict
        Printed, it says "not done yet", "right", or "wrong" and what is missing.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    if not callable(function):
        return _wrong(name, "Give check the function itself, without parentheses after its name.")
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=1, cutoff=0.8)
        hint = f"Is it {near[0]}?" if near else "Define it with def, by the name in the exercise."
        return _wrong(name, f"No exercise has a function of this name. {hint}")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _check(name, function, EXERCISES[name])


def _wrong(name, *remarks):
    return Verdict("wrong", name, remarks)


def _check(name, function, task):
    if trouble := _signature_trouble(function, task.right):
        return _wrong(name, trouble)
    cases, results, changed = task.cases(), [], []
    for arguments in cases.values():
        try:
            given = copy.deepcopy(arguments)
            results.append(values_of(task.prepare(function)(*given), task.outputs))
            changed += _changed(given, arguments, task.right)
        except NotChecked as error:
            return Verdict("not checked", name, (str(error),))
        except NotImplementedError as error:
            return Verdict(NOT_DONE, name, (str(error),) if str(error) else ())
        except (Exception, SystemExit) as error:
            return _wrong(name, _told(error, function))
    if all(value is None for values in results for value in values):
        code = getattr(function, "__code__", None)
        begun = code and (code.co_names or code.co_nlocals > code.co_argcount)
        hint = ("It returns nothing: is the return missing?",) if begun else ()
        return Verdict(NOT_DONE, name, hint)
    remarks = compare(task, cases, results)
    return _verdict(name, function, task, remarks, list(dict.fromkeys(changed)), len(cases))


def _verdict(name, function, task, remarks, changed, tried):
    said = {}  # what is wrong -> with which outputs
    for output, remark in remarks.items():
        if remark not in (None, NOT_DONE):
            said.setdefault(remark, []).append(output)
    wrong = [f"{', '.join(outputs)}: {remark}" for remark, outputs in said.items()]
    undone = [output for output, remark in remarks.items() if remark == NOT_DONE]
    fine = [output for output, remark in remarks.items() if remark is None]
    inform = wrong + [f"{output}: {NOT_DONE}." for output in undone]
    if fine and inform:
        inform.append(f"{', '.join(fine)}: right.")
    if changed:
        start = "It" if wrong or undone else "The numbers are right, but it"
        inform.append(
            f"{start} changes {' and '.join(changed)} in place (with -=, *=, out= or an index on "
            "the left of =). The caller still needs the old values: make a new array."
        )
    if wrong or changed:
        return _wrong(name, *inform)
    if undone:
        return Verdict(NOT_DONE, name, tuple(inform))
    try:
        complaint = task.judge(function)
    except (Exception, SystemExit) as error:
        complaint = _told(error, function)
    if complaint:
        return _wrong(name, complaint)
    many = "1 input tried," if tried == 1 else f"{tried} inputs tried, all"
    within = f"within {task.rtol:.0e}" if task.rtol else "as they should be"
    return Verdict("right", name, (f"{many} {within}.",))


def _signature_trouble(function, right):
    """Return what is wrong with the arguments that function takes, or None."""
    expected = list(inspect.signature(right).parameters)
    try:
        signature = inspect.signature(function)
    except Exception:  # a callable without a signature: see what happens
        return None
    mine = list(signature.parameters)
    try:
        signature.bind(*expected)
    except TypeError:
        fits = False
    else:
        fits = mine == expected or set(mine) != set(expected)  # other names will do, in order
    return None if fits else f"It must take ({', '.join(expected)}), and takes ({', '.join(mine)})."


def _told(error, function):
    """Say what was raised, and in which line of the function."""
    if isinstance(error, BadResult):
        return f"It {error}."
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)).strip()
        text = text.splitlines()[0][:200] if text else ""
    except Exception:
        text = ""
    where, code, step = "", getattr(function, "__code__", None), error.__traceback__
    while step:
        if step.tb_frame.f_code is code:
            where = f" in line {step.tb_lineno - code.co_firstlineno + 1} of the function"
        step = step.tb_next
    return f"It stops with {type(error).__name__}{where}{': ' if text else '.'}{text}"


def _changed(given, before, right):
    """Return the names of the arguments whose arrays are not what they were."""
    names = inspect.signature(right).parameters
    return [name for name, a, b in zip(names, given, before) if not _same(a, b)]


def _same(a, b):
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and np.array_equal(a, b, equal_nan=b.dtype.kind in "fc")
    if isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return True
