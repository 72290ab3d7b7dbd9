"""Numbers in texts: what they say about the museum of bugs and about the size of the module."""

import ast
import re
from pathlib import Path

import nbformat
import numpy as np

from lnlib import layer_norm_forward
from lnlib.bugs import BUGS

ROOT = Path(__file__).resolve().parent.parent
LESSON = ROOT / "notebooks/03_gradient_check.ipynb"
WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()


def number(word):
    return WORDS.index(word.lower()) if word.lower() in WORDS else int(word)


def markdown(path):
    if path.suffix == ".md":
        return path.read_text("utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def caught():
    """How many bugs each check catches: lesson 03 counts and prints it, and its test holds it."""
    cells = nbformat.read(LESSON, as_version=4).cells
    printed = "".join(o.get("text", "") for c in cells for o in c.get("outputs", []))
    rows = re.findall(r"^(.*?) +caught +(\d+) of (\d+)$", printed, flags=re.M)
    assert rows and {int(total) for _, _, total in rows} == {len(BUGS)}
    return {name: int(count) for name, count, _ in rows}


def test_every_bug_has_a_name_of_its_own_and_forgets_something():
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(bug.forgets for bug in BUGS)


def test_texts_count_the_museum():
    texts = [ROOT / "README.md", *sorted(ROOT.glob("notebooks/**/*.md"))]
    texts += sorted(ROOT.glob("notebooks/**/[0-9]*.ipynb"))
    numbers = rf"(\d+|{'|'.join(WORDS)})"
    found = []
    for path in texts:
        pattern = rf"\b{numbers} (?:wrong (?:backward passes|ways)|bugs\b)"
        found += re.findall(pattern, markdown(path), flags=re.I)
    assert len(found) >= 4 and {number(word) for word in found} == {len(BUGS)}


def test_readme_counts_the_checks():
    counts = list(caught().values())
    text = markdown(ROOT / "README.md")
    pattern = r"against (\w+) checks: (\w+) checks catch all of them, (\w+) catch none"
    told = [number(word) for word in re.search(pattern, text).groups()]
    assert told == [len(counts), counts.count(len(BUGS)), counts.count(0)]


def test_teaching_counts_what_gamma_one_and_dy_one_miss():
    pattern = r"with (\d+) of the museum's \d+ bugs it is zero too.*?misses (\d+)"
    zero, missed = re.search(pattern, markdown(ROOT / "notebooks/teaching.md"), re.S).groups()
    x = 5 + 3 * np.random.default_rng(0).standard_normal((2, 3, 8))
    _, cache = layer_norm_forward(x, np.ones(8), np.zeros(8))
    dxs = [bug.backward(np.ones(x.shape), cache)[0] for bug in BUGS]
    assert sum(np.abs(dx).max() < 1e-12 for dx in dxs) == int(zero)
    assert len(BUGS) - caught()["gamma = 1, dy = 1"] == int(missed)


def lines_of_code(path):
    """Count the lines that are not blank, comment or docstring."""
    text = path.read_text("utf-8")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        1 for n, line in lines if n not in docstrings and line.strip() and line.strip()[0] != "#"
    )


def test_readme_tells_the_size_of_the_core():
    told = int(re.search(r"core, some (\d+) lines of code", markdown(ROOT / "README.md"))[1])
    core = sum(lines_of_code(p) for p in ROOT.glob("lnlib/*.py") if p.name != "plots.py")
    assert abs(core / told - 1) < 0.05


def test_readme_names_every_module_of_the_core():
    text = markdown(ROOT / "README.md")
    names = [p.name for p in ROOT.glob("lnlib/*.py") if p.name != "__init__.py"]
    assert [name for name in names if f"(lnlib/{name})" not in text] == []


def test_numbered_formulas_of_several_lines_are_for_the_book_too():
    """Sphinx puts formulas with \\\\ into a "split", which takes no \\tag; \\cr does as well."""
    for path in sorted(ROOT.glob("notebooks/**/*.ipynb")):
        for formula in re.findall(r"\$\$(.*?)\$\$", markdown(path), flags=re.S):
            assert not (r"\\" in formula and r"\tag" in formula), (path.name, formula)
