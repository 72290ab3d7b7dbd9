"""The pages for Colab: a cell that fetches the course, then the page with whole addresses."""

import os
import re
import runpy
from pathlib import Path

import nbformat
import pytest
from execute_notebooks import NOTEBOOKS, ROOT, all_notebooks, read

COLAB = runpy.run_path(str(NOTEBOOKS / "book" / "colab.py"))
WHOLE = [place.format("owner/name", "") for place in COLAB["PLACES"].values()]
WHOLE.append("https://github.com/owner/name/blob/main/")


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    out = tmp_path_factory.mktemp("colab")
    COLAB["write"]("owner/name", out)
    return out


def with_links_as_stored(source, path):
    """Return a text whose whole addresses lead again to files beside a page."""

    def beside(link):
        assert (ROOT / link[1].partition("#")[0]).exists(), link[0]
        return Path(os.path.relpath(ROOT / link[1], path.parent)).as_posix()

    return re.sub("(?:" + "|".join(map(re.escape, WHOLE)) + r""")([^)"\s]+)""", beside, source)


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: path.stem)
def test_a_copy_is_the_page_after_one_cell(copies, path):
    copy = nbformat.read(copies / path.relative_to(ROOT), as_version=4)
    nbformat.validate(copy)
    first, *rest = copy.cells
    assert not any(re.search(r"\]\((data/|[^)]*\.\./|\d\d_)|src=\"data", c.source) for c in rest)
    for cell in rest:
        if cell.cell_type == "markdown":
            cell.source = with_links_as_stored(cell.source, path)
    assert rest == read(path).cells
    clone, enter, install = first.source.splitlines()[1:]
    assert clone.endswith(" https://github.com/owner/name.git /content/course")
    assert install.endswith(" /content/course")
    assert path.parent == ROOT / enter.removeprefix("%cd -q /content/course/")
