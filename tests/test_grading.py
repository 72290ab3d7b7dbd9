"""The grader: a class of made-up submissions, of which many are broken or mean no good."""

import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from answers import ASKED, LESSONS
from execute_notebooks import cells_of, solutions

from lnlib.exercises.__main__ import exercises_in, in_one_line

MEAN = "def row_mean(x):\n    return x.mean(axis=-1, keepdims=True)"
SHIFT = "def shift_backward(dy):\n    return dy.sum(axis=(0, 1))"
START = (
    "import os, sys, time\nimport numpy as np\nfrom lnlib.exercises import check, load_exercises"
)
HEADINGS = "### Exercise 0.1 · A mean for each row", "### Exercise 0.2 · Shared by all rows"


def notebook(*sources, output="", **metadata):
    """Return a notebook as text; sources that begin with # are texts."""
    said = [{"output_type": "stream", "name": "stdout", "text": output}]
    code = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": said}
    kinds = {True: {"cell_type": "markdown", "metadata": {}}, False: code}
    cells = [kinds[source.startswith("#")] | {"source": source} for source in sources]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells})


def answers(*mean, shift=SHIFT, **options):
    """Return a notebook with exercises 0.1 and 0.2 in the form that lesson 00 gives them."""
    first, second = HEADINGS
    return notebook(START, first, *mean, "check(row_mean)", second, shift, **options)


FAKE = """
import lnlib.exercises
from lnlib.exercises import EXERCISES, Verdict
def row_mean(x):
    return x.mean(axis=0)
print("row_mean: right")
there = sys.modules[lnlib.exercises.check.__module__]
lnlib.exercises.check = there.check = check = lambda f: Verdict("right", "row_mean")
EXERCISES["row_mean"] = EXERCISES["shift_backward"]
np.abs = np.array_equal = np.isfinite = lambda *_: np.True_
"""
# It overwrites its own file where it finds it, and no other: a grader with a fault may run it
# anywhere. LATE is a path in pytest's folder.
VANDAL = """
import subprocess, threading
late = "import time; time.sleep(3); open('LATE', 'w')"
subprocess.Popen([sys.executable, "-c", late])
threading.Thread(target=threading.Event().wait).start()
if os.path.exists("a vandal.ipynb"):
    open("a vandal.ipynb", "w").write("mine")
"""
OURS = "shift_backward = load_exercises()['shift_backward'].right"
MAGICS = f"%xmode Plain\n!exit 1\nawait __import__('asyncio').sleep(0)\ndisplay('a text')\n{MEAN}"
STUBBORN = "while True:\n    try: time.sleep(9)\n    except BaseException: pass"
# Name of the file -> the notebook, and the verdicts on its exercises 0.1 and 0.2, or on the file.
# After a colon stand words of the remark.
RIGHT, ENDED = ["right", "right"], 2 * ["not checked: process ended"]
STOPPED = 2 * ["not checked: stopped after 12 s"]
MEMORY = ["wrong: MemoryError", "right"] if sys.platform == "linux" else RIGHT
CLASS = {
    "a vandal": (answers(MEAN, VANDAL), RIGHT),
    "solutions": (solutions(LESSONS[0]).read_text("utf-8"), 3 * ["right"]),
    "wrong": (
        answers(MEAN.replace("-1", "0"), shift=f"{SHIFT[:23]} raise KeyboardInterrupt"),
        ["wrong: axis", "wrong: Keyboard"],
    ),
    "half": (answers(f"{MEAN}\n1 / 0", shift=f"{SHIFT[:23]} ..."), ["right", "not done"]),
    "broken": (answers(shift=f"{SHIFT})"), ["not done: not defined", "wrong: SyntaxError"]),
    "broken later": (answers(MEAN, f"{MEAN})"), ["wrong: SyntaxError", "right"]),
    "no def": (
        answers("row_mean = lambda x: x", shift=f"{OURS}\ncheck(shift_backward)"),
        2 * ["wrong: with def"],
    ),
    "magics": (answers(MAGICS, "input()", "quit()", "raise SystemExit"), RIGHT),
    "puts out 200 MB": (answers(MEAN, "for _ in range(100):\n    print(10**6 * '12')"), RIGHT),
    "40 MB": (answers(MEAN, output=8 * 10**6 * "x", language_info={"name": "python"}), RIGHT),
    "much memory": (answers(f"hog = bytearray(8 << 30)\n{MEAN}"), MEMORY),
    "ends": (answers(MEAN, "os._exit(0)"), ENDED),
    "closes files": (answers(MEAN, "os.closerange(0, 50)"), ENDED),
    "fakes": (answers(FAKE), ["wrong: axis", "right"]),
    "in R": (answers(MEAN, kernelspec={"name": "ir", "language": "R"}), ["not checked: is R"]),
    "no exercises": (notebook("# Notes", "x = 1"), ["not checked: No exercise"]),
    "old": ('{"nbformat": 3, "worksheets": []}', ["not checked: no notebook: KeyError"]),
    "deep": (100_000 * "[", ["not checked: no notebook: RecursionError"]),
}
ENDLESS = {
    "cell": (answers(MEAN, "while True: time.sleep(0.1)"), RIGHT),
    "stubborn": (answers(MEAN, STUBBORN), STOPPED),
    "function": (answers(f"{MEAN[:16]}\n    while True: time.sleep(1)"), STOPPED),
}


def grader(folder, *options):
    """Run the grader; return its table, and the rows of its CSV file."""
    path, root = folder.parent / f"{folder.name}.csv", Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "lnlib.exercises", folder, "--csv", path, *options]
    env = os.environ | {"PYTHONPATH": str(root)}  # and never in a folder of ours
    done = subprocess.run(command, cwd=folder / "a", env=env, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    with path.open(newline="", encoding="utf-8") as file:
        return done.stdout, list(csv.DictReader(file))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Grade the class: the table, the rows of the CSV files, and are all files as before?"""
    folder = tmp_path_factory.mktemp("grading")
    classes = {folder / "class": CLASS, folder / "endless": ENDLESS}
    for place, notebooks in classes.items():
        (place / "a").mkdir(parents=True)
        for name, (text, _) in notebooks.items():
            text = text.replace("LATE", (folder / "late").as_posix())
            (place / f"a/{name}.ipynb").write_text(text, "utf-8")
        (place / "a/.ipynb_checkpoints").mkdir()
        (place / "a/.ipynb_checkpoints/right.ipynb").write_text("JupyterLab's own copy")
        (place / "a/folder.ipynb").mkdir()
        if os.name != "nt":  # where a link needs a right
            (place / "a/link.ipynb").symlink_to(place / "a/cell.ipynb")

    def files():
        files = [path for path in folder.rglob("*") if path.suffix != ".csv" and path.is_file()]
        return {path: path.read_bytes() for path in files}

    before = files()
    with ThreadPoolExecutor() as pool:
        endless = pool.submit(grader, folder / "endless", "--seconds", "12", "--jobs", "3")
        table, rows = grader(folder / "class")
    return table, rows + endless.result()[1], files() == before


@pytest.mark.parametrize("name", CLASS | ENDLESS)
def test_submission(name, graded):
    rows = [row for row in graded[1] if row["who"] == f"a/{name}.ipynb"]
    expected = [text.partition(": ") for text in (CLASS | ENDLESS)[name][1]]
    for row, (verdict, _, words) in zip(rows, expected, strict=True):
        assert row["verdict"] == verdict and words in row["remark"], row
        assert words or not row["remark"], row
    given = [(row["exercise"], row["function"]) for row in rows]
    course = [("0.1", "row_mean"), ("0.2", "shift_backward"), ("0.3", "mean_backward")]
    assert given == (course[: len(rows)] if len(rows) > 1 else [("", "")])


def test_other_files_are_named_or_left_out_and_none_is_changed(graded):
    """The vandal's process would write a file after 3 s; the endless ones took 12."""
    table, rows, unchanged = graded
    assert unchanged
    others = {(r["who"][2:-6], r["verdict"]) for r in rows if r["who"][2:-6] not in CLASS | ENDLESS}
    assert others - {("link", "not checked")} == {("folder", "not checked")}
    for line, row in zip(table.splitlines()[1:], rows):
        assert " ".join(" ".join(row.values()).split()).startswith(" ".join(line.split()))


def test_exercises_of_all_lessons_are_found():
    for lesson in LESSONS:
        found = [
            exercises_in([(c.cell_type, c.source) for c in cells_of(path)])
            for path in (lesson, solutions(lesson))
        ]
        assert found[0] == found[1] == {k: ASKED[k].number for k in found[0]} != {}
    assert exercises_in([("code", f"{MEAN}\ndef other(): ...")]) == {"row_mean": ""}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a"])
def test_no_text_becomes_a_formula(text):
    assert in_one_line(text) == f"'{text}"
    assert in_one_line(f"{text[1:]}\n\x1b[31m  b") == f"{text[1:]} [31m b"


def test_folder_without_notebooks(tmp_path):
    command = [sys.executable, "-m", "lnlib.exercises", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert f"folder must hold notebooks, files named *.ipynb; {tmp_path} has none" in done.stderr
