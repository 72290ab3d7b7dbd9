"""Draw "The backward pass on one page".

Writes notebooks/data/one_page.pdf, to print, its two halves as pictures, side by side for a desk
and in one column for a phone, and the graph alone, graph.png. Every number on the page is
computed or asserted here. What the page says is stored in the files, so that a test can tell when
they are out of date.
"""

import argparse
import functools
import hashlib
import io
import json
import re
from fractions import Fraction

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from execute_notebooks import NOTEBOOKS, README_FIGURE, REFRESH, read
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.bugs import BUGS
from lnlib.plots import BLUE, GRAPH, GREEN, RED, line_of
from lnlib.textbook import backward_means, forward_means

DATA = NOTEBOOKS / "data"
INK, SOFT, PAPER, TINT = "#1d2733", "#5d6b7a", "#f5f7fa", "#dcebe5"
DEEP = "#006b4e"  # green that can be read on TINT
WIDTH, GAP, EDGE = 3.68, 0.3, 0.32  # inches: a column, between columns, around the page
DPI = 200  # of the pictures
PICTURES = "one_page_1.png", "one_page_1_phone.png", "one_page_2.png", "one_page_2_phone.png"
FILES = "one_page.pdf", "graph.png", *PICTURES

# words and formulas of panel 2: place, size, colour
FORMULAS = (
    (0.32, 0.40, 8, SOFT, "The layer, for each row of D numbers:"),
    (0.32, 0.70, 12.5, INK, r"$\hat{x} = (x - \mathrm{mean})\cdot\mathrm{rstd}$"),
    (0.32, 1.04, 12.5, INK, r"$\mathrm{rstd} = 1/\sqrt{\mathrm{var}+\varepsilon}$"),
    (2.20, 0.70, 12.5, INK, r"$y = \gamma\,\hat{x} + \beta$"),
    (0.20, 1.62, 14, BLUE, r"$d\beta \,=\, \sum_{\mathrm{rows}} dy$"),
    (1.72, 1.62, 8, SOFT, "β is added to every row"),
    (0.20, 2.10, 14, BLUE, r"$d\gamma \,=\, \sum_{\mathrm{rows}} dy\,\hat{x}$"),
    (1.72, 2.10, 8, SOFT, "γ multiplies x̂ in every row"),
    (0.20, 2.52, 13, BLUE, r"$dx \,=\, \mathrm{rstd}\,(\,g - \mathrm{mean}(g)\,$"
                           r"$-\, \hat{x}\,\mathrm{mean}(g\,\hat{x})\,)$"),
    (0.20, 2.80, 8, SOFT, "where  g = γ dy,  also inside the means"),
    (1.42, 3.04, 11, BLUE, r"$g$"),
    (1.66, 3.04, 8, SOFT, "straight ahead"),
    (0.94, 3.27, 11, RED, r"$\mathrm{mean}(g)$"),
    (1.66, 3.27, 8, SOFT, "every x moves the mean"),
    (0.70, 3.50, 11, RED, r"$\hat{x}\;\mathrm{mean}(g\,\hat{x})$"),
    (1.66, 3.50, 8, SOFT, "every x moves the variance"),
)  # fmt: skip

ROWS = "x is (B, T, D); rows = (0, 1)"
CODE = """\
g = gamma * dy
mean_g = g.mean(axis=-1, keepdims=True)
mean_gx = (g * x_hat).mean(axis=-1, keepdims=True)
dx = rstd * (g - mean_g - x_hat * mean_gx)
dgamma = (dy * x_hat).sum(axis=rows)
dbeta = dy.sum(axis=rows)"""

DRAWN = ("textbook", "s"), ("lnlib", "o")  # markers of the digits

DANGERS = (  # what goes wrong, for which data, the remedy in words and in code
    ("x far from zero", "mean = 10⁵ spreads",
     "Centre, then centre what is left.", "xc -= xc.mean(…)"),
    ("dy far from zero", "mean = 10⁴ spreads",
     "Centre γ dy before it is rounded.", "gamma.astype(np.float64) * dy"),
    ("Long sums", "10⁶ rows",
     "Add up in float64.", "dy.sum(…, dtype=np.float64)"),
    ("Squares out of range", "x near 10²⁵",
     "Divide the row by a power of two.", "np.ldexp(x, -exponent)"),
)  # fmt: skip

# as lesson 03 calls them, and what they do
CHECKS = {
    "complex step": "complex step, entry by entry",
    "central differences": "central differences, entry by entry",
    "directional": "one random direction, any size",
    "Taylor: slope 2": "Taylor: what is left falls with h²",
    "adjoint": "adjoint: ⟨Jv, u⟩ = ⟨v, Jᵀu⟩",
    "central, tolerance 1e-3": "differences, tolerance 10⁻³",
    "gamma = 1, dy = 1": "γ = 1 and dy = 1",
    "dx sums to zero": "each row of dx sums to zero",
    "the loss goes down": "the loss goes down",
}
RULES = (
    "γ and dy random; several rows; axes of different length;",
    "D > 2; one row nearly flat, spread √ε, one far from zero.",
)


def caught():
    """Return how many bugs each check catches, as lesson 03 prints it."""
    cells = read(README_FIGURE[0]).cells
    printed = "".join(o.get("text", "") for cell in cells for o in cell.get("outputs", []))
    rows = re.findall(r"^(.*?) +caught +(\d+) of (\d+)$", printed, flags=re.M)
    if {int(total) for *_, total in rows} != {len(BUGS)}:
        raise ValueError(f"{README_FIGURE[0].name} is out of date: {REFRESH} lnlib/bugs.py")
    return {name: int(count) for name, count, _ in rows}


def one_row():
    """Return the value and the gradient at each node of the graph, after checking them."""
    x, gamma, beta, eps = np.array([1.0, 2, 3, 6]), np.array([1.0, 2, 1, 2]), [0, 1, 0, 1.0], 0.5
    dy = np.array([1.0, 1, 1, 2])
    y, cache = layer_norm_forward(x[None], gamma, np.array(beta), eps)
    dx, dgamma, dbeta = layer_norm_backward(dy[None], cache)
    x_hat, rstd = cache.x_hat[0], cache.rstd[0, 0]
    xc, g, D = x - x.mean(), gamma * dy, x.size
    drstd = np.sum(g * xc)
    dvar = -(rstd**3) / 2 * drstd
    dxc = rstd * g + 2 / D * xc * dvar
    dmean = -dxc.sum()
    assert np.allclose(dx[0], dxc + dmean / D)
    assert np.allclose(g - g.mean() - x_hat * np.mean(g * x_hat), dx[0] / rstd)
    values = x, x.mean(), xc, np.var(x), rstd, x_hat, gamma, beta, y[0]
    gradients = dx[0], dmean, dxc, dvar, drstd, g, dgamma, dbeta, dy
    return dict(zip(NODES, zip(values, gradients)))


def run_code():
    """Run the page's six lines, and assert that they are right."""
    rng = np.random.default_rng(seed=1)
    x, dy = rng.standard_normal((2, 3, 4, 8))  # (3, 4, 8) each
    gamma, beta = rng.standard_normal((2, 8))
    _, cache = layer_norm_forward(x, gamma, beta)
    names = {**cache._asdict(), "dy": dy}
    exec(f"{ROWS.split('; ')[1]}\n{CODE}", names)
    for name, right in zip(("dx", "dgamma", "dbeta"), layer_norm_backward(dy, cache)):
        assert np.allclose(names[name], right, rtol=1e-12, atol=1e-12)


@functools.cache
def digits():
    """Return how many of float32's digits are right in each danger: textbook code, and lnlib's."""
    rng = np.random.default_rng(seed=2)
    x, dy = rng.standard_normal((2, 64, 1024)).astype(np.float32)  # (64, 1024) each
    ones, zeros = np.ones(1024, np.float32), np.zeros(1024, np.float32)

    def right_digits(x, dy, output):
        ours, results = (layer_norm_forward, layer_norm_backward), []
        textbook = forward_means, backward_means
        for dtype, layer in ((np.float64, ours), (np.float32, textbook), (np.float32, ours)):
            with np.errstate(all="ignore"):
                y, cache = layer[0](x.astype(dtype), ones, zeros)
                results.append((y, *layer[1](dy.astype(dtype), cache))[output])
        truth, *computed = results
        errors = [np.abs(c - truth).max() / np.abs(truth).max() for c in computed]
        return [max(0.0, -np.log10(e)) if np.isfinite(e) else 0.0 for e in errors]

    many = rng.random((1_000_000, 4), np.float32)  # (N, 4)
    exact = many.sum(axis=0, dtype=np.float64)
    sums = [many.sum(axis=0, dtype=kind).astype(np.float32) for kind in (np.float32, np.float64)]
    return [
        right_digits(1e5 + x, dy, 0),
        right_digits(x, 1e4 + dy, 1),
        [-np.log10(np.abs(s / exact - 1).max()) for s in sums],
        right_digits(np.float32(1e25) * x, dy, 0),
    ]


def says():
    """Return all that the page says, after checking it; what was measured only in bands."""
    run_code()
    for before, after in digits():
        assert before < 5 and after > 6.4
    numbers = {name: [*map(written, pair)] for name, pair in one_row().items()}
    counts = caught()
    texts = [FORMULAS, ROWS, CODE, DANGERS, CHECKS, RULES]
    return {"numbers": numbers, "caught": [counts[name] for name in CHECKS], "texts": texts}


def stamp():
    """Return a digest of what the page says."""
    return hashlib.sha256(json.dumps(says(), sort_keys=True).encode()).hexdigest()


def is_up_to_date():
    """Do the files say what the page says now?"""
    digest = stamp().encode()
    return all(digest in (DATA / name).read_bytes() for name in FILES)


def written(values):
    """Write numbers as a pencil would: -0.5 is −½."""
    halves = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(3, 4): "¾"}
    words = []
    for value in map(Fraction, np.ravel(values).tolist()):
        whole, rest = divmod(abs(value), 1)
        text = f"{whole or ''}{halves[rest]}" if rest in halves else str(abs(value))
        words.append(f"−{text}" if value < 0 else text)
    return words


class Panel:
    """A part of the page, WIDTH wide; places are in inches from its top left corner, downwards."""

    def __init__(self, figure, column, top, height):
        page = figure.get_size_inches()
        place = EDGE + column * (WIDTH + GAP), page[1] - top - height, WIDTH, height
        self.ax = figure.add_axes(np.divide(place, np.tile(page, 2)))
        self.ax.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.ax.axis("off")

    def box(self, x, y, width, height, face=PAPER, radius=0.07, **style):
        corners = f"round,pad=0,rounding_size={radius}"
        patch = FancyBboxPatch((x, y), width, height, corners, fc=face, **({"ec": "none"} | style))
        return self.ax.add_patch(patch)

    def text(self, x, y, words, size=8, color=INK, ha="left", **style):
        self.ax.text(x, y, words, fontsize=size, color=color, ha=ha, va="center", **style)

    def title(self, number, words):
        self.ax.add_patch(plt.Circle((0.12, 0.13), 0.115, color=BLUE, lw=0))
        self.text(0.12, 0.137, number, 9, "white", ha="center", weight="bold")
        self.text(0.32, 0.135, words, 11.5, weight="bold")


# the graph: name -> x, y, width of the card, and how much room its symbol takes
NODES = {
    "x": (0.98, 0.92, 1.72, 0.3),
    "mean": (3.02, 1.52, 0.92, 0.4),
    "xc": (0.98, 2.17, 1.72, 0.3),
    "var": (3.02, 2.67, 0.92, 0.4),
    "rstd": (3.02, 3.52, 0.92, 0.4),
    "x_hat": (0.98, 3.72, 1.72, 0.3),
    "gamma": (2.86, 4.47, 1.5, 0.3),
    "beta": (2.86, 5.28, 1.5, 0.3),
    "y": (0.98, 5.12, 1.72, 0.3),
}
ARROWS = {  # local derivative, and where it stands beside the middle of the arrow
    "x-xc": ("$1$", 0.14, 0.02),
    "x-mean": ("$1/D$", 0.24, -0.14),
    "mean-xc": ("$-1$", 0.0, -0.15),
    "xc-var": ("$2x_c/D$", 0.3, -0.16),
    "var-rstd": (r"$-\mathrm{rstd}^3/2$", -0.45, 0),
    "rstd-x_hat": ("$x_c$", 0.2, 0.12),
    "xc-x_hat": (r"$\mathrm{rstd}$", 0.24, 0),
    "x_hat-y": (r"$\gamma$", 0.14, -0.02),
    "gamma-y": (r"$\hat{x}$", 0.0, -0.12),
    "beta-y": ("$1$", 0.0, 0.13),
}
CARD = 0.60  # height


def draw_graph(panel):
    panel.title("1", "Four numbers, there and back")
    panel.box(0.25, 0.42, 0.86, 0.16, TINT, 0.03)
    panel.text(0.32, 0.35, "value", weight="bold")
    panel.text(0.32, 0.5, "its gradient", color=DEEP, weight="bold")
    panel.text(1.36, 0.35, "at an arrow: local derivative", color=SOFT)
    panel.text(1.36, 0.5, "dashed: shared by the row;  D = 4, ε = ½", color=SOFT)
    cards, numbers = {}, one_row()
    for name, (x, y, width, room) in NODES.items():
        left, (color, line) = x - width / 2, line_of(name)
        place = left, y - CARD / 2, width, CARD
        cards[name] = panel.box(*place, "white", lw=1.4, ec=color, ls=line)
        symbol, size = f"${GRAPH[name][1]}$", 10.5 if color == RED else 13
        panel.text(left + room / 2 + 0.02, y, symbol, size, ha="center")
        panel.box(left + room, y + 0.03, width - room - 0.05, 0.23, TINT, 0.03)
        for row, color, down in zip(numbers[name], (INK, DEEP), (-0.135, 0.145)):
            words = written(row)
            step = (width - room - 0.06) / len(words)
            for k, word in enumerate(words):
                place = left + room + (k + 0.5) * step, y + down
                panel.text(*place, word, 9.5, color, ha="center", weight="bold")
    for name, (words, right, down) in ARROWS.items():
        start, end = name.split("-")
        color, line = line_of(start, end)
        arrow = FancyArrowPatch(
            NODES[start][:2], NODES[end][:2], patchA=cards[start], patchB=cards[end],
            arrowstyle="-|>", mutation_scale=11, lw=1.7, shrinkA=1, shrinkB=1,
            color=color, ls=line,
        )  # fmt: skip
        panel.ax.add_patch(arrow)
        middle = np.mean([NODES[start][:2], NODES[end][:2]], axis=0)
        panel.text(*(middle + (right, down)), words, 10.5, ha="center")


def draw_formulas(panel):
    panel.title("2", "Three formulas")
    panel.box(0.04, 1.34, WIDTH - 0.08, 2.34)
    for x, y, size, color, words in FORMULAS:
        panel.text(x, y, words, size, color)


def draw_code(panel):
    panel.title("3", "Six lines")
    panel.text(WIDTH - 0.04, 0.14, ROWS, 8, SOFT, ha="right")
    panel.box(0.04, 0.36, WIDTH - 0.08, 1.42, INK)
    for k, line in enumerate(CODE.splitlines()):
        panel.text(0.17, 0.54 + 0.212 * k, line, 7.8, "white", family="DejaVu Sans Mono")


def draw_dangers(panel):
    panel.title("4", "Where float32 loses its digits")
    panel.text(0.04, 0.45, "and how to keep them", color=SOFT)
    panel.text(WIDTH - 0.04, 0.45, "right digits, of seven", color=SOFT, ha="right")
    for k, ((what, where, remedy, code), measured) in enumerate(zip(DANGERS, digits())):
        y = 0.62 + 0.72 * k
        panel.box(0.04, y, WIDTH - 0.08, 0.64)
        panel.text(0.15, y + 0.14, what, 9, weight="bold")
        panel.text(WIDTH - 0.13, y + 0.14, where, color=SOFT, ha="right")
        panel.text(0.15, y + 0.33, remedy)
        panel.text(0.15, y + 0.51, code, 7.5, BLUE, family="DejaVu Sans Mono")
        for right, color, (who, marker), down in zip(measured, (RED, GREEN), DRAWN, (0.33, 0.5)):
            panel.text(2.57, y + down, who, 7, color, ha="right", weight="bold")
            for place in range(7):
                face = color if place < round(min(right, 7)) else "white"
                spot = 2.66 + 0.135 * place, y + down
                panel.ax.plot(*spot, marker, ms=7.2, mfc=face, mec=color, mew=0.9)


def draw_checks(panel):
    panel.title("5", "Which checks can be fooled?")
    counts, bugs = caught(), len(BUGS)
    panel.text(0.04, 0.45, "the check", color=SOFT)
    words = f"catches, of {bugs} wrong backward passes"
    panel.text(WIDTH - 0.04, 0.45, words, color=SOFT, ha="right")
    for k, (name, words) in enumerate(CHECKS.items()):
        y = 0.7 + 0.242 * k + 0.1 * (counts[name] < bugs)
        color = GREEN if counts[name] == bugs else RED
        panel.text(0.04, y, words, 8.2)
        panel.box(2.42, y - 0.055, 0.94, 0.11, "#e3e9ef", 0.05)
        if counts[name]:
            panel.box(2.42, y - 0.055, 0.94 * counts[name] / bugs, 0.11, color, 0.05)
        panel.text(WIDTH - 0.04, y, str(counts[name]), 9, color, ha="right", weight="bold")
    panel.text(0.04, 3.02, "And on which data?", 9, weight="bold")
    for k, words in enumerate(RULES):
        panel.text(0.04, 3.22 + 0.18 * k, words)


# what is drawn in which column, how far down and how high
PANELS = (
    (draw_graph, 0, 1.0, 5.62),
    (draw_formulas, 1, 1.0, 3.76),
    (draw_code, 1, 4.82, 1.8),
    (draw_dangers, 0, 7.2, 3.46),
    (draw_checks, 1, 7.2, 3.46),
)
HALVES = (0.72, 6.9), (6.9, 10.92)  # inches from the top


def draw_page():
    """Return the page, as a figure."""
    page = plt.figure(figsize=(2 * WIDTH + GAP + 2 * EDGE, 11.69))  # A4
    style = {"color": INK, "ha": "center", "va": "center"}
    page.text(0.5, 0.957, "LayerNorm's backward pass on one page", size=19, weight="bold", **style)
    page.text(0.5, 0.022, "layernorm-from-scratch · lessons 01 to 05", size=8, **style)
    for draw, *place in PANELS:
        draw(Panel(page, *place))
    return page


def draw_all():
    """Draw the page, and write all of its files."""
    digest, drawn = stamp(), io.BytesIO()
    style = {"font.family": "DejaVu Sans", "mathtext.fontset": "cm", "savefig.facecolor": "white"}
    with mpl.rc_context(style):
        page = draw_page()
        metadata = {"Keywords": digest, "CreationDate": None}
        page.savefig(DATA / "one_page.pdf", metadata=metadata)
        page.savefig(drawn, dpi=DPI)
    plt.close(page)
    picture = Image.open(drawn).convert("RGB")
    save(crop(picture, 0, 1.27, 6.7), "graph.png", digest)  # without its title
    for k, (top, bottom) in enumerate(HALVES):
        left, right = (crop(picture, column, top, bottom) for column in range(2))
        wide = Image.new("RGB", (2 * left.width, left.height))
        wide.paste(right, (left.width, 0))
        tall = Image.new("RGB", (left.width, 2 * left.height))
        tall.paste(right, (0, left.height))
        for both, name in zip((wide, tall), PICTURES[2 * k :]):
            both.paste(left)
            save(both, name, digest)
    print("drew the backward pass on one page")


def crop(picture, column, top, bottom):
    """Return a column of the page, from top to bottom in inches, with the space around it."""
    left = EDGE - GAP / 2 + column * (WIDTH + GAP)
    return picture.crop([round(DPI * place) for place in (left, top, left + WIDTH + GAP, bottom)])


def save(picture, name, digest):
    """Write a picture in few colours, which takes a third of the bytes, with what it says."""
    note = PngInfo()
    note.add_text("Description", digest)
    picture.quantize(96).save(DATA / name, pnginfo=note, optimize=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    draw_all()
