"""Hygiene of the notebooks, and of the tree around them: what strict nbval cannot see."""

import ast
import builtins
import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import nbval.kernel
import pytest
from execute_notebooks import (
    INDEX,
    METADATA,
    NAVIGATION,
    README_FIGURE,
    all_notebooks,
    last_figure,
    lessons,
    navigation,
    pictures,
    slide_types,
    split,
    title,
)
from run_plans import Row, cells_of, plans

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = all_notebooks()
LESSONS = lessons()
NOT_HERE = re.compile(r"/home/|/root/|/work/|/tmp/|/Users/|[A-Z]:\\\\|/usr/lib|site-packages")


@functools.cache
def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)


def test_there_are_lessons():
    assert [path.name[:2] for path in LESSONS] == [f"{n:02}" for n in range(8)]


@each_notebook
def test_executed_in_order_and_normalised(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA | {"title": title(path)}
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell, slide_type in zip(notebook.cells, slide_types(notebook.cells)):
        assert set(cell.metadata) - {"tags", "alt", "mystnb"} == {"slideshow"}
        assert cell.metadata.slideshow == {"slide_type": slide_type}
        assert set(cell.metadata.get("tags", [])) <= {"nbval-ignore-output", "fold"}
        assert cell.source.strip() and len(split(cell)) == 1
    assert nbformat.writes(notebook) + "\n" == path.read_text("utf-8")


@each_notebook
def test_outputs_are_clean(path):
    for cell in code_cells(path):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            assert "image/svg+xml" not in output.get("data", {})
            text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
            assert not NOT_HERE.search(text), text


@each_notebook
def test_sources_are_clean(path):
    for cell in read(path).cells:
        assert not NOT_HERE.search(cell.source)
        assert not re.search(r"NBVAL|%%writefile|TODO|FIXME", cell.source)
        if cell.cell_type == "markdown":
            assert dead_links(cell.source, path.parent, NOTEBOOKS[0].parent) == []


def dead_links(text, folder, root):
    """Return the links of a text, in a file in folder, that lead nowhere or out of root."""
    headings = re.findall("^#+ (.*)$", text, flags=re.M)
    alive = {"#" + heading.lower().replace(" ", "-") for heading in headings}
    pattern, dead = r"""(?:\]\(|(?:href|srcset|src)=")([^)"\s]+)""", []
    for link in re.findall(pattern, re.sub("`.*?`", "", text)):
        file = (folder / link.split("#")[0]).resolve()
        here = link[0] != "#" and file.exists() and file.is_relative_to(root.resolve())
        if not (here or link in alive or link.startswith("https://")):
            dead.append(link)
    return dead


def test_dead_links_are_found():
    folder = NOTEBOOKS[0].parent
    text = f"[a]({LESSONS[0].name}), [b](https://x.org), [c](../README.md), [d](gone.ipynb)"
    text += '\n## At the end\n<img src="gone.png">, [e](#at-the-end), <a href="#gone">f</a>'
    gone = ["gone.ipynb", "gone.png", "#gone"]
    assert dead_links(text, folder, folder) == ["../README.md", *gone]
    assert dead_links(text, folder, ROOT) == gone


@pytest.mark.parametrize("name", ["README.md", ".github/CONTRIBUTING.md", "notebooks/teaching.md"])
def test_texts_have_no_dead_links(name):
    """What JupyterLab shows, when it opens lesson 00, ends at the folder of the notebooks."""
    path = ROOT / name
    root = path.parent if name.startswith("notebooks") else ROOT
    assert dead_links(path.read_text("utf-8"), path.parent, root) == []


@each_notebook
def test_links_to_the_pages_before_and_after(path):
    cells = read(path).cells
    assert [cells[1].id, cells[-1].id] == list(NAVIGATION)
    assert cells[1].source == cells[-1].source == navigation(path)
    linked = set(re.findall(r"\]\((.+?)\)", navigation(path)))
    if path in (pages := [INDEX, *LESSONS]):
        k = pages.index(path)
        beside = {page.name for page in pages[max(k - 1, 0) : k + 2] if page != path}
        answers = {f"solutions/{path.name[:2]}_solutions.ipynb"} if path in LESSONS else set()
        assert linked == beside | answers
        for page in beside:
            assert f"({path.name})" in navigation(LESSONS[0].parent / page)  # and back again
    else:
        lesson = next(page for page in LESSONS if page.name[:2] == path.name[:2])
        after = LESSONS[LESSONS.index(lesson) + 1 :][:1]
        assert linked == {f"../{page.name}" for page in [lesson, *after]}


@each_lesson
def test_lesson_has_its_shape(path):
    notebook = read(path)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert text.startswith(f"# {path.name[:2]} · ")
    for part in ("What you'll do", "What you'll learn", "What you'll need"):
        assert f"**{part}" in notebook.cells[0].source
    for heading in ("## Check yourself", "## In practice", "## Further reading"):
        assert heading in text
    if path.name[:2] != "07":  # whose exercises are the lesson
        assert text.index("## Exercises") < text.index("## Check yourself")
    assert text.count("<details>") == text.count("</details>")
    assert text.split("## Check yourself")[1].count("<details><summary>Answer") == 3
    assert text.count("**Predict.**") >= (3 if path == LESSONS[0] else 5)
    assert text.count("**Is it true?**") == text.count("**Verdict:")


@each_lesson
def test_readme_and_map_list_the_lesson(path):
    first = read(path).cells[0].source
    title = re.split(r" · |: ", first.splitlines()[0])[1]
    minutes = re.search(r"(\d+) minutes to read, (\d+) with the exercises", first).groups()
    number = path.name[:2]
    rows = (ROOT / "README.md").read_text("utf-8").splitlines()
    row = next(line for line in rows if f"(notebooks/{path.name})" in line)
    assert row.startswith(f"| {number} | [{title}]") and row.endswith(
        "| {} | {} |".format(*minutes)
    )
    rows = "\n".join(cell.source for cell in read(LESSONS[0]).cells).splitlines()
    row = next(line for line in rows if re.match(rf"\| \[?{number} {title}", line))
    assert f"| {minutes[0]} |" in row and (f"({path.name})" in row or number == "00")


@each_lesson
def test_lesson_asserts_and_draws(path):
    cells = code_cells(path)
    short = path == LESSONS[0]
    assert sum(cell.source.count("assert ") for cell in cells) >= (7 if short else 20)
    assert sum(len(pictures(cell)) for cell in cells) >= (2 if short else 4)
    for cell in cells:
        assert len(cell.source.splitlines()) <= 20, cell.source


@each_lesson
def test_figures_have_alt_text(path):
    """A lesson describes all of its figures; what is described is a figure."""
    described = [cell for cell in code_cells(path) if "alt" in cell.metadata]
    assert described == [cell for cell in code_cells(path) if pictures(cell)]
    for cell in described:
        assert re.fullmatch(r"[A-Z].{40,500}\.", cell.metadata.alt), cell.metadata.alt
        assert "$" not in cell.metadata.alt and "\\" not in cell.metadata.alt  # it is read aloud
        assert cell.metadata.mystnb == {"image": {"alt": cell.metadata.alt}}
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                assert output.metadata["image/png"] == {"alt": cell.metadata.alt}


@each_lesson
def test_mistakes_in_display_maths(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            assert cell.source.count("$$") % 2 == 0
            assert cell.source.count("$") % 2 == 0
            assert cell.source.count("{") == cell.source.count("}")


def test_figure_of_the_readme_is_the_lessons():
    notebook, figure = README_FIGURE
    assert figure.read_bytes() == last_figure(read(notebook))
    assert f"({figure.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text("utf-8")


def imports(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_no_framework_anywhere():
    sources = [path.read_text("utf-8") for path in ROOT.glob("lnlib/**/*.py")]
    sources += [cell.source for path in NOTEBOOKS for cell in code_cells(path)]
    found = {name for source in sources for name in imports(source)}
    assert "numpy" in found
    assert not found & {"torch", "tensorflow", "jax", "autograd", "keras", "mxnet", "theano"}


def test_importing_lnlib_is_light():
    code = "import sys, lnlib; print({'matplotlib', 'cupy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_teaching_plans_fit_the_lessons():
    """Every row names cells that stand in the sections it names, and each plan fills its time."""
    totals = {"30 minutes": 30, "60 minutes": 60, "90 minutes": 90, "Half a day": 210}
    found = plans()
    assert [title.split(":")[0] for title in found] == list(totals)
    for rows, total in zip(found.values(), totals.values()):
        assert sum(row.minutes for row in rows) == total
        for row in rows:
            assert bool(row.cells) == bool(row.run)
            if row.cells:
                shown = row.run[-1], int(re.findall(r"\d+", row.cells.split(", ")[-1])[0])
                assert set(shown) <= cells_in(row.lesson, row.where.split(", ")[1]), row
            assert set(row.shown) <= set(row.run), row
            assert "?" not in row.ask or re.search(r"\*.+\*", row.ask), row  # an answer
    assert sum(len(row.shown) for rows in found.values() for row in rows) > 30
    assert sum(bool(row.cells) for rows in found.values() for row in rows) > 35


@pytest.mark.parametrize("plan", plans().values(), ids=list(plans()))
def test_teaching_plans_define_what_they_use(plan):
    """run_plans.py runs them; here each name in a cell must have been defined before."""
    assert undefined(plan) == []


def test_a_plan_that_does_not_run_is_found():
    literal = [Row(6, "01, sections 1 to 3", "1–10"), Row(5, "01, section 6", "19–21")]
    assert any(name == "row_rstd" for *_, name in undefined(literal))


def undefined(plan):
    """Return (lesson, cell, name) for names that a plan's cells use before they are defined."""
    missing = []
    for path in dict.fromkeys(row.lesson for row in plan if row.cells):
        known, cells = set(dir(builtins)), cells_of(path)
        for row in plan:
            for number in row.run if row.lesson == path else ():
                defined, used = names_in(cells[number].source)
                known |= defined
                missing += [(path.name, number, name) for name in sorted(used - known)]
    return missing


@functools.cache
def names_in(source):
    """Return the names that a cell defines, and those that it uses."""
    nodes = list(ast.walk(ast.parse(source)))
    defined = {name for node in nodes for name in defined_by(node)}
    return defined, {node.id for node in nodes if isinstance(node, ast.Name)}


def defined_by(node):
    """Return the names that a node of a syntax tree defines."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.ExceptHandler(name=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [(other or name).split(".")[0]]
    return []


def cells_in(path, part):
    """Return the execution counts in sections such as "section 4", "sections 5 to 6"."""
    numbers = [int(n) for n in re.findall(r"\d+", part)]
    wanted = range(numbers[0], numbers[-1] + 1) if numbers else ()
    inside, counts = False, set()
    for cell in read(path).cells:
        for heading in re.findall(r"^## (?:(\d+)\. )?(\w+)", cell.source, flags=re.M):
            if cell.cell_type == "markdown":
                number, word = heading
                inside = int(number) in wanted if number else word.lower() == part
        if cell.cell_type == "code" and inside:
            counts.add(cell.execution_count)
    return counts


def test_a_kernel_whose_port_was_taken_is_started_again(monkeypatch):
    monkeypatch.setattr(nbval.kernel, "start_new_kernel", nbval.kernel.start_new_kernel)  # as it is
    spec = importlib.util.spec_from_file_location("of_notebooks", ROOT / "notebooks/conftest.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    outcomes = iter([RuntimeError("Kernel died before replying to kernel_info"), "kernel"])

    def start_new_kernel(**options):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome, options

    start = module.starts_twice(start_new_kernel)
    assert start(startup_timeout=1) == ("kernel", {"startup_timeout": 1})
