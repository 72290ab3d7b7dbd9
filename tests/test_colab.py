"""The pages for Colab: a cell that fetches the course, then the page as it is."""

import runpy

import nbformat
import pytest
from execute_notebooks import NOTEBOOKS, ROOT, all_notebooks, read

COLAB = runpy.run_path(str(NOTEBOOKS / "book" / "colab.py"))
URL = "https://github.com/owner/name.git"


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    out = tmp_path_factory.mktemp("colab")
    COLAB["write"](URL, out)
    return out


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: path.stem)
def test_a_copy_is_the_page_after_one_cell(copies, path):
    copy = nbformat.read(copies / path.relative_to(ROOT), as_version=4)
    nbformat.validate(copy)
    first, *rest = copy.cells
    assert rest == read(path).cells
    clone, enter, install = first.source.splitlines()[1:]
    assert clone.endswith(f" {URL} /content/course") and install.endswith(" /content/course")
    assert path.parent == ROOT / enter.removeprefix("%cd -q /content/course/")
