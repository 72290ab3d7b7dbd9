"""Build slides: one file for a plan of notebooks/teaching.md, or for a lesson.

A plan's row k is slide k: the texts, listings, results and figures that belong to the cells which
the row names, and nothing else. Rows that play in JupyterLab, and breaks, have a slide that says
so. The file needs nothing from the web; any browser shows it. This needs the packages of the
extra [site].
"""

import argparse
import base64
import functools
import importlib.metadata
import re
from pathlib import Path

import nbformat
from execute_notebooks import NOTEBOOKS, is_caption, lessons, read, slide_types
from run_plans import plans

ASSETS = {
    "sphinx-revealjs": ("dist/reveal.css", "dist/reveal.js"),
    "sphinx-mathjax-offline": ("tex-svg-full.js",),
}
OUT = NOTEBOOKS.parent / "_build" / "slides"


@functools.cache
def assets():
    """Return the texts of reveal.js and MathJax, {file name: text}, from installed packages."""
    texts = {}
    for package, endings in ASSETS.items():
        for path in importlib.metadata.files(package):
            if path.as_posix().endswith(endings):
                # A script's text must not end the element that it stands in.
                texts[path.name] = path.read_text("utf-8").replace("</script", r"<\/script")
    return texts


def is_answer(text):
    """Does this text answer the question that stands before the last cell?"""
    return text.startswith(("> **Verdict", "**Explain"))


def as_slides(cells):
    """Make one slide of cells, in which answers wait for a click; the page divides it."""
    cells = [cell for cell in cells if not cell.source.startswith(("import ", "from "))]
    for cell, kind in zip(cells, slide_types(cells)):
        kind = "subslide" if cell.source.startswith("## ") else kind if kind == "fragment" else "-"
        cell.metadata["slideshow"] = {"slide_type": kind}
    cells[0].metadata["slideshow"] = {"slide_type": "slide"}
    return cells


def of_row(row):
    """Return the cells that a row of a plan shows: from its sections, and from its cells."""
    if row.lesson is None:
        return as_slides([nbformat.v4.new_markdown_cell(f"## {row.where.capitalize()}")])
    if row.in_lab:  # what follows a semicolon is for the teacher
        task = row.do.split(";")[0].strip()
        source = f"## In JupyterLab: lesson {row.where}\n\n{task}: {row.minutes} minutes"
        return as_slides([nbformat.v4.new_markdown_cell(source), *exercises(row)])
    cells = read(row.lesson).cells
    chosen, wanted, waiting, inside = [], set(row.run), [], False
    for cell in cells:
        if cell.cell_type == "code":
            inside = cell.execution_count in wanted
            chosen += [*waiting, cell] if inside else []
            waiting = []
        elif inside and not waiting and (is_caption(cell.source) or is_answer(cell.source)):
            chosen.append(cell)
        elif cell.source.startswith("## "):
            # What closes a section belongs to its last cell.
            chosen += waiting if inside else []
            waiting, inside = [cell], False
        else:
            waiting.append(cell)
    if not chosen[0].source.startswith("## "):
        before = cells[: cells.index(chosen[0])]
        chosen.insert(0, next(c for c in reversed(before) if c.source.startswith("## ")))
    for cell in chosen:
        if cell.source.startswith("## "):
            cell.source = cell.source.replace("## ", f"## Lesson {row.where[:2]}, ", 1)
    return as_slides(chosen)


def exercises(row):
    """Return the texts of the exercises that a row names, without hints, and what to fill in."""
    cells = read(row.lesson).cells
    found = []
    for text, code in zip(cells, cells[1:]):
        if text.source.startswith("### Exercise") and code.execution_count in row.run:
            text.source = text.source.partition("<details>")[0]
            found += [text, code]
    return found


def last_question(title):
    """Return what stands quoted under a plan's table, the question that ends the class, or ""."""
    text = (NOTEBOOKS / "teaching.md").read_text("utf-8")
    part = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(line[2:] for line in part.splitlines() if line.startswith(">"))


def of_plan(title, rows):
    """Return a plan as a notebook."""
    cells = [cell for row in rows if row.where != "slack" for cell in of_row(row)]
    if question := last_question(title):
        cells += as_slides([nbformat.v4.new_markdown_cell(question)])
    return nbformat.v4.new_notebook(cells=cells, metadata={"title": title})


def of_lesson(path):
    """Return a lesson as a notebook, a slide for each section; most exercises are left out."""
    notebook, sections = read(path), [[]]
    for cell in notebook.cells:
        if cell.metadata.slideshow.slide_type == "slide":
            sections.append([])
        if cell.metadata.slideshow.slide_type != "skip":
            sections[-1].append(cell)
    notebook.cells = [cell for section in sections if section for cell in as_slides(section)]
    return notebook


def embedded(link):
    """Return the data URI of a picture beside the notebooks."""
    content = base64.b64encode((NOTEBOOKS / link[0]).read_bytes()).decode()
    return f"data:image/png;base64,{content}"


def write(notebook, path):
    """Write a notebook's slides to a file."""
    from nbconvert import SlidesExporter

    exporter = SlidesExporter(extra_template_basedirs=[str(NOTEBOOKS)], template_name="slides")
    body, _ = exporter.from_notebook_node(notebook, {"assets": assets()})
    body = re.sub(r'(?<=src=")data/[^"]+\.png', embedded, body)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body, "utf-8")
    print(path)


def main():
    every, pages = plans(), {path.name[:2]: path for path in lessons()}
    names = {title.split(":")[0].lower().replace(" ", "-"): title for title in every}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*names, *pages], metavar="name",
                        help=f"a plan ({', '.join(names)}) or a lesson (00, 01, …)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT, help="folder (default: _build/slides)")
    options = parser.parse_args()
    for name in options.names:
        if name in pages:
            write(of_lesson(pages[name]), options.out / f"{pages[name].stem}.html")
        else:
            write(of_plan(names[name], every[names[name]]), options.out / f"{name}.html")


if __name__ == "__main__":
    main()
