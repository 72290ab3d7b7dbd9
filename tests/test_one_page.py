"""The page with the whole backward pass: what is drawn on it is what the module computes."""

from draw_one_page import is_up_to_date, says
from execute_notebooks import REFRESH


def test_the_page_says_what_is_true_now():
    """And what it says, its numbers, code and digits, is asserted on the way."""
    assert is_up_to_date(), f"{REFRESH}: notebooks/data/one_page* are out of date"


def test_numbers_are_those_of_lesson_01():
    """Its assertions hold the same row, written with a pencil."""
    numbers = says()["numbers"]
    assert numbers["x"] == [["1", "2", "3", "6"], ["0", "¼", "−½", "¼"]]
    assert numbers["x_hat"] == [["−1", "−½", "0", "1½"], ["1", "2", "1", "4"]]
    assert numbers["rstd"] == [["½"], ["8"]] and numbers["var"] == [["3½"], ["−½"]]
    assert numbers["mean"] == [["3"], ["−4"]]
