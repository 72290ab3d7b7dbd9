"""How long a page takes: python tests/tools/minutes.py [--help] [page ...].

One formula for all pages. Reading is what stands before the exercises (where the exercises are the
lesson, before "Check yourself"): 120 words a minute, 4 seconds for a line of code that is not
folded, 30 for a figure and 40 for a question marked *Predict*. Somebody who learns reads a page of
formulas at this pace, not at that of a story: it is what readers of the lessons gave, section by
section. With the exercises, the minutes that stand in their heads are added. Without pages: all
lessons.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from execute_notebooks import NAVIGATION, cells_of, lessons

WORDS_A_MINUTE = 120
SECONDS_A_LINE, SECONDS_A_FIGURE, SECONDS_A_PREDICT = 4, 30, 40
ENDS = "## Exercises", "## Check yourself", "## Find it yourself"  # the last is the index's


class Size(NamedTuple):
    """The size of a page: what stands before its exercises, and the minutes of these."""

    words: int
    lines: int  # of code, without blank and folded ones
    figures: int
    predicts: int
    exercises: int  # minutes that stand in the heads of the exercises

    @property
    def reading(self):
        """Minutes to read, without the exercises."""
        seconds = self.lines * SECONDS_A_LINE + self.figures * SECONDS_A_FIGURE
        seconds += self.predicts * SECONDS_A_PREDICT
        return round(self.words / WORDS_A_MINUTE + seconds / 60)


def words(text):
    """Count the words of a Markdown text: code and formulas as they are spaced, no markup."""
    markup = r"\]\([^)\s]*\)|</?[a-z][^>]*>|\$\$|\\(begin|end)\{\w+\}|[|>#*]"
    text = re.sub(markup, " ", text)
    return len(re.findall(r"\S*[\w$]\S*", text))


def size(path):
    """Measure one page."""
    cells = [cell for cell in cells_of(path) if cell.id not in NAVIGATION]
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    end = next(heading for heading in ENDS if f"\n{heading}\n" in text)
    last = next(k for k, cell in enumerate(cells) if cell.source.startswith(end))
    read = "\n".join(cell.source for cell in cells[:last] if cell.cell_type == "markdown")
    code = [cell for cell in cells[:last] if cell.cell_type == "code"]
    shown = [cell.source for cell in code if "fold" not in cell.metadata.get("tags", [])]
    lines = sum(bool(line.strip()) for source in shown for line in source.splitlines())
    figures = sum("image/png" in out.get("data", {}) for cell in code for out in cell.outputs)
    exercises = map(int, re.findall(r"^●\S* · (\d+) minutes", text, flags=re.M))
    predicts = read.count("**Predict.**")
    return Size(words(read), lines, figures, predicts, sum(exercises))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="page")
    for path in parser.parse_args().pages or lessons():
        page = size(path)
        print(f"{path.stem:28} {page.reading} minutes, and {page.exercises} of exercises: {page}")


if __name__ == "__main__":
    main()
