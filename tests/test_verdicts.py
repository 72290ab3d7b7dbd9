"""Verdicts in a notebook: in colour, and word for word what `print` says."""

import re
from xml.etree import ElementTree

import pytest
from answers import named

from lnlib.exercises import check

OVER_ROWS = named("row_mean", "return x.mean(axis=0)")
ANSWERS = [
    OVER_ROWS, named("row_mean", "..."), named("row_mean", "return x.mean(axis=-1, keepdims=True)"),
    named("row_mean", "raise ValueError('a < b & <script>&amp;\\'\"')"), lambda x: x,
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_html_says_what_the_text_says(answer):
    verdict = check(answer)
    tree = ElementTree.fromstring(verdict._repr_html_())  # fails if < or & is not escaped
    assert {element.tag for element in tree.iter()} <= {"div", "b", "pre", "code"}
    spoken = " ".join("".join(tree.itertext()).split())
    assert spoken[0] in "✓✗…"
    plain = " ".join(repr(verdict).replace("inputs; ", "inputs ").split())
    assert spoken[2:].replace("again:from", "again: from") == plain


def test_the_call_to_run_again_is_code():
    tree = ElementTree.fromstring(check(OVER_ROWS)._repr_html_())
    names = {}
    source = tree.find(".//pre/code").text.splitlines()
    exec(source[0], names)
    assert eval(source[1], names | {"row_mean": OVER_ROWS}).shape == (3, 5)


def luminance(colour):
    """Return the relative luminance of "#rrggbb", as WCAG 2 defines it."""
    values = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(share * v for share, v in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("status", ["right", "wrong", "not done yet", "not checked"])
@pytest.mark.parametrize("page", ["#ffffff", "#111111"])  # JupyterLab's light and dark theme
def test_edges_stand_out(status, page):
    html = check(OVER_ROWS)._replace(status=status)._repr_html_()
    edge, background = luminance(re.search("#[0-9a-f]{6}", html)[0]), luminance(page)
    assert (max(edge, background) + 0.05) / (min(edge, background) + 0.05) >= 3
    assert f": {status}</b>" in html  # never by colour alone
