"""Slides and book as Chromium shows them. The tools say what they look at; here they run."""

import importlib.util
import shutil
import subprocess
import sys

import build_slides
import check_book
import check_slides
import chromium
import pytest

NEEDED = "sphinx_revealjs", "sphinx-mathjax-offline", "myst_nb", "sphinx_external_toc"
pytestmark = pytest.mark.skipif(
    not chromium.browser() or not all(map(importlib.util.find_spec, NEEDED)),
    reason="needs a browser, and the packages of the extra [site]",
)
CONF = build_slides.NOTEBOOKS / "book"
TITLE = "30 minutes: three terms, not one"


def test_slides_of_a_plan_fit(tmp_path):
    title, rows = next(iter(build_slides.plans().items()))
    deck = tmp_path / "deck.html"
    build_slides.write(build_slides.of_plan(title, rows), deck)
    slides = check_slides.walk(deck)
    shown = [row.slide for row in rows if row.where != "slack"]
    assert list(dict.fromkeys(int(slide["slide"].split(".")[0]) for slide in slides)) == shown
    assert [slide for slide in slides if check_slides.overflows(slide)] == []


def test_a_row_ends_with_the_answer():
    (row,) = (each for each in build_slides.plans()[TITLE] if each.where == "01, sections 7 to 8")
    assert build_slides.of_row(row)[-1].source.startswith("> **Verdict")


def test_a_slide_that_does_not_fit_is_found(tmp_path):
    deck = tmp_path / "deck.html"
    rows = next(iter(build_slides.plans().values()))[:1]
    build_slides.write(build_slides.of_plan("too small", rows), deck)
    large = "<style>.reveal img { height: 900px; max-height: none !important }</style></head>"
    deck.write_text(deck.read_text("utf-8").replace("</head>", large, 1), "utf-8")
    assert any(check_slides.overflows(slide) for slide in check_slides.walk(deck))


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Show in the book the lesson with most formulas, and a page whose formulas are too wide."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("book")
    shutil.copy(build_slides.NOTEBOOKS / "01_derivation.ipynb", source)
    shutil.copytree(build_slides.NOTEBOOKS / "data", source / "data")
    wide = "+".join(["\\mathrm{variance}"] * 9)
    (source / "wide.md").write_text(
        f"# Wide\n\n$$\n{wide} \\tag{{1}}\n$$\n\nA text with ${wide}$.\n", "utf-8"
    )
    (source / "toc.yml").write_text("root: 01_derivation\nentries:\n- file: wide\n", "utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-c", CONF, source, out]
    subprocess.run([*command, "-D", f"external_toc_path={source / 'toc.yml'}"], check=True)
    return out


def test_formulas_can_be_read_on_a_phone(book):
    found = check_book.formulas([book / "01_derivation.html", book / "wide.html"])
    assert len(found["01_derivation.html"]) > 10 and len(found["wide.html"]) == 2
    assert [
        formula for page in found.values() for formula in page if check_book.lost(formula)
    ] == []


def test_a_formula_that_begins_left_of_the_screen_is_found(book):
    page = book / "wide.html"
    centred = ".bd-article div.math { display: flex !important; justify-content: center }"
    text = page.read_text("utf-8").replace("</head>", f"<style>{centred}</style></head>", 1)
    (other := book / "centred.html").write_text(text, "utf-8")
    (found,) = check_book.formulas([other]).values()
    assert any(check_book.lost(formula) for formula in found)


def test_a_formula_in_a_text_that_is_cut_off_is_found(book):
    text = (book / "wide.html").read_text("utf-8").replace("phone.js", "absent.js")
    (other := book / "cut.html").write_text(text, "utf-8")
    (found,) = check_book.formulas([other]).values()
    assert any(check_book.lost(formula) for formula in found)


def test_a_plan_ends_with_its_last_question():
    title = "60 minutes: and is it right?"
    question = build_slides.last_question(title)
    listing = question.partition("```python\n")[2].partition("```")[0]
    assert listing and listing in (build_slides.NOTEBOOKS.parent / "README.md").read_text("utf-8")
    deck = build_slides.of_plan(title, build_slides.plans()[title])
    assert deck.cells[-1].source == question


def test_a_row_in_jupyterlab_shows_its_exercise_without_the_hint():
    (row,) = (each for each in build_slides.plans()[TITLE] if each.in_lab)
    _, text, code = build_slides.of_row(row)
    assert text.source.startswith("### Exercise 1.1") and "Hint" not in text.source
    assert code.source.startswith("def centre_backward")
