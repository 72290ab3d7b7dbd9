"""Write the pages for Google Colab: python notebooks/book/colab.py OWNER/NAME FOLDER.

Colab opens one notebook and nothing beside it. So each copy begins with a cell that fetches the
course from its repository on GitHub and installs it, and the links and pictures of its texts have
whole addresses. The workflow pushes the folder as the branch `colab`, where the book's button
finds the copies. The pages themselves stay as they are.
"""

import argparse
import posixpath
import re
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[1]
FIRST_CELL = """\
# Fetch the course and install it: Colab starts with this page alone.
!git clone --quiet --depth=1 https://github.com/{repository}.git /content/course
%cd -q /content/course/{folder}
%pip install --quiet --no-deps /content/course"""  # Colab has NumPy, Matplotlib and CuPy
LINK = r"""(?<=\]\()(?![a-z]+:|#)[^)\s]+|(?<=src=")(?![a-z]+:)[^"]+"""  # to what lies beside a page
PLACES = {  # where Colab finds it, by the ending of its name
    ".ipynb": "https://colab.research.google.com/github/{}/blob/colab/{}",
    ".png": "https://raw.githubusercontent.com/{}/main/{}",
}


def prepared(path, repository):
    """Return a notebook that begins with the cell that fetches the course from a repository."""
    notebook = nbformat.read(path, as_version=4)
    folder = path.parent.relative_to(NOTEBOOKS.parent).as_posix()

    def whole(link):
        target = posixpath.normpath(posixpath.join(folder, link[0]))
        ending = posixpath.splitext(target.partition("#")[0])[1]
        return PLACES.get(ending, "https://github.com/{}/blob/main/{}").format(repository, target)

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(LINK, whole, cell.source)
    source = FIRST_CELL.format(repository=repository, folder=folder)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(source, id="colab"))
    return notebook


def write(repository, out):
    """Write a copy of each page and of its solutions into a folder, where the original lies."""
    for path in [*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("solutions/*.ipynb")]:
        copy = out / path.relative_to(NOTEBOOKS.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(prepared(path, repository), copy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", help="the repository's owner and name on GitHub")
    parser.add_argument("folder", type=Path, help="where the copies go")
    given = parser.parse_args()
    write(given.repository, given.folder)
