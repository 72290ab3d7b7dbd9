"""A mistake as a learner makes it: an edit of the right answer's source, and words for it."""

import functools
import inspect
import re

ENTRY = re.compile(r"((?:^ {4}\S.*? =>.*\n)+)((?:^ {8}\S.*\n)+)", re.M)


def edits(table):
    """Read a table of mistakes.

    Parameters
    ----------
    table : str
        Lines "old => new", indented by 4: what is replaced, wherever it stands; several lines are
        replaced together. Then, behind two spaces and a #, or below and indented by 8, what is
        wrong, in words; a " stands for the words of the edit before. NUMBER in an edit and {} in
        its words stand for a positive number: the one that explains the results is found.

    Returns
    -------
    dict of str to list
        What is wrong -> the edits that make it; an edit is a tuple of (old, new).
    """
    table = table.replace("  # ", "\n        ")
    if left := ENTRY.sub("", table).strip():
        raise ValueError(f"not an entry of a table of edits: {left!r}")
    wrong = {}
    for lines, words in ENTRY.findall(table):
        pairs = (line.split(" =>", 1) for line in lines.splitlines())
        edit = tuple((old.strip(), new.strip()) for old, new in pairs)
        words = list(wrong)[-1] if words.strip() == '"' else " ".join(words.split())
        wrong.setdefault(words, []).append(edit)
    return wrong


def mistakes(table, run=None):
    """Give the decorated function an attribute `mistakes`: a list of (words, function).

    Parameters
    ----------
    table : str or list of (str, callable)
        Edits of the decorated function, see `edits`, or what is wrong, in words, and a function
        that does it wrong.
    run : callable, optional
        (function, *arguments): runs the edited function on the arguments of a case, where that is
        not simply a call.
    """

    def add(right):
        wrong = functions_of(edits(table), right, run) if isinstance(table, str) else table
        right.mistakes = wrong + getattr(right, "mistakes", [])
        return right

    return add


def source_of_function(function):
    """Return the source of a function, from its def on."""
    source = inspect.getsource(function)
    return source[re.search("^def ", source, re.M).start() :]


def replaced(source, edit):
    """Return a source with each (old, new) of an edit replaced; ValueError if it has no old."""
    for old, new in edit:
        if old not in source:
            raise ValueError(f"the source to be edited has no {old!r}")
        source = source.replace(old, new)
    return source


@functools.cache
def _with_edit(function, edit):
    return compile(replaced(source_of_function(function), edit), "<string>", "exec")


def edited(function, edit, number=None):
    """Return function with an edit made in its source; ValueError if that lacks what goes.

    NUMBER in the edit stands for the number.
    """
    names = function.__globals__ | {"NUMBER": number}
    exec(_with_edit(function, edit), names)
    return names[function.__name__]


def functions_of(wrong, right, run=None):
    """Return [(what is wrong, a function that does it)]; edits are made when they are called.

    Parameters
    ----------
    wrong : dict of str to list
        From `edits`.
    right, run : callable
        See `mistakes`.
    """

    def made_when_called(edit):
        def mistake(*arguments, number=None):
            function = edited(right, edit, number)
            return run(function, *arguments) if run else function(*arguments)

        return mistake

    return [(words, made_when_called(way)) for words, ways in wrong.items() for way in ways]
