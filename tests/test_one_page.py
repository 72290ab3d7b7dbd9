"""The page with the whole backward pass: what is drawn on it is what the module computes."""

from draw_one_page import is_up_to_date
from execute_notebooks import REFRESH


def test_the_page_says_what_is_true_now():
    """And what it says, its numbers, code and digits, is asserted on the way."""
    assert is_up_to_date(), f"{REFRESH}: notebooks/data/one_page* are out of date"
