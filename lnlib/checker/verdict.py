"""What a learner is told: a status and remarks, as text and in a notebook's HTML."""

import html
import textwrap
from typing import NamedTuple

AGAIN = "Run it again: "  # a call follows, which can be copied: this line is never broken
_WRAP = textwrap.TextWrapper(92, initial_indent="  ", subsequent_indent="    ")
_WRAP.break_long_words = _WRAP.break_on_hyphens = False
# Status -> a sign, and a colour that stands out on a white page (3:1) and on a dark one
_SIGNS = {
    "right": ("✓", "#388e3c"),
    "wrong": ("✗", "#d32f2f"),
    "not done yet": ("…", "#757575"),
    "not checked": ("?", "#b26a00"),
}


class Verdict(NamedTuple):
    """The answer to a learner.

    Attributes
    ----------
    status : {"right", "wrong", "not done yet", "not checked"}
    name : str
        Of the exercise.
    remarks : tuple of str
        Why, a sentence or two each.
    """

    status: str
    name: str
    remarks: tuple = ()

    def __repr__(self):
        lines = (f"  {r}" if r.startswith(AGAIN) else _WRAP.fill(r) for r in self.remarks)
        return "\n".join([f"{self.name}: {self.status}", *lines])

    def _repr_html_(self):
        """Return what `repr` says, with a coloured edge and the call to run again as code."""
        sign, colour = _SIGNS[self.status]
        lines = [f"<b>{sign} {html.escape(self.name)}: {self.status}</b>"]
        for remark in self.remarks:
            text, again, call = html.escape(remark, quote=False).partition(AGAIN)
            code = f"<pre><code>{call.replace('; ', chr(10), 1)}</code></pre>" if again else ""
            lines.append(f"<div>{text}{again.strip()}{code}</div>")
        style = f"border-left: 5px solid {colour}; padding-left: 10px"
        return "\n".join([f'<div style="{style}">', *lines, "</div>"])


class Score(str):
    """What a right answer achieved, in words; an exercise's `judge` may return it."""


class NotChecked(Exception):
    """Raised by `prepare` or `judge` for what cannot be judged here; the message says why."""


def wrong(name, *remarks):
    """Return the verdict "wrong" with those remarks that are not empty."""
    return Verdict("wrong", name, tuple(remark for remark in remarks if remark))
