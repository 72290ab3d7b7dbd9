"""The exercises as they stand in the notebooks, and answers to them, right and wrong."""

import functools
import inspect
import re
from typing import NamedTuple

from execute_notebooks import cells_of, lessons, solutions

from lnlib.exercises import EXERCISES

LESSONS = [path for path in lessons() if solutions(path).exists()]
HEADING = re.compile(r"^##+ Exercise (\d+\.\d+) · (.+)$", re.MULTILINE)


class Part(NamedTuple):
    """An exercise as it stands in a notebook."""

    number: str
    title: str
    text: str
    source: str
    check: str
    verdict: str

    @property
    def name(self):
        return re.search(r"^def (\w+)", self.source, re.MULTILINE)[1]


@functools.cache
def parts(path):
    """Return the exercises of a notebook: a text, a cell with the function, one that checks.

    Between the last two may stand cells in which the learner tries the function.
    """
    cells, found = cells_of(path), []
    for k, (text, code) in enumerate(zip(cells, cells[1:])):
        if text.cell_type == "markdown" and (heading := HEADING.search(text.source)):
            checked = next(cell for cell in cells[k + 2 :] if cell.source.startswith("check("))
            verdict = "".join(o.get("data", {}).get("text/plain", "") for o in checked.outputs)
            found.append(Part(*heading.groups(), text.source, code.source, checked.source, verdict))
    return found


PATHS = {part.name: path for path in LESSONS for part in parts(path)}
ASKED = {part.name: part for path in LESSONS for part in parts(path)}
SOLVED = {part.name: part for path in LESSONS for part in parts(solutions(path))}


@functools.cache
def namespace(path):
    """Run all code of a notebook but for its checks and what it times; return its names."""
    names = {}
    for cell in cells_of(path):
        timed = "nbval-ignore-output" in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and not timed and not cell.source.startswith("check("):
            exec(cell.source, names)
    return names


def function(name, source):
    """Return an exercise's function from its source, where the solutions' names are known."""
    names = dict(namespace(solutions(PATHS[name])))
    exec(compile(source, "<a learner's cell>", "exec"), names)
    return names[name]


def altered(name, *changes):
    """Return the solution with each (old, new) replaced."""
    source = SOLVED[name].source
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return function(name, source)


def named(name, body, **names):
    """Return a function with the name and the arguments of an exercise."""
    given = ", ".join(inspect.signature(EXERCISES[name].right).parameters)
    exec(f"def {name}({given}):\n    {body.format(given=given)}", names)
    return names[name]


def spoken(verdict):
    """Return what a verdict says, in one line."""
    return " ".join(repr(verdict).split())


def expect(verdict, status, words=""):
    assert verdict.status == status and words in spoken(verdict), verdict
