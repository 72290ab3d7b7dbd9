"""The page that a link lands on says what the README, the poster and the book say."""

import re

import nbformat
from draw_one_page import CODE
from execute_notebooks import INDEX, NOTEBOOKS, lessons

CELLS = nbformat.read(INDEX, as_version=4).cells
TEXT = "\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")


def test_six_lines_are_the_posters():
    first = next(cell.source for cell in CELLS if cell.cell_type == "code")
    lines = [re.sub(r"  # .*", "", line).strip() for line in first.splitlines()]
    assert lines[2:8] == CODE.splitlines()
    assert "import" not in first  # it can be copied as it is


def test_formula_is_the_readmes():
    readme = (NOTEBOOKS.parent / "README.md").read_text("utf-8")
    formula = re.search(r"^dx = .*?\\bigr\)", readme, flags=re.M)[0]
    assert formula in TEXT


def test_it_has_a_door_to_each_lesson():
    doors = re.findall(r"^\| \[(\d\d)\]\((.*?)\) \|", TEXT, flags=re.M)
    assert {path.name for path in lessons()} <= {name for _, name in doors}
    assert all(name.startswith(number) for number, name in doors)


def test_it_is_the_books_first_page():
    assert "root: index\n" in (NOTEBOOKS / "book/toc.yml").read_text("utf-8")


def test_code_can_be_read_on_a_phone():
    lines = [line for c in CELLS if c.cell_type == "code" for line in c.source.splitlines()]
    assert max(map(len, lines)) <= 60
