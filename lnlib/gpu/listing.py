"""CUDA source to be read on a page, in its colours."""

from . import passes


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
    IPython.display.Markdown
        Its data is the source in a block of code.

    Raises
    ------
    ValueError
        If start or end is not in the source.
    """
    from IPython.display import Markdown  # here: kernels also run where there is no notebook

    source = passes.read_source() if source is None else source
    first = source.rindex("\n", 0, source.index(start) + 1) + 1
    before = source.rindex("\n", 0, first - 1) + 1
    if source.startswith("template", before):
        first = before
    code = source[first : source.index(end, first) + len(end)].rstrip()
    style = "font-family:var(--jp-code-font-family,monospace)"  # exported pages do not set it
    return Markdown(f"<div style='{style}'>\n\n```c++\n{code}\n```\n\n</div>")
