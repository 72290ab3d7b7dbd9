"""Grade the notebooks that a class has handed in: python -m lnlib.exercises FOLDER.

Each notebook below FOLDER runs in a process of its own, in an empty temporary folder. The file that
was handed in is only read, and files beside it are not there. A cell that fails does not stop the
cells after it. At the end `check` tries the function of every exercise that stands in the notebook.
What the notebook prints counts for nothing. The table says for each notebook and exercise: right,
wrong, not done or not checked.

A notebook has a time limit, and each of its cells a quarter of that. On Linux it also has at most
3 GB of memory and 256 MB for a file that it writes. Nothing else is limited. A notebook runs with
your rights: it can read and delete your files, use the network, fill the disk, start processes
without end and stop this program. Use a container or a throwaway account for people whom you do not
trust. Their code runs beside `check`, so whoever sets out to deceive `check` can. And the right
answers can be copied from the solutions.
"""

import argparse
import csv
import json
import os
import re
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

from ..checker.guard import time_limit
from . import check, load_exercises
from .registry import EXERCISES

RESOURCE_LIMITS = {"RLIMIT_DATA": 3 << 30, "RLIMIT_FSIZE": 256 << 20, "RLIMIT_CORE": 0}  # bytes
HEADING = re.compile(r"^#+ Exercise (\d+\.\d+)", re.MULTILINE)
DEFINED_OR_CHECKED = re.compile(r"^(def |check\()(\w+)", re.MULTILINE)


def exercises_in(cells):
    """Return a notebook's exercises: name of the function -> number in the heading above it.

    Parameters
    ----------
    cells : list of (str, str)
        The type of each cell, and its source.

    Returns
    -------
    dict
        The number is "" where no heading such as "Exercise 2.1" stands above the function.
    """
    found, number = {}, ""
    for kind, source in cells:
        if kind == "markdown":
            number = [number, *HEADING.findall(source)][-1]
        elif kind == "code":
            names = [n for _, n in DEFINED_OR_CHECKED.findall(source) if n in load_exercises(n)]
            found.update((name, found.get(name) or number) for name in names)
    return found


def run_one(seconds):
    """Run the notebook on stdin, and write what is found to stdout.

    A line is a list in JSON: function, number, verdict, remark. Every exercise has a line "not
    checked" first; a later line for the same function replaces it.

    Parameters
    ----------
    seconds : float
        After which a cell is interrupted. On Windows it is not.
    """
    with suppress(ImportError):
        import resource

        for name, most in RESOURCE_LIMITS.items():
            with suppress(ValueError, OSError):  # unknown here, or a lower limit holds already
                resource.setrlimit(getattr(resource, name), (most, most))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the notebook prints
    for row in _rows(seconds):
        print(json.dumps(row), file=out, flush=True)
    os._exit(0)  # whatever threads the notebook has left


def _rows(seconds):
    """Yield the rows that `run_one` writes."""
    try:
        notebook = json.load(sys.stdin.buffer)
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
        about = notebook["metadata"]
        about = about.get("language_info") or about.get("kernelspec") or {"name": "python"}
        language, found = about.get("language", about["name"]), exercises_in(cells)
    except Exception as error:
        yield "", "", "not checked", f"It is no notebook: {type(error).__name__}: {error}"
        return
    if not found:
        yield "", "", "not checked", "No exercise is in it."
    elif not language.startswith("python"):
        yield "", "", "not checked", f"Its language is {language}."
    else:
        yield from ((name, number, "not checked", "") for name, number in found.items())
        names, errors = _run_cells([source for kind, source in cells if kind == "code"], seconds)
        for name, number in found.items():
            yield name, number, *_verdict(name, names, errors.get(name))


def _run_cells(sources, seconds):
    """Run a notebook's code, and undo what it changes in lnlib and in NumPy.

    Returns
    -------
    names : dict
        What the notebook has defined.
    errors : dict
        Function -> the error of the last cell that should have defined it, or None.
    """
    from IPython.core.interactiveshell import InteractiveShell  # here, for the table needs none

    ours = [m for name, m in sys.modules.items() if name.split(".")[0] in ("lnlib", "numpy")]
    kept = [(names, dict(names)) for names in [*map(vars, ours), EXERCISES]]
    shell, errors = InteractiveShell.instance(xmode="Minimal"), {}
    for source in sources:
        defined = [name for begin, name in DEFINED_OR_CHECKED.findall(source) if begin == "def "]
        for name in defined:  # so that none is left from an earlier cell if this one fails
            shell.user_ns.pop(name, None)
        errors |= dict.fromkeys(defined, _error_of(shell, source, seconds))
    for names, before in kept:
        names.update(before)
    return shell.user_ns, errors


def _error_of(shell, source, seconds):
    """Run a cell; return its error, or None."""
    try:
        with time_limit(seconds):
            result = shell.run_cell(source, silent=True)
        return result.error_before_exec or result.error_in_exec
    except BaseException as error:
        return error


def _verdict(name, names, error):
    """Return (verdict, remark) for what the notebook has left under a name."""
    if name not in names:
        if error is None:
            return "not done", "The function is not defined."
        return "wrong", f"Its cell stops with {type(error).__name__}: {error}"
    try:
        if (names[name].__module__, names[name].__name__) != ("__main__", name):
            return "wrong", f"{name} is no function that the notebook defines with def."
        verdict = check(names[name])
        why = "" if verdict.status == "right" else " ".join(verdict.remarks)
        return verdict.status.removesuffix(" yet"), why
    except BaseException as error:
        return "wrong", f"It stops with {type(error).__name__}."


def grade(path, seconds):
    """Run a notebook in a process of its own, and return what `run_one` says of it.

    Parameters
    ----------
    path : Path
    seconds : float
        After which the process is stopped.

    Returns
    -------
    list of (str, str, str, str)
        Number, function, verdict, remark; at least one.
    """
    rows = {}
    try:
        if path.is_symlink():
            raise OSError("it is a link")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            why, lines = _run_in_process(path, seconds, folder)
    except (OSError, RecursionError) as error:  # RecursionError: it has left very deep folders
        why, lines = f"{type(error).__name__}: {error}", []
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):  # the notebook may write here, too
            name, number, status, remark = map(in_one_line, json.loads(line))
            rows[name] = number, name, status, remark or why * (status == "not checked")
    return [*rows.values()] or [("", "", "not checked", in_one_line(why))]


def _run_in_process(path, seconds, folder):
    """Run a notebook in a process; return how that has ended, and the lines that it has written."""
    course, run = Path(__file__).resolve().parents[2], f"run_one({seconds / 4})"
    command = [sys.executable, "-c", f"from {__package__}.__main__ import run_one; {run}"]
    env = os.environ | {"MPLBACKEND": "agg", "OPENBLAS_NUM_THREADS": "1"}
    env |= {"IPYTHONDIR": folder, "TMPDIR": folder}  # what is left there is deleted, too
    env["PYTHONPATH"] = os.pathsep.join([str(course), *filter(None, [os.getenv("PYTHONPATH")])])
    work = Path(folder, "work")  # so that files in ".." are deleted, too
    work.mkdir()
    options = {"stderr": DEVNULL, "cwd": work, "env": env, "start_new_session": True}
    with tempfile.TemporaryFile() as output, path.open("rb") as notebook:
        process = Popen(command, stdin=notebook, stdout=output, **options)
        try:
            why = f"Its process ended before this, with code {process.wait(seconds)}."
        except TimeoutExpired:
            why = f"It was stopped after {seconds:g} s."
        finally:
            process.kill()
            process.wait()
            with suppress(AttributeError, OSError):  # what it has started; not on Windows
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        return why, output.read(1 << 20).splitlines()


def in_one_line(text):
    """Return a text in one line of at most 1000 characters, which no spreadsheet computes."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:1000]).split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def main():
    """Grade a folder and print the table; see `--help`."""
    parser = argparse.ArgumentParser("python -m lnlib.exercises", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="holds the notebooks, also in folders below")
    parser.add_argument("--csv", metavar="FILE", help="write the table to a file, too, uncut")
    parser.add_argument("--seconds", type=float, default=300, help="for a notebook (300)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (all cores)")
    given = parser.parse_args()
    paths = sorted(p for p in given.folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not paths:
        parser.error(f"folder must hold notebooks, files named *.ipynb; {given.folder} has none")
    whose = [in_one_line(path.relative_to(given.folder).as_posix()) for path in paths]
    line = f"{{:{max(map(len, whose))}}}  {{:8}}  {{:22}}  {{:11}}  {{:.100}}".format
    sys.stdout.reconfigure(errors="replace")
    with open(given.csv or os.devnull, "w", newline="", encoding="utf-8") as file:
        for row in grades(whose, paths, given.seconds, given.jobs):
            csv.writer(file).writerow(row)
            print(line(*row).rstrip(), flush=True)


def grades(whose, paths, seconds, jobs):
    """Yield the rows of the table, its head first, while notebooks are graded.

    Parameters
    ----------
    whose : list of str
        What the table calls each notebook.
    paths : list of Path
    seconds : float
        For each notebook.
    jobs : int
        How many of them run at a time.
    """
    yield "who", "exercise", "function", "verdict", "remark"
    with ThreadPoolExecutor(jobs) as pool:
        graded = pool.map(lambda path: grade(path, seconds), paths)
        for who, rows in zip(whose, graded):
            yield from ((who, *row) for row in rows)


if __name__ == "__main__":
    main()
