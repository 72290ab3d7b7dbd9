"""Execute notebooks in place and normalise them: python tests/execute_notebooks.py [path ...].

Without paths: all notebooks of the course. What is written depends only on sources and results: no
timings, no version of Python, execution counts 1..N.
"""

import base64
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
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        if "outputs" in cell:  # a widget lives in its kernel only
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
            for output in cell.outputs:
                output.get("metadata", {}).clear()
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    if path == README_FIGURE[0]:
        README_FIGURE[1].write_bytes(last_figure(notebook))
    return path


def last_figure(notebook):
    """Return the last PNG among a notebook's outputs."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [o.data["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    return base64.b64decode(pictures[-1])


def main(arguments):
    paths = [Path(a).resolve() for a in arguments] or all_notebooks()
    with ProcessPoolExecutor() as pool:
        for path in pool.map(execute, paths):
            print("executed", path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
