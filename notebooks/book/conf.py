"""The course as a book: sphinx-build -c notebooks/book notebooks _build/html."""

import ast
import json
import os
from pathlib import Path

project = "LayerNorm from scratch"
html_title = project
author = copyright = "the authors of the course"
extensions = ["myst_nb", "sphinx_external_toc", "sphinx-mathjax-offline"]  # nothing from the web
external_toc_path = str(Path(__file__).with_name("toc.yml"))
exclude_patterns = ["book", "lite", "slides", "**/.ipynb_checkpoints", "**/node_modules"]

nb_execution_mode = "off"  # the notebooks are stored with their outputs, and tested
nb_render_markdown_format = "myst"  # with tables, which CommonMark lacks
myst_enable_extensions = ["dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 3

html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_css_files = ["folded.css", "phone.css"]
html_js_files = ["phone.js"]
html_theme_options = {
    "show_toc_level": 2,
    "navbar_persistent": [],
    "home_page_in_toc": True,
}  # one search box, not two
if repository := os.environ.get("GITHUB_REPOSITORY"):  # where GitHub's workflow builds the book
    published = "https://{}.github.io/{}".format(*repository.split("/"))
    html_theme_options |= {
        "extra_footer": f'<a href="{published}/index.pdf">The first page as PDF</a>',
        "repository_url": f"https://github.com/{repository}",
        "repository_branch": "main",
        "path_to_docs": "notebooks",
        "use_repository_button": True,
        "launch_buttons": {
            "notebook_interface": "jupyterlab",
            "binderhub_url": "https://mybinder.org",
            "colab_url": "https://colab.research.google.com",
            # Where the workflow publishes notebooks/lite: beside the book.
            "jupyterlite_url": f"{published}/lite/lab/index.html",
        },
    }


def open_prepared_pages(app, page, template, context, document):
    """Lead Colab's button to the branch `colab`, whose pages install the course (colab.py)."""
    for group in context["header_buttons"]:
        for button in group.get("buttons", []):
            if button["text"] == "Colab":
                button["url"] = button["url"].replace("/blob/main/", "/blob/colab/")


def what_is_folded(cell):
    """Return what stands beside the triangle that unfolds a cell's code."""
    tree = ast.parse("".join(cell["source"]))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
        return "Code of the figure"
    if functions:
        return f"Code: {', '.join(functions)}"
    checks = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    return "Checks" if checks and not cell["outputs"] else "Code"


def name_folded_cells(app, page, source):
    """Say for each folded cell what it holds, in place of "Show code cell source"."""
    if Path(app.env.doc2path(page)).suffix != ".ipynb":
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if "hide-input" in cell["metadata"].get("tags", []):
            prompt = what_is_folded(cell)
            shown = {"code_prompt_show": prompt, "code_prompt_hide": prompt}
            cell["metadata"].setdefault("mystnb", {}).update(shown)
    source[0] = json.dumps(notebook)


def setup(app):
    """Register what this book adds to Sphinx."""
    app.connect("source-read", name_folded_cells)
    app.connect("html-page-context", open_prepared_pages, priority=600)  # after the theme's
