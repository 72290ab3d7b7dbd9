"""Hygiene of the notebooks, and of the tree around them: what strict nbval cannot see."""

import re
import subprocess
import sys
from pathlib import Path

import execute_notebooks as form
import pytest
import run_plans
from execute_notebooks import cells_of
from minutes import size
from run_plans import plans

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = form.all_notebooks()
LESSONS = form.lessons()
ALL_EXERCISES = form.NOTEBOOKS / "10_your_turn.ipynb"  # whose exercises are the lesson
NOT_HERE = re.compile(r"/home/|/root/|/work/|/tmp/|/Users/|[A-Z]:\\\\|/usr/lib|site-packages")


def code_cells(path):
    return [cell for cell in cells_of(path) if cell.cell_type == "code"]


each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)


def test_there_are_lessons():
    assert [path.name[:2] for path in LESSONS] == [f"{n:02}" for n in range(len(LESSONS))]
    assert len(LESSONS) > 1


@each_notebook
def test_executed_in_order(path):
    """The rest of the form in which notebooks are stored is held by test_texts.py."""
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    assert len({cell.id for cell in cells_of(path)}) == len(cells_of(path))
    tags = {tag for cell in code_cells(path) for tag in cell.metadata.get("tags", [])}
    assert tags <= {"nbval-ignore-output", "fold", "hide-input"}
    assert all(cell.source.strip() for cell in cells_of(path))


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
    for cell in cells_of(path):
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


@pytest.mark.parametrize("name", ["README.md", ".github/CONTRIBUTING.md", "notebooks/teaching.md"])
def test_texts_have_no_dead_links(name):
    """What JupyterLab shows, when it opens lesson 00, ends at the folder of the notebooks."""
    path = ROOT / name
    root = path.parent if name.startswith("notebooks") else ROOT
    assert dead_links(path.read_text("utf-8"), path.parent, root) == []


@each_lesson
def test_links_lead_to_the_page_after_and_back(path):
    linked = set(re.findall(r"\]\((.+?)\)", form.navigation(path)))
    before, after = form.neighbours(path)
    assert {page.name for page in before + after} <= linked and before
    origin, solved = form.BRANCHES.get(path.name[:2]), form.solutions(path)
    if origin:  # its way in, and its way back
        (entry,) = before
        assert entry.name.startswith(origin)
        assert any(f"]({path.name})" in cell.source for cell in cells_of(entry))
    assert solved.exists() == bool(size(path).exercises)
    if solved.exists():
        assert f"solutions/{solved.name}" in linked
        assert f"(../{path.name})" in form.navigation(solved)


@each_lesson
def test_lesson_has_its_shape(path):
    text = "\n".join(cell.source for cell in cells_of(path) if cell.cell_type == "markdown")
    assert text.startswith(f"# {path.name[:2]} · ")
    for part in ("What you'll do", "What you'll learn", "What you'll need"):
        assert f"**{part}" in cells_of(path)[0].source
    for heading in ("## Check yourself", "## In practice", "## Further reading"):
        assert heading in text
    if size(path).exercises and path != ALL_EXERCISES:
        assert text.index("## Exercises") < text.index("## Check yourself")
    assert text.count("<details>") == text.count("</details>")
    assert "<details><summary>Answer" in text.split("## Check yourself")[1]
    assert text.count("**Is it true?**") == text.count("**Verdict:")
    assert all(len(cell.source.splitlines()) <= 20 for cell in code_cells(path))


def test_no_lesson_is_longer_than_a_class_hour():
    """Lesson 10 is all exercises; 440 minutes are what the whole course may take to read."""
    sizes = {path.stem: size(path) for path in LESSONS}
    long = {name for name, page in sizes.items() if page.reading > 45 or page.words > 3000}
    assert long <= {ALL_EXERCISES.stem}, "above 45 minutes or 3000 words: tests/tools/minutes.py"
    assert sum(page.reading for page in sizes.values()) <= 440


@each_lesson
def test_figures_have_alt_text(path):
    """A lesson describes all of its figures; what is described is a figure."""
    described = [cell for cell in code_cells(path) if "alt" in cell.metadata]
    assert described == [cell for cell in code_cells(path) if form.pictures(cell)]
    for cell in described:
        assert re.fullmatch(r"[A-Z].{40,500}\.", cell.metadata.alt), cell.metadata.alt
        assert "$" not in cell.metadata.alt and "\\" not in cell.metadata.alt  # it is read aloud


@each_lesson
def test_mistakes_in_display_maths(path):
    for cell in cells_of(path):
        if cell.cell_type == "markdown":
            assert cell.source.count("$$") % 2 == 0
            assert cell.source.count("$") % 2 == 0
            assert cell.source.count("{") == cell.source.count("}")


def test_figure_of_the_readme_is_the_lessons():
    page, figure = form.README_FIGURE
    assert figure.read_bytes() == form.museum(cells_of(page))
    assert f"({figure.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(arguments):
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


PLANS = plans()


def test_plans_fit_the_lessons():
    """Each plan fills its time, and a row's cells stand in the sections that it names."""
    assert {title.split(":")[0]: sum(row.minutes for row in PLANS[title]) for title in PLANS} == {
        "30 minutes": 30,
        "45 minutes": 45,
        "60 minutes": 60,
        "90 minutes": 90,
        "Half a day": 210,
    }
    for rows in PLANS.values():
        assert [row.slide for row in rows] == list(range(1, len(rows) + 1))
    for row in (row for rows in PLANS.values() for row in rows):
        assert bool(row.cells) == bool(row.run)
        if row.cells:
            shown = row.run[-1], int(re.findall(r"\d+", row.cells.split(", ")[-1])[0])
            assert set(shown) <= cells_in(row.lesson, row.where.split(", ")[1]), row
        assert set(row.shown) <= set(row.run), row
        assert "?" not in row.ask or re.search(r"\*.+\*", row.ask), row  # an answer


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_plans_define_what_they_use(plan):
    """run_plans.py runs the rows of JupyterLab; here each name must have been defined before."""
    shown = [row for row in plan if row.in_lab and row.cells]
    for path in dict.fromkeys(row.lesson for row in shown):
        numbers = [n for row in shown if row.lesson == path for n in row.run]
        source = "\n".join(run_plans.numbered(path)[n].source for n in numbers)
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_course_of_ten_hours_covers_the_lessons():
    """Its hours go through all sections of the main road, and each exercise is set once."""
    text = (form.NOTEBOOKS / "teaching.md").read_text("utf-8")
    course = text.split("## Ten class hours")[1].split("\n## ")[0]
    hours = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|", course, flags=re.M)
    assert [int(hour) for hour, *_ in hours] == list(range(1, 11))
    shown, exercises = set(), []
    for _, where, now, later in hours:
        for lesson, first, last in re.findall(r"(\d\d), sections (\d+) to (\d+)", where):
            shown |= {(lesson, number) for number in range(int(first), int(last) + 1)}
        exercises += re.findall(r"\d+\.\d", f"{now}, {later}".replace("10.1 to 10.9", ""))
    for path in (path for path in LESSONS if path != ALL_EXERCISES):
        name, source = path.name[:2], "".join(cell.source + "\n" for cell in cells_of(path))
        sections = {int(n) for n in re.findall(r"^## (\d+)\. ", source, flags=re.M)}
        named = {number for lesson, number in shown if lesson == name}
        assert named and named <= sections, path
        assert named == sections or name in ("04", "05", "07"), path
        asked = re.findall(r"^### Exercise (\d+\.\d)", source, flags=re.M)
        planned = [number for number in exercises if int(number.split(".")[0]) == int(name)]
        assert sorted(planned) == sorted(asked), (
            f"teaching.md, Ten class hours: exercises of {name}"
        )


def cells_in(path, part):
    """Return the execution counts in sections such as "section 4", "sections 5 to 6"."""
    numbers = [int(n) for n in re.findall(r"\d+", part)]
    wanted = range(numbers[0], numbers[-1] + 1) if numbers else ()
    inside, counts = False, set()
    for cell in cells_of(path):
        if cell.cell_type == "code":
            counts |= {cell.execution_count} if inside else set()
        elif heading := re.match(r"## (?:(\d+)\. )?(\w+)", cell.source):
            number, word = heading.groups()
            inside = int(number) in wanted if number else word.lower() == part
    return counts
