"""The page with the whole backward pass: what is drawn on it is what the module computes."""

import pytest
from draw_one_page import DATA, says, stamp
from PIL import Image

PAGES = [f"one_page_{half}.png" for half in ("1", "1_phone", "2", "2_phone")] + ["graph.png"]


@pytest.fixture(scope="module")
def right():
    return stamp(says())  # says() asserts the numbers, the code and the digits


@pytest.mark.parametrize("name", PAGES)
def test_pictures_say_what_is_true_now(name, right):
    with Image.open(DATA / name) as picture:
        assert picture.text["Description"] == right, "run python tests/tools/draw_one_page.py"


def test_paper_says_what_is_true_now(right):
    assert right.encode() in (DATA / "one_page.pdf").read_bytes()


def test_numbers_are_those_of_lesson_01():
    """Its assertions hold the same row, written with a pencil."""
    numbers = says()["numbers"]
    assert numbers["x"] == [["1", "2", "3", "6"], ["0", "¼", "−½", "¼"]]
    assert numbers["x_hat"] == [["−1", "−½", "0", "1½"], ["1", "2", "1", "4"]]
    assert numbers["rstd"] == [["½"], ["8"]] and numbers["var"] == [["3½"], ["−½"]]
    assert numbers["mean"] == [["3"], ["−4"]] and numbers["var-rstd"] == ["−1/16"]
    labels = [numbers[edge] for edge in ("x-mean", "x-xc", "mean-xc", "xc-x_hat")]
    assert labels == [["¼"], ["1"], ["−1"], ["½"]]
