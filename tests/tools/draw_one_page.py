"""Draw "The backward pass on one page": python tests/tools/draw_one_page.py

Writes notebooks/data/one_page.pdf, to print, its two halves as pictures, one below the other for a
desk and in one column for a phone, and graph.png, the graph alone. Every number on the page is
computed or asserted here. What the page says is stored in the pictures, so that a test can tell
when they are out of date.
"""

import functools
import hashlib
import io
import json
from fractions import Fraction
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from test_texts import caught

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.bugs import BUGS
from lnlib.plots import BLUE, GREEN, RED
from lnlib.textbook import backward_means, forward_means

DATA = Path(__file__).resolve().parents[2] / "notebooks/data"
INK, SOFT, LINE, PAPER, TINT = "#1d2733", "#5d6b7a", "#c9d2dc", "#f5f7fa", "#dcebe5"
WIDTH, GAP, EDGE = 3.68, 0.3, 0.32  # inches: a column, between columns, around the page

LAYER = (
    r"$\hat{x} = (x - \mathrm{mean})\cdot\mathrm{rstd}$",
    r"$\mathrm{rstd} = 1/\sqrt{\mathrm{var}+\varepsilon}$",
    r"$y = \gamma\,\hat{x} + \beta$",
)

FORMULAS = (
    (r"$d\beta \,=\, \sum_{\mathrm{rows}} dy$", "β is added to every row"),
    (r"$d\gamma \,=\, \sum_{\mathrm{rows}} dy\,\hat{x}$", "γ multiplies x̂ in every row"),
    (
        r"$dx \,=\, \mathrm{rstd}\,(\,g - \mathrm{mean}(g)$"
        r"$\,-\, \hat{x}\,\mathrm{mean}(g\,\hat{x})\,)$",
        "where  g = γ dy,  also inside the means",
    ),
    (r"$g$", "straight ahead"),
    (r"$\mathrm{mean}(g)$", "every x moves the mean"),
    (r"$\hat{x}\;\mathrm{mean}(g\,\hat{x})$", "every x moves the variance"),
)

ROWS = "x is (B, T, D); rows = (0, 1)"
CODE = """\
g = gamma * dy
mean_g = g.mean(axis=-1, keepdims=True)
mean_gx = (g * x_hat).mean(axis=-1, keepdims=True)
dx = rstd * (g - mean_g - x_hat * mean_gx)
dgamma = (dy * x_hat).sum(axis=rows)
dbeta = dy.sum(axis=rows)"""

DRAWN = {"textbook": "s", "lnlib": "o"}  # markers of the digits

# what goes wrong and for which data, the remedy in words and in code
DANGERS = (
    (
        "x far from zero",
        "mean = 10⁵ spreads",
        "Centre, then centre what is left.",
        "xc -= xc.mean(…)",
    ),
    (
        "dy far from zero",
        "mean = 10⁴ spreads",
        "Centre dy before γ multiplies it.",
        "g = gamma * (dy - mean) + …",
    ),
    ("Long sums", "10⁶ rows", "Add up in float64.", "dy.sum(…, dtype=np.float64)"),
    (
        "Squares out of range",
        "x near 10²⁵",
        "Divide the row by a power of two.",
        "np.ldexp(x, -exponent)",
    ),
)

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


def one_row():
    """Return the values and the gradients at the nodes of the graph, and the local derivatives."""
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
    nodes = {
        "x": (x, dx[0]),
        "mean": (x.mean(), dmean),
        "xc": (xc, dxc),
        "var": (np.var(x), dvar),
        "rstd": (rstd, drstd),
        "x_hat": (x_hat, g),
        "gamma": (gamma, dgamma),
        "beta": (beta, dbeta),
        "y": (y[0], dy),
    }
    edges = {"x-mean": 1 / D, "mean-xc": -1, "x-xc": 1, "xc-var": 2 / D * xc}
    edges |= {"var-rstd": -(rstd**3) / 2, "rstd-x_hat": xc, "xc-x_hat": rstd, "x_hat-y": gamma}
    return nodes, edges


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
        wide = [a.astype(np.float64) for a in (x, ones, zeros, dy)]
        found = []
        for arrays, forward, backward in (
            (wide, layer_norm_forward, layer_norm_backward),
            ((x, ones, zeros, dy), forward_means, backward_means),
            ((x, ones, zeros, dy), layer_norm_forward, layer_norm_backward),
        ):
            with np.errstate(all="ignore"):
                y, cache = forward(*arrays[:3])
                found.append((y, *backward(arrays[3], cache))[output])
        truth, *computed = found
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
    nodes, edges = one_row()
    run_code()
    for before, after in digits():
        assert before < 5 and after > 6.4
    numbers = {name: [*map(written, pair)] for name, pair in nodes.items()}
    numbers |= {name: written(value) for name, value in edges.items()}
    counts = caught()
    texts = [LAYER, FORMULAS, ROWS, CODE, DANGERS, CHECKS, RULES]
    return {"numbers": numbers, "caught": [counts[name] for name in CHECKS], "texts": texts}


def written(values):
    """Write numbers as a pencil would: -0.5 is −½."""
    halves = {Fraction(1, 2): "½", Fraction(1, 4): "¼", Fraction(3, 4): "¾"}
    words = []
    for value in map(Fraction, np.ravel(values).tolist()):
        whole, rest = divmod(abs(value), 1)
        text = f"{whole or ''}{halves[rest]}" if rest in halves else str(abs(value))
        words.append("−" * (value < 0) + text)
    return words


class Panel:
    """A part of the page, WIDTH wide; places are in inches from its top left corner, downwards."""

    def __init__(self, figure, left, top, height):
        width_in, height_in = figure.get_size_inches()
        place = left / width_in, 1 - (top + height) / height_in
        self.ax = figure.add_axes([*place, WIDTH / width_in, height / height_in])
        self.ax.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.ax.axis("off")

    def box(self, x, y, width, height, face=PAPER, edge="none", lw=1.0, radius=0.07):
        style = f"round,pad=0,rounding_size={radius}"
        patch = FancyBboxPatch((x, y), width, height, style, fc=face, ec=edge, lw=lw)
        self.ax.add_patch(patch)
        return patch

    def text(self, x, y, words, size=9, color=INK, ha="left", va="center", **style):
        return self.ax.text(x, y, words, fontsize=size, color=color, ha=ha, va=va, **style)

    def spot(self, x, y, face, edge, who):
        self.ax.plot(x, y, DRAWN[who], ms=7.2, mfc=face, mec=edge, mew=0.9)

    def title(self, number, words):
        self.ax.add_patch(plt.Circle((0.12, 0.13), 0.115, color=BLUE, lw=0))
        self.text(0.12, 0.137, number, 9, "white", ha="center", weight="bold")
        self.text(0.32, 0.135, words, 11.5, weight="bold")


# the graph, from top to bottom: name -> x, y, width of the card, how the node is called
PLACES = {
    "x": (0.98, 0.92, 1.72, "x"),
    "mean": (3.02, 1.52, 0.92, "mean"),
    "xc": (0.98, 2.17, 1.72, "x_c"),
    "var": (3.02, 2.67, 0.92, "var"),
    "rstd": (3.02, 3.52, 0.92, "rstd"),
    "x_hat": (0.98, 3.72, 1.72, r"\hat{x}"),
    "gamma": (2.86, 4.47, 1.5, r"\gamma"),
    "beta": (2.86, 5.28, 1.5, r"\beta"),
    "y": (0.98, 5.12, 1.72, "y"),
}
CARD = 0.60  # height
DASHED = (0, (3, 1.2))  # told apart without colours, too


def draw_graph(panel, titled=True):
    nodes, edges = one_row()
    if titled:
        panel.title("1", "Four numbers, there and back")
    panel.text(0.32, 0.35, "value", 8, INK, weight="bold")
    panel.box(0.25, 0.42, 0.86, 0.16, TINT, radius=0.03)
    panel.text(0.32, 0.5, "its gradient", 8, GREEN, weight="bold")
    panel.text(1.36, 0.35, "at an arrow: local derivative", 8, SOFT)
    panel.text(1.36, 0.5, "dashed: shared by the row;  ε = ½", 8, SOFT)
    cards = {}
    for name, (x, y, width, symbol) in PLACES.items():
        shared = name in ("mean", "var", "rstd")
        cards[name] = panel.box(
            x - width / 2, y - CARD / 2, width, CARD, "white", RED if shared else BLUE, 1.4
        )
        cards[name].set_linestyle(DASHED if shared else "-")
        symbol = rf"$\mathrm{{{symbol}}}$" if shared else f"${symbol}$"
        label = 0.30 if not shared else 0.40
        panel.text(x - width / 2 + label / 2 + 0.02, y, symbol, 10.5 if shared else 13, ha="center")
        panel.box(x - width / 2 + label, y + 0.03, width - label - 0.05, 0.23, TINT, radius=0.03)
        value, gradient = nodes[name]
        for row, color, dy in ((value, INK, -0.135), (gradient, GREEN, 0.145)):
            words = written(row)
            step = (width - label - 0.06) / len(words)
            for k, word in enumerate(words):
                place = x - width / 2 + label + (k + 0.5) * step
                panel.text(place, y + dy, word, 9.5, color, ha="center", weight="bold")
    arrows = {
        "x-xc": (BLUE, 0, "$1$", (0.14, 0.02)),
        "x-mean": (RED, -0.15, "$1/4$", (0.08, -0.2)),
        "mean-xc": (RED, -0.12, "$-1$", (0.16, 0.19)),
        "xc-var": (RED, -0.12, "$x_c/2$", (0.1, -0.19)),
        "var-rstd": (RED, 0, "$-1/16$", (0.29, 0)),
        "rstd-x_hat": (RED, 0, "$x_c$", (0.02, -0.17)),
        "xc-x_hat": (BLUE, 0, "$1/2$", (0.2, 0)),
        "x_hat-y": (BLUE, 0, r"$\gamma$", (0.14, -0.02)),
        "gamma-y": (BLUE, 0, r"$\hat{x}$", (-0.09, -0.1)),
        "beta-y": (BLUE, 0, "$1$", (0.0, 0.15)),
    }
    for name, (color, bend, words, (right, down)) in arrows.items():
        start, end = name.split("-")
        (x0, y0, w0, _), (x1, y1, w1, _) = PLACES[start], PLACES[end]
        if x0 == x1:
            ends = (x0, y0 + CARD / 2), (x1, y1 - CARD / 2)
        elif x0 < x1:
            ends = (x0 + w0 / 2, y0 + 0.1), (x1 - w1 / 2, y1 - 0.05)
        else:
            ends = (x0 - w0 / 2, y0 + 0.05), (x1 + w1 / 2, y1 - 0.05)
        panel.ax.add_patch(
            FancyArrowPatch(
                *ends,
                arrowstyle="-|>",
                mutation_scale=11,
                lw=1.7,
                color=color,
                linestyle=DASHED if color == RED else "-",
                connectionstyle=f"arc3,rad={bend}",
                shrinkA=1,
                shrinkB=1,
            )  # fmt: skip
        )
        middle = np.mean(ends, axis=0) + (right, down)
        panel.text(*middle, words, 10, SOFT, ha="center")


def draw_formulas(panel):
    panel.title("2", "Three formulas")
    panel.text(0.32, 0.4, "The layer, for each row of D numbers:", 8, SOFT)
    for (x, y), formula in zip(((0.32, 0.7), (0.32, 1.04), (2.2, 0.7)), LAYER):
        panel.text(x, y, formula, 12.5)
    panel.box(0.04, 1.34, WIDTH - 0.08, 2.34)
    for y, (formula, words) in zip((1.62, 2.1), FORMULAS):
        panel.text(0.2, y, formula, 14, BLUE)
        panel.text(1.72, y, words, 8, SOFT)
    formula, words = FORMULAS[2]
    panel.text(0.2, 2.52, formula, 13, BLUE)
    panel.text(0.2, 2.8, words, 8, SOFT)
    for y, (formula, words), color in zip((3.04, 3.27, 3.5), FORMULAS[3:], (BLUE, RED, RED)):
        panel.text(1.5, y, formula, 11, color, ha="right")
        panel.text(1.66, y, words, 8, SOFT)


def draw_code(panel):
    panel.title("3", "Six lines")
    panel.text(WIDTH - 0.04, 0.14, ROWS, 8, SOFT, ha="right")
    panel.box(0.04, 0.36, WIDTH - 0.08, 1.42, INK)
    for k, line in enumerate(CODE.splitlines()):
        panel.text(0.17, 0.54 + 0.212 * k, line, 7.8, "white", family="DejaVu Sans Mono")


def draw_dangers(panel):
    panel.title("4", "Where float32 loses its digits")
    panel.text(WIDTH - 0.04, 0.45, "right digits, of seven", 8, SOFT, ha="right")
    panel.text(0.04, 0.45, "and how to keep them", 8, SOFT)
    for k, ((what, where, remedy, code), measured) in enumerate(zip(DANGERS, digits())):
        y = 0.62 + 0.72 * k
        panel.box(0.04, y, WIDTH - 0.08, 0.64)
        panel.text(0.15, y + 0.14, what, 9, weight="bold")
        panel.text(WIDTH - 0.13, y + 0.14, where, 8, SOFT, ha="right")
        panel.text(0.15, y + 0.33, remedy, 8)
        panel.text(0.15, y + 0.51, code, 7.5, BLUE, family="DejaVu Sans Mono")
        for row, (right, color, who) in enumerate(zip(measured, (RED, GREEN), DRAWN)):
            down = y + 0.33 + 0.17 * row
            panel.text(2.57, down, who, 7, color, ha="right", weight="bold")
            for place in range(7):
                full = place < round(min(right, 7))
                panel.spot(2.66 + 0.135 * place, down, color if full else "white", color, who)


def draw_checks(panel):
    panel.title("5", "Which checks can be fooled?")
    bugs = len(BUGS)
    panel.text(0.04, 0.45, "the check", 8, SOFT)
    panel.text(WIDTH - 0.04, 0.45, f"catches, of {bugs} wrong backward passes", 8, SOFT, ha="right")
    counts = caught()
    for k, (name, words) in enumerate(CHECKS.items()):
        y = 0.7 + 0.242 * k + 0.1 * (counts[name] < bugs)
        color = GREEN if counts[name] == bugs else RED
        panel.text(0.04, y, words, 8.2)
        panel.box(2.42, y - 0.055, 0.94, 0.11, "#e3e9ef", radius=0.05)
        if counts[name]:
            panel.box(2.42, y - 0.055, 0.94 * counts[name] / bugs, 0.11, color, radius=0.05)
        panel.text(WIDTH - 0.04, y, str(counts[name]), 9, color, ha="right", weight="bold")
    panel.text(0.04, 3.02, "And on which data?", 9, weight="bold")
    for k, words in enumerate(RULES):
        panel.text(0.04, 3.22 + 0.18 * k, words, 8)


# panels with their heights, column by column, of the page's upper and lower half
HALVES = (
    (((draw_graph, 5.62),), ((draw_formulas, 3.76), (draw_code, 1.8))),
    (((draw_dangers, 3.46),), ((draw_checks, 3.46),)),
)


def height_of(column):
    return sum(height for _, height in column)


def draw(figure, columns, top, side_by_side=True):
    """Draw columns of panels from the given place, in inches, down."""
    for k, column in enumerate(columns):
        down = top
        for paint, height in column:
            left = EDGE + k * (WIDTH + GAP) * side_by_side
            paint(Panel(figure, left, down, height))
            down += height + 0.06
        top = top if side_by_side else down + 0.2


def pictures():
    """Return the figures by the names of their files."""
    figures = {}
    wide = 2 * WIDTH + GAP + 2 * EDGE  # 8.3 inches: A4
    for half, columns in enumerate(HALVES, start=1):
        height = max(map(height_of, columns)) + 2 * EDGE
        figures[f"one_page_{half}.png"] = plt.figure(figsize=(wide, height))
        draw(figures[f"one_page_{half}.png"], columns, EDGE)
        height = sum(map(height_of, columns)) + 0.26 * len(columns) + 2 * EDGE
        phone = plt.figure(figsize=(WIDTH + 2 * EDGE, height))
        draw(phone, columns, EDGE, side_by_side=False)
        figures[f"one_page_{half}_phone.png"] = phone
    figures["graph.png"] = plt.figure(figsize=(WIDTH + 0.2, 5.36))  # without the space of its title
    draw_graph(Panel(figures["graph.png"], 0.1, -0.24, 5.62), titled=False)
    page = figures["one_page.pdf"] = plt.figure(figsize=(wide, 11.69))
    page.text(0.5, 0.957, "LayerNorm's backward pass on one page", size=19, weight="bold",
              color=INK, ha="center", va="center")  # fmt: skip
    draw(page, HALVES[0], 1.0)
    draw(page, HALVES[1], 7.2)
    page.text(
        0.5, 0.022, "layernorm-from-scratch · lessons 01 to 04", size=8, color=SOFT, ha="center"
    )
    return figures


def stamp(said):
    """Return a digest of what the page says."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def main():
    said = says()
    style = {"font.family": "DejaVu Sans", "mathtext.fontset": "cm", "savefig.facecolor": "white"}
    with mpl.rc_context(style):
        for name, figure in pictures().items():
            if name.endswith("pdf"):
                metadata = {"Keywords": stamp(said), "CreationDate": None}
                figure.savefig(DATA / name, metadata=metadata)
                continue
            drawn, note = io.BytesIO(), PngInfo()
            figure.savefig(drawn, dpi=200)
            note.add_text("Description", stamp(said))
            few_colours = Image.open(drawn).convert("RGB").quantize(96)  # a third of the bytes
            few_colours.save(DATA / name, pnginfo=note, optimize=True)
            print("drew", name)


if __name__ == "__main__":
    main()
