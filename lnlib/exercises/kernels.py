"""Run CUDA source that a learner's function returns, in the emulator."""

import re

import numpy as np

from ..gpu import EmulationError, emulator
from .checker import NotChecked
from .compare import BadResult

ORDERS = "forward", "reverse", 1  # a kernel must not care who comes first


class Stopped(BadResult):
    """Raised for source that does not compile, or that the emulator stops."""


def source_of(text, name):
    """Return the CUDA source that a function returned, without the line break it begins with.

    Parameters
    ----------
    text : object
        What the function returned.
    name : str
        The CUDA function that must be in it.

    Raises
    ------
    NotImplementedError
        If there is none, or the words "your turn" still are in it.
    BadResult
        If it is no text, or the CUDA function is not in it.
    NotChecked
        If the emulator cannot run here.
    """
    if text is None or text is ...:
        raise NotImplementedError
    if isinstance(text, str) and "your turn" in text:
        raise NotImplementedError("The line with the words “your turn” is still in the text.")
    if not isinstance(text, str):
        many = isinstance(text, tuple | list)
        got = f"{len(text)} values" if many else f"a {type(text).__name__}"
        raise BadResult(f"returns {got}, not one text with CUDA source")
    if not re.search(rf"\b{name}\s*\(", text):
        raise BadResult(f"returns a text without the function {name}")
    if text.count("{") != text.count("}"):
        count = f"{text.count('{')} {{ and {text.count('}')} }}"
        raise BadResult(f"returns a text with {count}: one is missing or too many")
    for qualifiers, head in re.findall(r"^(\w[\w\s<>*&]*?)(\w+)\([^;{}]*\)\s*\{", text, re.M):
        if "__device__" not in qualifiers and "__global__" not in qualifiers:
            raise BadResult(f"returns a text in which {head} has no __device__ in front")
    if not emulator.available():
        raise NotChecked(emulator.status())
    return text.lstrip("\n")


def launch(pieces, kernel, blocks, threads, inputs, outputs, numbers, counts=None):
    """Run a kernel in several orders; return its outputs.

    Parameters
    ----------
    pieces : tuple of str
        What stands before the learner's source, that source, and what stands after it.
    kernel : str
        The instance, in C++.
    blocks, threads : int
    inputs : dict of str to ndarray
    outputs : dict of str to tuple
        Shapes: float32, filled with NaN before the launch.
    numbers : dict of str to NumPy scalar
    counts : dict, optional
        Filled with the `Traffic` of each array, of one launch.

    Raises
    ------
    Stopped
        With what the emulator says: the lines that it names are those of the learner's source.
    """
    before, yours, after = pieces
    source = f'{before}\n#line 1 "your source"\n{yours}\n#line 1 "the check"\n{after}\n'
    for order in ORDERS:
        results = {name: np.full(shape, np.nan, np.float32) for name, shape in outputs.items()}
        traffic = {}
        try:
            emulator.run(
                order, source, traffic, kernel, blocks, threads, 0, inputs, results, numbers,
                seconds=30,  # enough for all that ever returns
            )  # fmt: skip
        except EmulationError as error:
            raise Stopped(_told(str(error), kernel)) from None
        if counts is not None:
            counts.update(traffic)
    return results


def _told(text, kernel):
    """Return what the emulator says, to stand after "It", without the kernel's name and folders."""
    text = re.sub(r"[^\s'\"]*/(?=\S)", "", text.strip().splitlines()[0])
    if "emulated::Reference" in text and "no member named" in text:
        return "stores single numbers of a vector in memory: store the whole vector, s[i] = row[v]"
    text = text.replace(f"{kernel}: ", "fails in the emulator: ", 1)
    return text.removeprefix(f"{kernel} ")
