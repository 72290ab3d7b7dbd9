"""Judge a function against a right answer, and say what is wrong with it.

A teacher writes an `Exercise`: the right answer, some inputs, and the mistakes that people make.
`verdict_on` tries a learner's function on the inputs and returns a `Verdict`, which is printed. The
verdict names the mistake where the function does the same as a known one. Otherwise it describes
how the results differ: a sign, a factor, a missing term, a shape, or the place of the largest
error. Whatever the function does, `verdict_on` raises nothing but KeyboardInterrupt.

>>> import numpy as np
>>> from lnlib.checker import Exercise, verdict_on
>>> def distance(a, b):
...     return np.sqrt(np.sum((a - b) ** 2))
>>> points = np.array([2.0, 7.0, 1.0]), np.array([8.0, 2.0, 9.0])
>>> wrong = [("the root is missing.", lambda a, b: np.sum((a - b) ** 2))]
>>> task = Exercise(distance, ["d"], cases=lambda: {"two points": points}, mistakes=wrong)
>>> verdict_on(distance, task)
distance: right
  Tried on 1 input: two points. All within 1e-09.
>>> def distance(a, b):
...     return (a - b) @ (a - b)
>>> verdict_on(distance, task)
distance: wrong
  d: the root is missing.

Mistakes that are small edits of the right answer are quicker to write as a table, see `mistakes`.
The folder uses NumPy only, and nothing else of this project: it can be copied and used elsewhere.
"""

from .compare import BadResult
from .describe import Terms
from .edits import edited, edits, functions_of, mistakes
from .judging import Exercise, verdict_on
from .verdict import NotChecked, Score, Verdict

__all__ = [
    "BadResult", "Exercise", "NotChecked", "Score", "Terms", "Verdict",
    "edited", "edits", "functions_of", "mistakes", "verdict_on",
]  # fmt: skip
