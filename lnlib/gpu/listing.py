"""The text of layernorm.cu, and functions of it to be read on a page."""

import re
from pathlib import Path


def read_source():
    """Return the text of layernorm.cu."""
    return (Path(__file__).parent / "layernorm.cu").read_text(encoding="utf-8")


def function_source(name):
    """Return the source of a function of layernorm.cu.

    Parameters
    ----------
    name : str
        Of a kernel, or of a function that kernels call.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If layernorm.cu has no function of that name.
    """
    function = rf"(?ms)^(template[^\n]*\n)?__\w+__ [^;{{}}]*?\b{re.escape(name)}\(.*?^}}$"
    found = re.search(function, read_source())
    if not found:
        raise ValueError(f"name must be that of a function in layernorm.cu, got {name!r}")
    return found[0]


def listing(name, first=None, last="}"):
    """Return what `function_source` does, to be looked at: an IPython.display.Markdown.

    Given first, a text in its body: only from there on, up to where the text last stands last.
    """
    from IPython.display import Markdown  # here: kernels also run where there is no notebook

    source = function_source(name)
    if first is not None:
        body = source[source.index(first) : source.rindex(last)]
        source = re.sub("(?m)^    ", "", body).rstrip()
    style = "font-family:var(--jp-code-font-family,monospace)"  # exported pages do not set it
    return Markdown(f"<div style='{style}'>\n\n```c++\n{source}\n```\n\n</div>")
