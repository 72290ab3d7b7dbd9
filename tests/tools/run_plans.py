"""Run the plans of notebooks/teaching.md literally: their rows that play in JupyterLab.

Each plan has fresh kernels, one for each lesson. A row's cells are run in the order in which they
stand there; "above, then 11" is JupyterLab's Run All Above Selected Cell, at cell 11, and then that
cell. The test suite only looks whether each name in a cell has been defined.
"""

import argparse
import functools
import re
from typing import NamedTuple

import nbformat
from execute_notebooks import NOTEBOOKS, cells_of, lessons
from nbclient import NotebookClient

TABLE_ROW = r"^\| (\d+) ?(▣?) \| (\d+) \|" + r"([^|]*)\|" * 4


class Row(NamedTuple):
    """A row of a plan.

    slide is its number, screen where it plays, cells are those that it shows or runs, and run the
    numbers of these cells.
    """

    slide: int
    screen: str
    minutes: int
    where: str
    cells: str
    do: str = ""
    ask: str = ""

    @property
    def in_lab(self):
        return self.screen == "▣"

    @property
    def lesson(self):
        return next((p for p in lessons() if p.name[:2] == self.where[:2]), None)

    @property
    def run(self):
        numbers = []
        for first, last in re.findall(r"(\d+)(?:–(\d+))?", self.cells):
            numbers += range(int(first), int(last or first) + 1)
        above = range(1, numbers[0]) if self.cells.startswith("above, then ") else ()
        return [*above, *numbers]

    @property
    def shown(self):
        """The numbers of the cells that show an answer."""
        groups = re.findall(r"\((\d+(?:, \d+)*)\)", self.ask)
        return [int(number) for group in groups for number in group.split(", ")]


def plans():
    """Return the plans, {title: rows}."""
    text = (NOTEBOOKS / "teaching.md").read_text("utf-8")
    found = {}
    for part in re.split(r"^## ", text, flags=re.M):
        if rows := re.findall(TABLE_ROW, part, flags=re.M):
            found[part.splitlines()[0]] = [
                Row(int(slide), screen, int(minutes), *map(str.strip, rest))
                for slide, screen, minutes, *rest in rows
            ]
    return found


@functools.cache
def numbered(path):
    """Return the code cells of a notebook by their numbers."""
    return {cell.execution_count: cell for cell in cells_of(path) if cell.cell_type == "code"}


def run(rows):
    """Run a plan's rows; raise if a cell fails."""
    for path in dict.fromkeys(row.lesson for row in rows if row.in_lab):
        numbers = [
            number for row in rows if row.in_lab and row.lesson == path for number in row.run
        ]
        cells = [nbformat.v4.new_code_cell(numbered(path)[number].source) for number in numbers]
        notebook = nbformat.v4.new_notebook(cells=cells)
        resources = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
        print(f"  {path.name}: {len(numbers)} cells", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="plans, from 1 (default: all)")
    chosen = parser.parse_args().numbers
    for k, (name, plan) in enumerate(plans().items(), start=1):
        if not chosen or k in chosen:
            print(f"{k}. {name}", flush=True)
            run(plan)


if __name__ == "__main__":
    main()
