"""Run a learner's function, compare its results with the right ones, and put it into words."""

import contextlib
import copy
import dis
import inspect
import re
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import guard
from .compare import NOT_DONE, RIGHT, BadResult, compare, values_of
from .describe import Terms
from .verdict import AGAIN, NotChecked, Score, Verdict, wrong

_ONE_AT_A_TIME = threading.RLock()  # warnings and patches are those of the whole process

_OTHER_WORDS = {  # for errors of NumPy that beginners often see
    "The truth value of an.*": "max, min and if take one number; np.maximum, np.where an array",
    ".*inhomogeneous shape.*": "is one of them a tuple, from a function with several results?",
    r"(.*shapes (\([\d,]+),\d+\) \2,?\))": r"\1: is keepdims=True missing in a mean, or "
    "[..., None] behind a mask?",
}


class Exercise(NamedTuple):
    """What a learner's function is compared with.

    Attributes
    ----------
    right : callable
        The right answer; its name is the exercise's.
    outputs : list of str
        What the function returns, in order.
    cases : callable
        () -> dict: what is special about the input -> the arguments.
    mistakes : list of (str, callable)
        What is wrong, in words, and a function that does it wrong.
    terms : Terms
        A wrong output that is a sum of these is told as such a sum.
    rtol : float
        How far from right is still right, relative to the largest entry of the row; 0 for bool.
    prepare : callable or None
        Turns what the learner wrote into a function of a case's arguments, if it is not one.
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
    terms: Terms = Terms()
    rtol: float = 1e-9
    prepare: Callable | None = None
    judge: Callable = lambda function: None
    expected: Callable | None = None


def verdict_on(function, exercise, call_of=None):
    """Judge a learner's function.

    Parameters
    ----------
    function : callable
        What the learner wrote. Whatever it does, nothing is raised but KeyboardInterrupt. A call
        that takes longer than `guard.LIMIT` seconds is stopped, see `guard.time_limit`.
    exercise : Exercise
    call_of : callable, optional
        The number of an input, from 1 on -> Python code that runs the learner's function on it.

    Returns
    -------
    Verdict
        Printed, it says "right", "not done yet", or "wrong" and what is missing; "not checked"
        if that cannot be said here.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with guard.unwritten_as_nan():
            return _verdict_on(function, exercise, call_of)


def _verdict_on(function, exercise, call_of):
    name = exercise.right.__name__
    if problem := _signature_problem(function, exercise.right):
        return wrong(name, problem)
    cases, results, changed = exercise.cases(), [], []
    call = guard.guarded(function, changed)
    try:
        _run(call, exercise, cases, results, changed)
    except BaseException as error:
        again = _again(exercise, len(results), call_of) or _stopped_at(list(cases), len(results))
        return _stopped(name, error, function, again)
    if all(value is None for values in results for value in values):
        return _not_begun(name, function)
    remarks, first = compare(exercise, cases, results)
    lines, is_wrong = _phrase(remarks, list(dict.fromkeys(changed)))
    if is_wrong:
        differs = {*remarks.values()} - {RIGHT, NOT_DONE}
        hints = (_not_arguments(function), _again(exercise, first, call_of)) if differs else ()
        return wrong(name, *lines, *hints)
    if lines:
        return Verdict("not done yet", name, tuple(lines))
    return _after_judge(exercise, call, function, _tried(list(cases), exercise.rtol))


def _after_judge(exercise, call, function, tried):
    """Return the verdict of the exercise's judge on a function whose numbers are right."""
    name = exercise.right.__name__
    try:
        found = exercise.judge(call)
    except BaseException as error:
        return _stopped(name, error, function)
    if found and not isinstance(found, Score):
        return wrong(name, found)
    return Verdict("right", name, (tried, *filter(None, [found])))


def _run(call, exercise, cases, results, changed):
    """Append to results what each case gives, and to changed the arguments that it changes."""
    prepared = exercise.prepare(call) if exercise.prepare else call
    for arguments in cases.values():
        given = copy.deepcopy(arguments)
        results.append(values_of(prepared(*given), exercise.outputs))
        changed += _changed(given, arguments, exercise.right)


def _phrase(remarks, changed):
    """Return the lines of a verdict, [] if all is right, and whether something is wrong.

    Parameters
    ----------
    remarks : dict of str to str
        For each output, what `compare` says.
    changed : list of str
        The names of what was changed in place.
    """
    outputs = {}  # remark -> the outputs it is about
    for output, remark in remarks.items():
        outputs.setdefault(remark, []).append(output)
    problems = [remark for remark in outputs if remark not in (RIGHT, NOT_DONE)]
    lines = [
        f"{', '.join(outputs[remark])}: {remark}"
        for remark in (*problems, NOT_DONE, RIGHT)
        if remark in outputs and list(outputs) != [RIGHT]
    ]
    if changed:
        start = "It" if lines else "The numbers are right, but it"
        lines.append(
            f"{start} changes {' and '.join(changed)} in place (with -=, *=, out= or an index on "
            "the left of =). The caller still needs the old values: make a new array."
        )
    return lines, bool(problems or changed)


def _not_begun(name, function):
    """Return the verdict on a function that returns nothing."""
    code = _code_of(function)
    begun = code and (code.co_names or code.co_nlocals > code.co_argcount)
    hint = ("It returns nothing: is the return missing?",) if begun else ()
    return Verdict("not done yet", name, hint)


def _stopped(name, error, function, again=""):
    """Return the verdict on a function that has raised an error."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, NotChecked):
        return Verdict("not checked", name, (str(error),))
    if isinstance(error, NotImplementedError):
        return Verdict("not done yet", name, tuple(filter(None, [_text_of(error)])))
    return wrong(name, _what_was_raised(error, function), _not_arguments(function), again)


def _not_arguments(function):
    """Name the numbers and arrays that function finds outside of itself, or return ""."""
    code, outside = _code_of(function), getattr(function, "__globals__", {})
    loaded = dis.get_instructions(code) if code else ()
    names = dict.fromkeys(i.argval for i in loaded if i.opname == "LOAD_GLOBAL")
    kinds = int | float | np.ndarray | np.generic
    found = [name for name in names if isinstance(outside.get(name), kinds)]
    if not found:
        return ""
    return f"It uses {', '.join(found)} from outside. Take sizes and values from the arguments."


def _again(exercise, index, call_of):
    """Return how the learner can run the case of that index, counted from 0, or ""."""
    arguments = list(exercise.cases().values())[index : index + 1]
    if exercise.prepare or not arguments:
        return ""
    if all(isinstance(a, int | float | str) for a in arguments[0]):
        return f"{AGAIN}{exercise.right.__name__}({', '.join(map(repr, arguments[0]))})"
    return f"{AGAIN}{call_of(index + 1)}" if call_of else ""


def _stopped_at(labels, index):
    """Name the case of that index, or return "" if it is the first: then all may stop."""
    return f"It stops at the input: {labels[index]}." if 0 < index < len(labels) else ""


def _tried(labels, rtol):
    """Return what a right answer was tried on."""
    some = labels if len(labels) <= 6 else labels[-4:]
    many = f"{len(labels)} inputs{', among them' if some != labels else ''}"
    within = f"within {rtol:.0e}" if rtol else "as they should be"
    return f"Tried on {many if len(labels) > 1 else '1 input'}: {'; '.join(some)}. All {within}."


def _code_of(function):
    code = getattr(function, "__code__", None)
    return code if inspect.iscode(code) else None


def _signature_problem(function, right):
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
    for pattern, words in _OTHER_WORDS.items():
        text = re.sub(pattern, words, text)
    where, code = "", _code_of(function)
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code is code:
            where = f" in line {line - code.co_firstlineno + 1} of the function"
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
