"""CUDA source to be read on a page, in colour."""

import html
import re

from . import passes

TOKENS = {  # colours that can be read on white and on black
    "#808080": r"//[^\n]*",
    "#c2571a": r"(?<!&)#\w+(?: unroll)?",
    "#9a5fd0": r"\b__\w+|\b(?:atomicAdd|threadIdx|blockIdx|blockDim|gridDim)\b",
    "#2f81c7": r"\b(?:bool|break|class|const|double|else|extern|false|float[24]?|for|if|int|long"
    r"|return|struct|template|true|unsigned|using|void|while)\b",
}


class Listing:
    """Source that a notebook shows in colour, and anything else as it is."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    def _repr_html_(self):
        def coloured(token):
            colour = list(TOKENS)[token.lastindex - 1]
            return f'<span style="color:{colour}">{token[0]}</span>'

        pattern = "|".join(f"({token})" for token in TOKENS.values())
        text = re.sub(pattern, coloured, html.escape(self.text))
        style = "font-family:var(--jp-code-font-family,monospace);line-height:1.3"
        return f"<pre style='{style}'>{text}</pre>"


def listing(start, end="\n}\n", source=None):
    """Return a piece of the kernels' source, to be looked at.

    Parameters
    ----------
    start, end : str
        From the line that contains start (and the template above it) to the next end.
    source : str, optional
        CUDA C++; by default layernorm.cu.

    Returns
    -------
    Listing

    Raises
    ------
    ValueError
        If start or end is not in the source.
    """
    source = passes.read_source() if source is None else source
    first = source.rindex("\n", 0, source.index(start) + 1) + 1
    before = source.rindex("\n", 0, first - 1) + 1
    if source.startswith("template", before):
        first = before
    return Listing(source[first : source.index(end, first) + len(end)].rstrip())
