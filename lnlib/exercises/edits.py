"""A mistake as a learner makes it: an edit of the right answer's source, and words for it."""

import functools
import inspect
import re

AXES = {  # mistakes that are made wherever an axis is given -> the edit
    "it goes over axis 0 and mixes rows; a row lies along axis=-1.": ("axis=-1", "axis=0"),
    "it goes over axis 1 and mixes the T rows; a row lies along axis=-1.": ("axis=-1", "axis=1"),
    "it goes over axes 0 and 1 and mixes rows; a row is axis=-1.": ("axis=-1", "axis=(0, 1)"),
    "it goes over the whole array; each row (axis=-1) has its own.": ("axis=-1", "axis=None"),
    "it goes over axis 0 alone; the rows have two axes, 0 and 1.": ("axis=(0, 1)", "axis=0"),
    "it goes over axis 1 alone; the rows have two axes, 0 and 1.": ("axis=(0, 1)", "axis=1"),
    "it goes along each row (axis=-1); the rows have axes 0 and 1.": ("axis=(0, 1)", "axis=-1"),
    "it goes over the whole array; the rows have axes 0 and 1.": ("axis=(0, 1)", "axis=None"),
}
ENTRY = re.compile(r"((?:^ {4}\S.*? =>.*\n)+)((?:^ {8}\S.*\n)+)", re.M)


def edits(table, also=None):
    """Read a table of mistakes.

    Parameters
    ----------
    table : str
        Lines "old => new", indented by 4: what is replaced, wherever it stands; several lines are
        replaced together. Then, behind two spaces and a #, or below and indented by 8, what is
        wrong, in words; several edits may have the same.
    also : (old, new), optional
        A change that is right and after which each edit is a mistake with other numbers: every
        edit is made with it as well.

    Returns
    -------
    dict of str to list
        What is wrong -> the edits that make it; an edit is a tuple of (old, new).
    """
    table = table.replace("  # ", "\n        ")
    if left := ENTRY.sub("", table).strip():
        raise ValueError(f"not an entry of a table of edits: {left!r}")
    mistakes = {}
    for lines, words in ENTRY.findall(table):
        pairs = (line.split(" =>", 1) for line in lines.splitlines())
        edit = tuple((old.strip(), new.strip()) for old, new in pairs)
        ways = mistakes.setdefault(" ".join(words.split()), [])
        ways += [edit, (also, *edit)] if also else [edit]
    return mistakes


def source_of_function(function):
    """Return the source of a function, from its def on."""
    source = inspect.getsource(function)
    return source[re.search("^def ", source, re.M).start() :]


@functools.cache
def edited(function, edit):
    """Return function with an edit made in its source; ValueError if that lacks what goes."""
    source = source_of_function(function)
    for old, new in edit:
        if old not in source:
            raise ValueError(f"{function.__name__} has no {old!r}")
        source = source.replace(old, new)
    names = dict(function.__globals__)
    exec(source, names)
    return names[function.__name__]


def axes_of(right):
    """Return {what is wrong: edits} for the axes that stand in the source of right."""
    source = source_of_function(right)
    return {words: [(edit,)] for words, edit in AXES.items() if edit[0] in source}


def functions_of(mistakes, right):
    """Return [(what is wrong, a function that does it)]; edits are made when they are called."""
    functions = []
    for words, ways in mistakes.items():
        for way in [ways] if callable(ways) else ways:
            functions.append((words, way if callable(way) else _made_when_called(right, way)))
    return functions


def _made_when_called(right, edit):
    return lambda *arguments: edited(right, edit)(*arguments)
