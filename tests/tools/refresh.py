"""Bring everything that is generated in line with its source again.

The docstring of an exercise is copied from the lesson to the solution and to lnlib/exercises. The
minutes in the lessons, in README.md and in the map of lesson 00 are measured. Notebooks get the
form in which they are stored. A notebook is executed if its code differs from the last commit, or
if what it imports or reads does; other words than code change no output. The backward pass on one
page is drawn if what it says has changed.
"""

import argparse
import ast
import re
import subprocess
import sys
from modulefinder import ModuleFinder
from pathlib import Path

import draw_one_page
import execute_notebooks as form
import numpy as np
from execute_notebooks import ROOT, all_notebooks, lessons, read
from minutes import size

README = ROOT / "README.md"
TIMES = r"(\d+) minutes to read(?:, (\d+) with the exercises|; no exercises)"
TWIN = "Return what the solution's CUDA computes"  # stands in lnlib/exercises for a kernel


def out_of_date():
    """Return {path: text as it should be} for the files in which something generated is not."""
    pages = {path: read(path) for path in all_notebooks()}
    texts = {path: path.read_text("utf-8") for path in ROOT.glob("lnlib/exercises/lesson_*.py")}
    copy_docstrings(pages, texts)
    texts[README] = write_minutes(pages, README.read_text("utf-8"))
    texts |= {path: form.normal_form(page, path) for path, page in pages.items()}
    return {path: text for path, text in texts.items() if text != path.read_text("utf-8")}


def write_minutes(pages, readme):
    """Write into the lessons and the map how long each lesson takes; return the README that does.

    A lesson's two numbers are minutes without its exercises, and with them.
    """
    the_map = next(c for c in pages[lessons()[0]].cells if c.source.startswith("| lesson |"))
    total = np.zeros(2, int)
    for path in lessons():
        page, first = size(path), pages[path].cells[0]
        minutes = page.reading, page.reading + page.exercises
        total += minutes
        first.source = replaced(TIMES, minutes[: 1 + bool(page.exercises)], first.source)
        name = re.split(" · |: ", form.title(path))[1]
        pattern = rf"\| \[(.*?)\]\(notebooks/{path.name}\) \|.*\| (\d+) \| (\d+) \|$"
        readme = replaced(pattern, (name, *minutes), readme)
        pattern = rf"^\| [*[]*{path.name[:2]}[*[ ]*(.*?)(?:\]\({path.name}\))? \| (\d+) \| (\d+) \|"
        the_map.source = replaced(pattern, (name, *minutes), the_map.source)
    readme = replaced(r"^\| \| all of them \| \| (\d+) \| (\d+) \|$", total, readme)
    hours = r"about (\d+) hours to read,\s+(\d+) with the exercises"
    return replaced(hours, map(round, total / 60), readme)


def copy_docstrings(pages, texts):
    """Copy the docstrings of the lessons' stubs to the solutions and to the modules' texts."""
    for path in lessons():
        asked = exercises(pages[path])
        solved = exercises(pages[form.solutions(path)]) if asked else {}
        for name, cell in asked.items():
            words = docstring(cell.source, name)
            solved[name].source = with_docstring(solved[name].source, name, words)
            for module, text in texts.items():
                if f"\ndef {name}(" in text and TWIN not in docstring(text, name):
                    texts[module] = with_docstring(text, name, words)


def exercises(page):
    """Return the cells below a page's headings of exercises, by the names of their functions."""
    pairs = zip(page.cells, page.cells[1:])
    cells = [code for text, code in pairs if re.search(r"^##+ Exercise \d", text.source, re.M)]
    return {re.search(r"^def (\w+)", cell.source, re.M)[1]: cell for cell in cells}


def docstring(source, name):
    """Return the docstring of a function in a source, as it is written there."""
    function = next(n for n in ast.parse(source).body if getattr(n, "name", "") == name)
    return ast.get_source_segment(source, function.body[0])


def with_docstring(source, name, words):
    """Return a source with another docstring of a function."""
    start = source.index(f"def {name}(")
    return source[:start] + source[start:].replace(docstring(source, name), words, 1)


def replaced(pattern, values, text):
    """Return text in which values stand where the groups of a pattern match."""
    match = re.search(pattern, text, re.M)
    if match is None:
        raise ValueError(
            f"a lesson, README.md or lesson 00's map has no place for {values}: {pattern}"
        )
    for group, value in reversed([*enumerate(values, start=1)]):
        text = f"{text[: match.start(group)]}{value}{text[match.end(group) :]}"
    return text


def depends(path, changed):
    """May the outputs of a notebook depend on files that changed?"""
    source = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
    finder = ModuleFinder([str(ROOT)])  # finds what is ours
    finder.scan_code(compile(source, path.name, "exec"), finder.add_module("__main__"))
    files = {Path(module.__file__) for module in finder.modules.values() if module.__file__}
    folders = {file.parent for file in files}
    return any(
        file in files | {path}
        or (file.suffix in (".cu", ".h", ".cpp") and file.parent in folders)
        or file.name.startswith(f"lesson_{path.name[:2]}")  # read when lnlib.exercises checks
        or (file.parent.name == "exercises" and "lesson_" not in file.name and "check(" in source)
        or f'"{file.name}"' in source
        for file in changed
    )


def changed_files():
    """Return the files whose code differs from the last commit."""
    commands = "git diff --name-only HEAD", "git ls-files --others --exclude-standard"
    runs = [subprocess.run(c.split(), cwd=ROOT, capture_output=True, text=True) for c in commands]
    if any(done.returncode for done in runs):
        sys.exit("git does not know what changed: name the files, or ask for --all")
    files = [ROOT / line for done in runs for line in done.stdout.splitlines()]
    there = {file: file.read_bytes() for file in files if file.exists()}
    same = {file for file in there if code(file, there[file]) == code(file, form.committed(file))}
    return [file for file in files if file not in same]


def code(file, content):
    """Return what of a file's content can change an output."""
    if content and file.suffix == ".py":
        return code_of(content.decode())
    if content and file.suffix == ".ipynb":
        return [code_of(c.source) for c in form.parse(content).cells if c.cell_type == "code"]
    return content


def code_of(source):
    """Return a Python source without comments and the words of its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(
            node
        ):
            node.body[0].value.value = ""
    return ast.dump(tree)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changed", nargs="*", type=Path, help="files (default: not committed)")
    parser.add_argument("--all", action="store_true", help="execute all notebooks")
    words = "store new outputs, such as timings, also of cells that have not changed"
    parser.add_argument("--measure", action="store_true", help=words)
    options = parser.parse_args()
    for path, text in out_of_date().items():
        path.write_text(text, "utf-8")
        print("rewrote", path.relative_to(ROOT))
    chosen = all_notebooks()
    if not options.all:
        changed = [path.resolve() for path in options.changed] or changed_files()
        chosen = [path for path in chosen if depends(path, changed)]
    form.execute_all(chosen, options.measure)
    if not draw_one_page.is_up_to_date():
        draw_one_page.draw_all()


if __name__ == "__main__":
    main()
