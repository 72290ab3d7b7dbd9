"""Execute notebooks in place and write them in the one form in which they are stored.

What is written depends only on sources and results: no timings, execution counts 1..N. Cells whose
outputs vary, tagged nbval-ignore-output, keep those of the last commit while the sources of all of
them stay, unless new ones are asked for: so they come from one run. A cell's metadata "alt" is the
alt text of the figure that it draws; it is kept, and written where nbconvert and the book look for
it. Texts are split where a slide ends. Links to the pages before and after stand in two cells that
are written here.
"""

import base64
import functools
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
INDEX = NOTEBOOKS / "index.ipynb"
README_FIGURE = NOTEBOOKS / "03_gradient_check.ipynb", NOTEBOOKS / "data" / "museum.png"
WIDGET = "application/vnd.jupyter.widget-view+json"
# What JupyterLab writes when it saves, so that opening a lesson does not change it. The version is
# that of the running kernel; here, whatever executes the notebooks, that of Ubuntu 24.04.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": "3.12.3",
    },
}
REFRESH = "run python tests/tools/refresh.py"  # what a test says about what is out of date
QUIET = ["--IPKernelApp.log_level=ERROR"]  # a kernel warns of eavesdroppers on this machine
NAVIGATION = "navigation-top", "navigation-end"  # ids of cells
BRANCHES = {"11": "02"}  # side roads that are reached from another lesson than the one before


def parse(content):
    """Return the notebook in the content of a file."""
    return nbformat.reads(content.decode(), as_version=4)


def read(path):
    """Return a notebook as it is now."""
    return parse(path.read_bytes())


@functools.cache
def cells_of(path):
    """Return the cells of a notebook that nobody changes."""
    return read(path).cells


def committed(path):
    """Return the content of a file in the last commit, or None if it is not there."""
    command = ["git", "show", f"HEAD:{path.relative_to(ROOT).as_posix()}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    return None if done.returncode else done.stdout


def all_notebooks():
    """Return the paths of all notebooks, without JupyterLab's own copies."""
    paths = sorted(NOTEBOOKS.rglob("*.ipynb"))
    return [path for path in paths if ".ipynb_checkpoints" not in path.parts]


def lessons():
    """Return the paths of the lessons, in order: the pages whose names begin with two digits."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def solutions(lesson):
    """Return the path of a lesson's solutions, which exist if it has exercises."""
    return lesson.parent / "solutions" / f"{lesson.name[:2]}_solutions.ipynb"


def title(path):
    """Return a notebook's title, such as "01 · Derive the backward pass"."""
    return cells_of(path)[0].source.splitlines()[0].removeprefix("# ")


def neighbours(path):
    """Return the pages before and after a page, as two lists of at most one.

    Before a branch stands the lesson that it is reached from; after it, the lesson after that one.
    """
    number = path.name[:2]
    pages = [page for page in (INDEX, *lessons()) if page.name[:2] not in BRANCHES]
    k = [page.name[:2] for page in pages].index(BRANCHES.get(number, number))
    before = pages[k : k + 1] if number in BRANCHES else pages[max(k - 1, 0) : k]
    return before, pages[k + 1 : k + 2]


def navigation(path):
    """Return the links, in Markdown, to the pages before and after a notebook."""
    page = next(page for page in (INDEX, *lessons()) if page.name[:2] == path.name[:2])
    before, after = neighbours(page)
    after = [(f"{title(each)} →", each) for each in after]
    if path == page:
        links = [(f"← {title(each)}", each) for each in before]
        if solutions(path).exists():
            links.append(("Solutions", solutions(path)))
        links += after
    else:
        links = [(f"← back to {title(page)}", page), *after]
    targets = [Path(os.path.relpath(page, path.parent)).as_posix() for _, page in links]
    return " | ".join(f"[{text}]({target})" for (text, _), target in zip(links, targets))


def split(cell):
    """Split a text where a slide ends: before a heading, and after a figure's caption."""
    if cell.cell_type != "markdown":
        return [cell]
    texts = re.split(r"\n+(?=## )", cell.source)
    caption, _, rest = texts[0].partition("\n\n")
    if rest and is_caption(caption):
        texts[:1] = [caption, rest]
    ids = [cell.id, *(f"{cell.id}-{k}" for k in range(2, len(texts) + 1))]
    return [nbformat.v4.new_markdown_cell(text, id=name) for text, name in zip(texts, ids)]


def is_caption(text):
    """Is this a text in italics?"""
    return bool(re.match(r"\*\w", text))


def slide_types(cells):
    """Return what each cell is in a slide show: one idea a slide, pictures on their own.

    What answers a question, in a text or in a figure's title, waits for a click.
    """
    types, before = {cell.id: "skip" for cell in cells}, None
    for cell in cells:
        if cell.id in NAVIGATION:
            continue
        heading = re.match("##? (.*)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            skipped = heading[1] in ("Exercises", "In practice", "Further reading")
            types[cell.id] = "skip" if skipped else "slide"
        elif types[before.id] == "skip":
            pass
        elif pictures(cell) or (cell.cell_type == "markdown" and not is_caption(cell.source)):
            types[cell.id] = "subslide"
        else:
            types[cell.id] = "fragment" if asks(before) else "-"
        before = cell
    return [types[cell.id] for cell in cells]


def asks(cell):
    """Is this a text that asks the class, or a figure, whose title does?"""
    if cell.cell_type == "code":
        return bool(pictures(cell))
    predict = re.search(r"\*\*(Predict\.|Is it true\?)\*\*", cell.source)
    return bool(predict or re.search(r"\?(\s\([^()]*\))?\s*$", cell.source))


def pictures(cell):
    """Return the PNGs that a cell has put out, in base64."""
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [each["image/png"] for each in data if "image/png" in each]


def execute(path, measure=False):
    """Execute one notebook where it lies; if a cell fails, leave it alone and return the error.

    Unless asked to measure, cells whose outputs vary keep those of the last commit.
    """
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=QUIET,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        traceback = re.sub(r"\x1b\[[\d;]*m", "", error.traceback)  # without colours
        lines = [line.strip() for line in traceback.splitlines() if re.match("-+>", line)]
        return "\n  ".join([f"{path.name}: {error.ename}: {error.evalue}", *lines])
    if not measure and (content := committed(path)):
        keep_measured(notebook.cells, parse(content).cells)
    write(notebook, path)
    print("executed", path.name, flush=True)


def keep_measured(cells, before):
    """Give cells whose outputs vary those of before, if the sources of all of them are the same."""
    cells, before = (list(filter(varies, some)) for some in (cells, before))
    if [cell.source for cell in cells] == [cell.source for cell in before]:
        for cell, old in zip(cells, before):
            cell.outputs = old.outputs


def varies(cell):
    """Do a cell's outputs vary from run to run?"""
    return "nbval-ignore-output" in cell.metadata.get("tags", [])


def normal_form(notebook, path):
    """Return the text of a notebook in the one form in which it is stored."""
    notebook.metadata = nbformat.from_dict(METADATA | {"title": title(path)})
    cells = [cell for cell in notebook.cells if cell.id not in NAVIGATION]
    inner = [part for cell in cells for part in split(cell)]
    top, end = (nbformat.v4.new_markdown_cell(navigation(path), id=name) for name in NAVIGATION)
    below = [] if path == INDEX else [top]  # the index's first screen is the answer alone
    notebook.cells = [inner[0], *below, *inner[1:], end]
    for cell, slide_type in zip(notebook.cells, slide_types(notebook.cells)):
        kept = {key: value for key, value in cell.metadata.items() if key in ("tags", "alt")}
        cell.metadata = nbformat.from_dict(kept)
        if "fold" in cell.metadata.get("tags", []):  # in JupyterLab, and in the book
            cell.metadata["jupyter"] = {"source_hidden": True}
            cell.metadata["tags"] = list(dict.fromkeys([*cell.metadata.tags, "hide-input"]))
        cell.metadata["slideshow"] = {"slide_type": slide_type}
        if "alt" in cell.metadata:
            cell.metadata["mystnb"] = {"image": {"alt": cell.metadata.alt}}
        if "outputs" in cell:  # a widget lives in its kernel only
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
            for output in cell.outputs:
                output.get("metadata", {}).clear()
                if "alt" in cell.metadata and "image/png" in output.get("data", {}):
                    output.metadata["image/png"] = {"alt": cell.metadata.alt}
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def write(notebook, path):
    """Write a notebook in its normal form, and the museum's picture, which its lesson draws."""
    path.write_text(normal_form(notebook, path), "utf-8")
    if path == README_FIGURE[0]:
        README_FIGURE[1].write_bytes(museum(notebook.cells))


def museum(cells):
    """Return the PNG that shows which check catches which of the museum's bugs."""
    (cell,) = (cell for cell in cells if "plots.verdicts(" in cell.source)
    return base64.b64decode(pictures(cell)[0])


def execute_all(paths, measure):
    """Execute notebooks, several at a time if they do not measure; exit with what failed."""
    with ProcessPoolExecutor(1 if measure else None) as pool:
        done = pool.map(functools.partial(execute, measure=measure), paths)
        if errors := list(filter(None, done)):
            sys.exit("\n".join(errors))
