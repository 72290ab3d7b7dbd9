"""The grader: a class of made-up submissions, of which many are broken or mean no good."""

import contextlib
import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from execute_notebooks import lessons, solutions

from lnlib.exercises import EXERCISES
from lnlib.exercises.__main__ import exercises_in, in_one_line

STUB = "def row_mean(x):\n    ..."
MEAN = "def row_mean(x):\n    return x.mean(axis=-1, keepdims=True)"
WRONG = "def row_mean(x):\n    return x.mean(axis=0)"
SHIFT = "def shift_backward(dy):\n    return dy.sum(axis=(0, 1))"


def notebook(*sources, output="", **metadata):
    """Return a notebook as text; sources that begin with # are texts."""
    cells = []
    for source in sources:
        cells.append({"cell_type": "markdown", "metadata": {}, "source": source})
        if not source.startswith("#"):
            said = [{"output_type": "stream", "name": "stdout", "text": output}]
            cells[-1] |= {"cell_type": "code", "execution_count": None, "outputs": said}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}
    return json.dumps(book)


def answers(*mean, shift=SHIFT, **options):
    """Return a notebook with exercises 0.1 and 0.2 in the form that lesson 00 gives them."""
    return notebook(
        "import numpy as np\nfrom lnlib.exercises import check",
        "# Lesson\n\n## Exercises\n\n### Exercise 0.1 · A mean for each row",
        *mean,
        "check(row_mean)",
        "### Exercise 0.2 · Shared by all rows\n\nOne line.",
        shift,
        "check(shift_backward)",
        **options,
    )


FAKE = f"""
import lnlib.exercises
from lnlib.exercises import EXERCISES, Verdict
{WRONG}
print("row_mean: right")
there = __import__("sys").modules[lnlib.exercises.check.__module__]
check = lambda function: Verdict("right", "row_mean")
lnlib.exercises.check = there.check = check
there._check = lambda name, *_: Verdict("right", name)
EXERCISES["row_mean"] = EXERCISES["shift_backward"]
np.abs = np.array_equal = np.isfinite = lambda *_: np.True_
"""
# It deletes notebooks where it runs, and nothing else: a grader with a fault may run it anywhere.
VANDAL = """
import glob, os, subprocess, sys, threading
late = "import time; time.sleep(3); open('LATE', 'w')"
subprocess.Popen([sys.executable, "-c", late])
threading.Thread(target=threading.Event().wait).start()
for path in glob.glob("*.ipynb"):
    os.remove(path)
open("also a vandal.ipynb", "w").write("mine")
"""
MAGICS = """%xmode Plain
!exit 1
await __import__("asyncio").sleep(0)
display("a text")
def row_mean(x):
    return x.mean(axis=-1, keepdims=True)
"""
STUBBORN = """
import time
while True:
    try:
        time.sleep(9)
    except BaseException:
        pass
"""
PRINTS = "for _ in range(100):\n    print(10**6 * 'x')"
LOADED = "from lnlib.exercises import load\nshift_backward = load()['shift_backward'].right"
INTERRUPTS = "def row_mean(x):\n    raise KeyboardInterrupt"
# Name of the file -> the notebook, and the verdicts on its exercises 0.1 and 0.2, or on the file.
# After a colon stand words of the remark.
RIGHT = ["right", "right"]
MEMORY = ["wrong: MemoryError", "right"] if sys.platform == "linux" else RIGHT
ENDED = 2 * ["not checked: process ended"]
CLASS = {
    "also a vandal": (answers(MEAN, VANDAL), RIGHT),  # also: so that others come later
    "right": (answers(MEAN, language_info={"name": "python"}), RIGHT),
    "solutions": (solutions(lessons()[0]).read_text("utf-8"), 3 * ["right"]),
    "wrong": (answers(WRONG), ["wrong: axis", "right"]),
    "half": (answers(f"{MEAN}\n1 / 0", shift="def shift_backward(dy): ..."), ["right", "not done"]),
    "untouched": (
        answers(STUB, shift=STUB.replace("row_mean", "shift_backward")),
        2 * ["not done"],
    ),
    "broken": (answers(shift=f"{SHIFT})"), ["not done: not defined", "wrong: SyntaxError"]),
    "broken later": (answers(MEAN, f"{MEAN})"), ["wrong: SyntaxError", "right"]),
    "other": (answers("row_mean = lambda x: x", shift=LOADED), 2 * ["wrong: with def"]),
    "another": (
        answers(INTERRUPTS, shift="shift_backward = row_mean"),
        ["wrong: KeyboardInterrupt", "wrong: with def"],
    ),
    "magics": (answers(MAGICS, "input()", "quit()", "raise SystemExit"), RIGHT),
    "puts out 200 MB": (answers(MEAN, PRINTS, "10**8 * 'x'"), RIGHT),
    "40 MB": (answers(MEAN, output=8 * 10**6 * "x"), RIGHT),
    "much memory": (answers(f"hog = bytearray(8 << 30)\n{MEAN}"), MEMORY),
    "ends": (answers(MEAN, "import os\nos._exit(0)"), ENDED),
    "crashes": (answers(MEAN, "import ctypes\nctypes.string_at(0)"), ENDED),
    "closes files": (answers(MEAN, "import os\nos.closerange(0, 50)"), ENDED),
    "fakes": (answers(FAKE), ["wrong: axis", "right"]),
    "in R": (
        answers("row_mean <- rowMeans", kernelspec={"name": "ir", "language": "R"}),
        ["not checked: language is R"],
    ),
    "no exercises": (notebook("# Notes", "x = 1"), ["not checked: No exercise"]),
    "empty": ("", ["not checked: no notebook: JSONDecodeError"]),
    "cut off": (answers(MEAN)[:-100], ["not checked: no notebook: JSONDecodeError"]),
    "old": ('{"nbformat": 3, "worksheets": []}', ["not checked: no notebook: KeyError"]),
    "list": ("[1, 2]", ["not checked: no notebook: TypeError"]),
    "deep": (100_000 * "[", ["not checked: no notebook: RecursionError"]),
    "bytes": ("\x00\xff\xfe", ["not checked: no notebook: UnicodeDecodeError"]),
}
ENDLESS = {
    "cell": (answers(MEAN, "while True:\n    pass"), RIGHT),
    "stubborn": (answers(MEAN, STUBBORN), 2 * ["not checked: stopped after 4 s"]),
    "function": (
        answers("import time\ndef row_mean(x):\n    while True: time.sleep(1)"),
        2 * ["not checked: stopped after 4 s"],
    ),
}


def grader(folder, *options):
    """Run the grader; return its table, and the rows of its CSV file."""
    path, root = folder.parent / f"{folder.name}.csv", Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "lnlib.exercises", folder, "--csv", path, *options],
        cwd=folder / "a",  # never a folder of ours: these notebooks delete files
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    with path.open(newline="", encoding="utf-8") as file:
        return done.stdout, list(csv.DictReader(file))


def files(folder):
    """Return what is in a folder: path -> bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Grade the class: the table, the rows of the CSV files, and are all files as before?"""
    folder = tmp_path_factory.mktemp("grading")
    late, handed_in, endless = folder / "late", folder / "class/a", folder / "endless/a"
    for place, notebooks in (handed_in, CLASS), (endless, ENDLESS):
        place.mkdir(parents=True)
        for name, (text, _) in notebooks.items():
            text = text.replace("LATE", late.as_posix())
            coding = "latin-1" if name == "bytes" else "utf-8"
            (place / f"{name}.ipynb").write_bytes(text.encode(coding))
    (handed_in / ".ipynb_checkpoints").mkdir()
    (handed_in / ".ipynb_checkpoints/right.ipynb").write_text("JupyterLab's own copy")
    (handed_in / "folder.ipynb").mkdir()
    with contextlib.suppress(OSError):  # Windows wants a right for it
        (handed_in / "link.ipynb").symlink_to(handed_in / "right.ipynb")
    before = files(folder)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(grader, endless.parent, "--seconds", "4", "--jobs", "3")
        table, rows = grader(handed_in.parent)
    left = {path: text for path, text in files(folder).items() if path.suffix != ".csv"}
    return table, rows + other.result()[1], left == before


@pytest.mark.parametrize("name", CLASS | ENDLESS)
def test_submission(name, graded):
    rows = [row for row in graded[1] if row["who"] == f"a/{name}.ipynb"]
    expected = (CLASS | ENDLESS)[name][1]
    for row, (verdict, _, words) in zip(rows, [e.partition(": ") for e in expected], strict=True):
        assert row["verdict"] == verdict, row
        assert words in row["remark"] if words else not row["remark"], row
    given = [(row["exercise"], row["function"]) for row in rows]
    course = [("0.1", "row_mean"), ("0.2", "shift_backward"), ("0.3", "mean_backward")]
    assert given == (course[: len(rows)] if len(rows) > 1 else [("", "")])


def test_links_and_folders_have_a_line_and_jupyterlabs_copies_none(graded):
    others = {row["who"][2:-6]: row["verdict"] for row in graded[1]}
    others = {name: said for name, said in others.items() if name not in CLASS | ENDLESS}
    assert others.pop("folder") == others.pop("link", "not checked") == "not checked"
    assert not others


def test_what_was_handed_in_is_not_changed_and_processes_are_stopped(graded):
    """The vandal's process would write a file after 3 s; the endless ones took 4."""
    assert graded[2]


def test_table_says_what_the_csv_file_says(graded):
    for line, row in zip(graded[0].splitlines()[1:], graded[1]):
        assert " ".join(" ".join(row.values()).split()).startswith(" ".join(line.split()))


def test_exercises_of_all_lessons_are_found():
    numbers = {}
    for lesson in (page for page in lessons() if solutions(page).exists()):
        stubs, answers = [
            exercises_in([(c.cell_type, c.source) for c in nbformat.read(path, 4).cells])
            for path in (lesson, solutions(lesson))
        ]
        assert stubs == answers
        numbers |= stubs
    assert numbers.keys() == EXERCISES.keys()
    assert len(set(numbers.values())) == len(numbers) and all(numbers.values())


def test_exercise_without_a_heading_has_no_number():
    cells = [
        ("code", MEAN),
        ("markdown", "## Exercise 0.2"),
        ("code", f"{SHIFT}\ndef other(): ..."),
    ]
    assert exercises_in(cells) == {"row_mean": "", "shift_backward": "0.2"}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a"])
def test_no_text_becomes_a_formula(text):
    assert in_one_line(text) == f"'{text}"
    assert in_one_line(f"{text[1:]}\n\x1b[31m  b") == f"{text[1:]} [31m b"


def test_folder_without_notebooks(tmp_path):
    command = [sys.executable, "-m", "lnlib.exercises", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert f"folder must hold notebooks, files named *.ipynb; {tmp_path} has none" in done.stderr
