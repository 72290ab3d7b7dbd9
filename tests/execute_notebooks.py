"""Execute notebooks in place and normalise them: python tests/execute_notebooks.py [path ...].

Without paths: all notebooks of the course. What is written depends only on sources and results: no
timings, no version of Python, execution counts 1..N. A cell's metadata "alt" is the alt text of the
figure that it draws; it is kept, and written beside the figure too.
"""

import base64
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
README_FIGURE = NOTEBOOKS / "03_gradient_check.ipynb", NOTEBOOKS / "data" / "museum.png"
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def all_notebooks():
    """Return the paths of all notebooks, without JupyterLab's own copies."""
    paths = sorted(NOTEBOOKS.rglob("*.ipynb"))
    return [path for path in paths if ".ipynb_checkpoints" not in path.parts]


def lessons():
    """Return the paths of the lessons, in order, without their solutions."""
    return [path for path in all_notebooks() if path.parent == NOTEBOOKS]


def slide_types(cells):
    """Return what each cell is in a slide show: one idea a slide, pictures on their own."""
    types = []
    for cell in cells:
        heading = re.match("##? (.*)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            skipped = heading[1] in ("Exercises", "In practice", "Further reading")
            types.append("skip" if skipped else "slide")
        elif types[-1] == "skip":
            types.append("skip")
        elif cell.cell_type == "markdown":
            types.append("-" if re.match(r"\*\w", cell.source) else "subslide")  # captions stay
        elif pictures(cell):
            types.append("subslide")
        else:  # an answer waits for a click
            asks = re.search(r"\*\*(Predict\.|Is it true\?)\*\*", cells[len(types) - 1].source)
            types.append("fragment" if asks else "-")
    return types


def pictures(cell):
    """Return the PNGs that a cell has put out, in base64."""
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [each["image/png"] for each in data if "image/png" in each]


def execute(path):
    """Execute one notebook where it lies; raise, and leave the file alone, if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell, slide_type in zip(notebook.cells, slide_types(notebook.cells)):
        kept = {key: value for key, value in cell.metadata.items() if key in ("tags", "alt")}
        cell.metadata = nbformat.from_dict(kept)
        cell.metadata["slideshow"] = {"slide_type": slide_type}
        if "outputs" in cell:  # a widget lives in its kernel only
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
            for output in cell.outputs:
                output.get("metadata", {}).clear()
                if "alt" in cell.metadata and "image/png" in output.get("data", {}):
                    output.metadata["image/png"] = {"alt": cell.metadata.alt}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    if path == README_FIGURE[0]:
        README_FIGURE[1].write_bytes(last_figure(notebook))
    return path


def last_figure(notebook):
    """Return the last PNG among a notebook's outputs."""
    return base64.b64decode([png for cell in notebook.cells for png in pictures(cell)][-1])


def main(arguments):
    paths = [Path(a).resolve() for a in arguments] or all_notebooks()
    with ProcessPoolExecutor() as pool:
        for path in pool.map(execute, paths):
            print("executed", path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
