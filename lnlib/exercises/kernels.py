"""Run CUDA source that a learner's function returns, in the emulator."""

import re
from typing import NamedTuple

import numpy as np

from .. import gpu
from ..checker import BadResult, NotChecked
from ..checker.describe import close

ORDERS = "forward", "reverse", 1  # a kernel must not care who comes first
TEMPLATES = {64: "<64, 4, 4>", 32: "<32, 8, 1>"}  # threads -> threads, vectors and their width
FAR = 22_000_000  # rows of at least 200 vectors: behind them, places are above 2**32

NEVER_RIGHT = {  # never right, wherever it stands -> what is wrong with it
    r"\b(?!__syncthreads\b)_*sync_?threads?\b": "the barrier is called __syncthreads",
    r"\b__syncthreads\b(?!\s*\()": "a call needs its parentheses, __syncthreads()",
    r"[\w)\]]\s*\*\*\s*[\d(]": "C++ has no **, a square is c * c",
    r"(^|[;{}])\s*#(?!\s*(define|if|el|endif|pragma))": "a comment begins with //",
    r"__shfl(_xor|_up|_down)?\s*\(|__shfl_\w*sync\s*\([^,()]*,([^,()]*\)|\s*(0x[fF]+|~0)u?\b)": (
        "a shuffle is __shfl_xor_sync(0xffffffff, value, bits), with the mask first"
    ),
    r"\b(np|math)\.|\b(elif|def|None|True|False)\b|\b(if|for|while)\b[^(]*:\s*$": (
        "this is Python; in C++, if (...) has no colon, and the root is sqrtf"
    ),
}
COMPILER_HINTS = {  # in what g++ or clang++ says -> what is added to it
    "no matching function": "THREADS may be missing, as in load<THREADS>(...)",
    r"binary .operator\^": "C++ has no powers: ^ flips bits, and a square is c * c",
    "(no match|invalid|convert|viable).*(Vector|overloaded)": "A vector is no number: .at[j] is",
}
NVRTC_HINTS = {  # in what NVRTC says -> what is said instead
    "host variable": "a variable outside all functions is the host's; put it inside a function.",
    "host function": "a function that a kernel calls needs __device__ in front.",
}
EMULATOR_HINTS = {
    r"out of range for an array of type '\w*Vector": "A thread has VECTORS vectors, row[v]",
    r"out of range for an array of type 'float": "A vector has WIDTH numbers, and WIDTH can be 1",
    r"slots\[.*no barrier": "A fast warp is in the next sum already: use the two buffers in turn",
    "partial.*(of range|any order)": "A block's row of partial begins at blockIdx.x * vectors",
    "of range|any order": "A row begins at its number times vectors, and ends: if (i < vectors)",
}


def code_of(text):
    """Return CUDA source with nothing in its comments and strings, line by line the same."""
    return re.sub(r"\"(\\.|[^\"\\\n])*\"|'(\\.|[^'\\\n])*'", " ", gpu.without_comments(text))


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
        raise BadResult(f"returns a {type(text).__name__}, not one text with CUDA source")
    text = text.lstrip("\n")
    code = code_of(text)
    if not re.search(rf"\b{name}\s*\(", code):
        raise BadResult(f"returns a text without the function {name}")
    if not re.search(r"#\s*(if|define)", code) and (fault := _fault(code)):  # those may hide it
        raise BadResult(f"returns a text {fault}")
    if not gpu.emulator_available():
        raise NotChecked(gpu.emulator_status())
    return text


def _fault(code):
    """Say what is wrong with parentheses, or with a kernel that is none, or return None."""
    for left, right in "{}", "()", "[]":
        opened, closed = code.count(left), code.count(right)
        if opened != closed:
            return f"with {opened} {left} and {closed} {right}: one is missing or too many"
    if kernel := re.search(r"__global__(?![^;{]*\bvoid\b)[^(;{]*?(\w+)\s*\(", code):
        return f"in which {kernel[1]} is __global__, a kernel: what threads call is __device__"


class Trial(NamedTuple):
    """A kernel that is launched with the learner's source in it.

    Attributes
    ----------
    kernel : str
        Its C++ name, with the parameters of its template.
    blocks, threads : int
    inputs : dict of str to ndarray
    outputs : dict of str to tuple
        Shapes: float32, filled with NaN before the launch.
    numbers : dict of str to NumPy scalar
        What the kernel takes after the arrays.
    before, after : str
        The CUDA source around the learner's.
    hints : dict of str to str
        A pattern in what the emulator says -> what is added to it.
    """

    kernel: str
    blocks: int
    threads: int
    inputs: dict
    outputs: dict
    numbers: dict
    before: str = ""
    after: str = ""
    hints: dict = EMULATOR_HINTS

    def run(self, source):
        """Launch the kernel in several orders of its blocks and threads; return its outputs.

        Raises
        ------
        BadResult
            With what the emulator says: the lines that it names are those of the learner's source.
        NotChecked
            If the source has something in it that the emulator does not know.
        """
        first = None
        for order in ORDERS:
            left = self._emulate(source, order)
            first = first or left
            if not all(close(left[k].ravel(), first[k].ravel(), 1e-3) for k in self.outputs):
                raise BadResult("gives other numbers where the threads take turns in another order")
        return {name: left[name] for name in self.outputs}

    def traffic(self, source):
        """Return the `Traffic` of each array, of one launch."""
        counts = {}
        self._emulate(source, ORDERS[0], counts)
        return counts

    def problem_far_away(self, source):
        """Say what is wrong with a kernel where its arrays are longer than an int can count.

        FAR rows, which are not there, come before those of every array with two axes, and as many
        blocks before those that are run. The emulator keeps arrays so far apart that a place which
        is cut to 32 bits is in none.
        """
        try:
            self._emulate(source, ORDERS[0], skipped=FAR)
        except BadResult as error:
            if "partial[" not in str(error):  # which has a row for each block: few
                line = re.search(r" in line \d+( of [\w.]+)?", str(error))
                return (
                    f"Right for few rows, but wrong behind row {FAR:,}{line[0] if line else ''}. "
                    "An int ends at 2**31: the place where a row begins needs a long long."
                )

    def problem_on_a_gpu(self, source):
        """Say what NVRTC, if it is here, has against a source that the emulator runs, or None."""
        try:
            gpu.compile("sm_80", [self.kernel], self._text(source))
        except RuntimeError:
            return None  # it is missing
        except ValueError as error:
            if place := re.search(
                r"^(?:no kernel.*)?your source\((\d+)\): error: (.*)", str(error), re.M
            ):
                line = source.splitlines()[int(place[1]) - 1].strip()
                hints = (h for words, h in NVRTC_HINTS.items() if re.search(words, place[2]))
                return (
                    "The numbers are right in the emulator, but NVIDIA's compiler refuses line "
                    f"{place[1]}, {line}: {next(hints, place[2])}"
                )

    def _text(self, source):
        """Return the source between what comes before and after it, with its own line numbers."""
        return (
            f'#line 1 "layernorm.cu"\n{self.before}\n#line 1 "your source"\n{source}\n'
            f'#line 1 "the check"\n{self.after}\n'
        )

    def _emulate(self, source, order, counts=None, skipped=0):
        """Launch the kernel once, so many rows and blocks after the first; return all arrays."""
        text = self._text(source)
        arrays, numbers = dict(self.inputs), dict(self.numbers)
        for name, shape in self.outputs.items():
            arrays[name] = np.full(shape, np.nan, np.float32)
        begins = {name: skipped * a.shape[1] for name, a in arrays.items() if a.ndim == 2}
        if "rows" in numbers:
            numbers["rows"] += skipped
        launch = gpu.Launch(
            text, self.kernel, skipped + self.blocks, self.threads, arrays | numbers,
            first_block=skipped, begins=begins,
        )  # fmt: skip
        try:
            return gpu.emulate(launch, order, counts, seconds=30)  # enough for all that returns
        except gpu.EmulationError as error:
            message = message_for_learner(str(error), self.kernel, source)
            hints = [
                f". {hint}"
                for words, hint in (COMPILER_HINTS | self.hints).items()
                if re.search(words, message)
            ]
            raise BadResult(message + "".join(hints[:1])) from None
        except gpu.Unsupported as error:
            raise NotChecked(f"It may be right: this check cannot tell, as {error}.") from None


def message_for_learner(message, kernel, source):
    """Return what the emulator or a compiler says, to stand after "It", with the line it is about.

    Parameters
    ----------
    message : str
        Of an EmulationError.
    kernel, source : str
        The name that the message begins with, and what the learner wrote.
    """
    message = re.sub(r"[^\s'\"]*/(?=\w)", "", message.strip().splitlines()[0])  # no folders
    lines = source.splitlines()
    hints = [
        f"line {k + 1}, {lines[k].strip()}: {words}"
        for k, line in enumerate(code_of(source).splitlines())
        for pattern, words in NEVER_RIGHT.items()
        if re.search(pattern, line)
    ]
    if "does not compile" not in message:
        message = message.replace(f"{kernel}: ", "fails in the emulator: ", 1)
        message = message.removeprefix(f"{kernel} ")
        return f"{message}. And {hints[0]}" if hints else message
    place = re.search(r"your source:(\d+): error: (.*)", message)
    if hints or not place:
        return f"does not compile: {hints[0]}" if hints else message.removeprefix(f"{kernel} ")
    number, error = int(place[1]), place[2]
    line = lines[number - 1].strip() if number <= len(lines) else ""
    return f"does not compile: line {number}, {line}: {error}"
