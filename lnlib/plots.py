"""Figure style, and the figures whose plumbing would drown a lesson."""

import json
import textwrap
from html import escape
from pathlib import Path
from urllib.parse import quote

import matplotlib.pyplot as plt
import numpy as np

from . import variance
from .cost import cost, roofline
from .layernorm import layer_norm_forward
from .textbook import backward_means, forward_means
from .trace import trace

# Okabe and Ito's palette, https://jfly.uni-koeln.de/color/: told apart by colour-blind readers.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#000000", "#999999"


def use_style():
    """Set matplotlib's defaults for the course: large type, thick lines, safe colours."""
    plt.rcParams.update(
        {
            "figure.figsize": (9, 4.2),
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 14,
            "axes.titlesize": 15,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.prop_cycle": plt.cycler(color=[BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK]),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#dddddd",
            "lines.linewidth": 2.5,
            "lines.markersize": 7,
            "legend.frameon": False,
        }
    )


def story():
    """Measure and draw the course in three panels; return the numbers shown, by name."""
    shown = _story_numbers()
    fig = plt.figure(figsize=(6.8, 7))  # narrow: it is read on phones, too
    axes = fig.subplot_mosaic("ab;cc", height_ratios=(5, 4))
    _draw_what_moves(axes["a"], shown["jacobian"][:, 2])
    _draw_output_errors(axes["b"], *shown["output errors"])
    costs = {
        "02 · MiB kept for the backward pass": shown["kept"],
        "06 · numbers through memory for each number in a large x": shown["moved"],
        "06, 08 · GPU kernels: one for each operation, or fused": shown["kernels"],
    }
    _draw_costs(axes["c"], costs)
    titles = "(a) Which x̂ move?", "(b) Which digits stay?", "(c) What does it cost?"
    for title, ax in zip(titles, axes.values()):
        ax.set_title(title, fontsize=13)
    return shown


def _draw_what_moves(ax, changes):
    """Draw how much each x_hat of a row changes, when one x of the row changes by 1."""
    ax.bar(range(len(changes)), changes, color=BLUE)
    ax.axhline(0, color=BLACK, lw=1)
    ax.set(xlabel="feature", ylabel=r"change of $\hat{x}$ per change of $x_2$", xticks=range(0, 8))
    ax.grid(axis="x", visible=False)


def _draw_costs(ax, costs):
    """Draw a pair of bars for each cost, the longer one as long as the panel is wide."""
    for place, (name, values) in enumerate(costs.items()):
        ax.text(0, place - 0.43, name, fontsize=12, va="center")
        for down, ((way, value), color) in enumerate(zip(values.items(), (RED, GREEN))):
            share = value / max(values.values())
            drawn = ax.barh(place - 0.17 + 0.26 * down, share, 0.24, color=color)
            ax.bar_label(drawn, [f"{value:.0f}  {way}"], padding=4)
    ax.set(xlim=(0, 1.75), ylim=(2.35, -0.6))
    ax.set_axis_off()


def _draw_output_errors(ax, offsets, errors):
    """Draw the largest error of y at each mean of the rows."""
    for (name, values), color, y in zip(errors.items(), (RED, GREEN), (2e-5, 2e-8)):
        ax.loglog(offsets, values, "o-", color=color)
        ax.text(30, y, name, color=color, weight="bold")
    ax.set(xlabel="mean / std of the row", ylabel="largest error of y / largest |y|")
    ax.set(ylim=(1e-8, 2), xticks=10.0 ** np.arange(4))


def _story_numbers():
    """Compute what `story` shows."""
    rng = np.random.default_rng(seed=0)
    row = rng.standard_normal(8)
    moved = 1e-5 * np.eye(8)  # row i moves entry i
    up, down = (layer_norm_forward(row + h, np.ones(8), np.zeros(8))[0] for h in (moved, -moved))
    offsets = 0.37 + 10.0 ** np.arange(4)
    forwards = {"naive": _naive, "lnlib": layer_norm_forward}
    N, D = 1024, 768
    ways = "forward", "backward"
    cost_of = {"textbook": "textbook", "lnlib.blocked": "blocked"}
    tokens, grain = rng.standard_normal((N, D)), np.ones(D)  # (N, D), (D,)
    (_, kept), first = trace(forward_means, tokens, grain, grain)
    _, second = trace(lambda dy: backward_means(dy, kept), tokens)
    single = tokens.astype("f")
    kept_by_us = layer_norm_forward(single, *np.ones((2, D), "f"))[1]
    centred = single - single.mean(axis=-1, keepdims=True)  # both factors of xc * xc
    held = {"automatic differentiator": (centred, *kept_by_us), "our own cache": kept_by_us}
    return {
        "jacobian": (up - down).T / 2e-5,  # (8, 8)
        "kept": {name: sum(a.nbytes for a in arrays) / 2**20 for name, arrays in held.items()},
        "output errors": (
            offsets,
            {n: [_error_at(o, f) for o in offsets] for n, f in forwards.items()},
        ),
        "moved": {
            name: sum(cost(variant, way, N, D).nbytes for way in ways) / (4 * N * D)
            for name, variant in cost_of.items()
        },
        # fused: forward; backward, and column_sums
        "kernels": {"textbook": sum(s.flops >= N * D for s in first + second), "fused": 3},
    }


def _naive(x, gamma, beta, eps=1e-5):
    rstd = 1 / np.sqrt(variance.naive(x) + eps)[:, None]  # (N, 1)
    return gamma * (x - x.mean(axis=-1, keepdims=True)) * rstd + beta, None  # (N, D)


def _error_at(offset, forward):
    """Return the largest error of 64 rows of y in float32, relative to their largest entry."""
    x = (offset + np.random.default_rng(1).standard_normal((64, 256))).astype(np.float32)
    ones, zeros = np.ones(256, np.float32), np.zeros(256, np.float32)
    right, _ = layer_norm_forward(x.astype(np.float64), ones, zeros)
    return np.abs(forward(x, ones, zeros)[0] - right).max() / np.abs(right).max()


def road_map():
    """Draw the lessons: the main road from left to right, the side roads down from it."""
    main = {
        "00": "start", "01": "formula", "02": "code", "03": "checks",
        "04": "digits", "06": "cost", "08": "kernel", "10": "RMSNorm",
    }  # fmt: skip
    side = {"02": ("11", "training"), "04": ("05", "every digit")}
    side |= {"06": ("07", "faster"), "08": ("09", "speed")}
    fig, ax = plt.subplots(figsize=(6.8, 2.1))
    ax.plot([0, len(main) - 1], [0, 0], color=BLUE, lw=6, zorder=1)
    for place, (number, subject) in enumerate(main.items()):
        _draw_station(ax, (place, 0), number, subject, 0.5, BLUE)
        if number in side:
            ax.plot([place, place], [0, -1], ":", color=RED, lw=4, zorder=0)
            _draw_station(ax, (place, -1), *side[number], -0.5, RED)
    ax.set(xlim=(-0.45, 7.6), ylim=(-1.7, 0.7))
    ax.set_axis_off()


def _draw_station(ax, place, number, subject, above, color):
    ax.plot(*place, "o", ms=25, mfc="white", mec=color, mew=3)
    ax.text(*place, number, ha="center", va="center_baseline", fontsize=13, weight="bold")
    ax.text(place[0], place[1] + above, subject, ha="center", va="center", fontsize=12.5)


# The graph of y: where its nodes stand, how they are written, and what enters where.
GRAPH = {
    "x": ((0, 2), "x"),
    "mean": ((1.4, 0), r"\mathrm{mean}"),
    "xc": ((2.8, 2), "x_c"),
    "var": ((3.8, 0), r"\mathrm{var}"),
    "rstd": ((5.8, 0), r"\mathrm{rstd}"),
    "x_hat": ((5.8, 2), r"\hat{x}"),
    "gamma": ((7.2, 0), r"\gamma"),
    "beta": ((9.6, 0), r"\beta"),
    "y": ((8.4, 2), "y"),
}
ARROWS = "x-mean x-xc mean-xc xc-var var-rstd rstd-x_hat xc-x_hat x_hat-y gamma-y beta-y".split()
OF_THE_ROW = {"mean", "var", "rstd"}  # one number for the whole row


def line_of(*names):
    """Return the colour and the style of a node's edge, or of an arrow between two nodes.

    What the row shares, red, is dashed for those who see no colours.
    """
    return (RED, (0, (3, 1.2))) if OF_THE_ROW.intersection(names) else (BLUE, "-")


def computation_graph(title):
    """Draw the graph of y."""
    fig, ax = plt.subplots(figsize=(7.2, 3.2))
    patches = {}
    for name, (place, symbol) in GRAPH.items():
        style = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": GREY, "lw": 1.5}
        box = ax.text(*place, f"${symbol}$", ha="center", va="center", fontsize=19, bbox=style)
        patches[name] = box.get_bbox_patch()
    for arrow in ARROWS:
        start, end = arrow.split("-")
        color, line = line_of(start, end)
        style = {"arrowstyle": "-|>", "lw": 2.5, "color": color, "ls": line, "shrinkA": 3}
        style |= {"shrinkB": 3, "patchA": patches[start], "patchB": patches[end]}
        ax.annotate("", GRAPH[end][0], GRAPH[start][0], arrowprops=style)
    ax.set(xlim=(-0.6, 10.1), ylim=(-0.3, 2.3), title=title)
    ax.axis("off")
    return fig, ax


def sharing_a_mean():
    """Draw two (B, T, D) blocks: the numbers that share a mean in LayerNorm and in BatchNorm."""
    fig, axes = plt.subplots(1, 2, figsize=(8, 4), subplot_kw={"projection": "3d"})
    t, d, b = np.indices((4, 6, 3))
    shared = {"LayerNorm": (b == 2) & (t == 3), "BatchNorm": d == 0}
    for ax, (name, group) in zip(axes, shared.items()):
        colors = np.where(group, ORANGE, "#e4edf5")
        ax.voxels(np.ones(group.shape), facecolors=colors, edgecolor=BLACK, lw=0.7, shade=False)
        ax.set_box_aspect((4, 6, 3), zoom=1.15)
        ax.axis("off")
        places = {"$T$": (1.5, -1.2, -0.6), "$D$": (4.6, 3, -0.6), "$B$": (-0.7, 0, 1)}
        for axis, place in places.items():
            ax.text(*place, axis, fontsize=20)
        ax.set_title(name, loc="center")
    fig.suptitle("Which numbers share one mean?", weight="bold", x=0.02, ha="left")
    return fig, axes


def matrix(ax, values, title, limit):
    """Show a matrix as a heat map from -limit (red) over 0 (white) to limit (blue)."""
    image = ax.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit)
    ax.set_title(title)
    ax.set(xlabel="column: the x that moves", ylabel=r"row: the $\hat{x}$ that answers")
    ax.grid(False)
    return image


# What shows a picture that moves without a kernel: frame after frame, each a piece of SVG.
MOVING = """<div id="{name}"><img alt="{alt}" style="width: {width}px; max-width: 100%"
 src="data:image/svg+xml,{still}"><br><script>
(() => {{
  const root = document.getElementById("{name}"), head = {head}, frames = {frames};
  const make = (tag, what) => root.appendChild(Object.assign(document.createElement(tag), what));
  const button = make("button", {{textContent: "play"}});
  const slider = make("input", {{type: "range", max: frames.length - 1, defaultValue: {first}}});
  slider.ariaLabel = "{label}";
  slider.style = "width: 70%; max-width: 480px; vertical-align: middle";
  slider.oninput = () => {{
    const picture = head + frames[slider.value] + "</svg>";
    root.firstChild.src = "data:image/svg+xml," + encodeURIComponent(picture);
  }};
  const next = () => {{ slider.value = (+slider.value + 1) % frames.length; slider.oninput(); }};
  let timer;
  button.onclick = () => {{
    button.textContent = timer ? "play" : "pause";
    timer = timer ? clearInterval(timer) : setInterval(next, 120);
  }};
}})();
</script></div>"""


def _moving(name, label, alt, width, head, frames, first=0):
    """Return a picture that moves: SVG that begins with head and goes on with one of the frames.

    It has a button and a slider. Where no scripts run, the first frame stands alone.
    """
    from IPython.display import HTML

    script = [json.dumps(part).replace("</", r"<\/") for part in (head, frames)]
    still = quote(head + frames[first] + "</svg>")
    text = {"name": name, "label": escape(label), "alt": escape(alt), "width": width}
    return HTML(MOVING.format(**text, still=still, first=first, head=script[0], frames=script[1]))


def losing_two_parts(x_hat, g, dx, alt):
    """Draw in space what g loses while x_hat goes round its circle: a picture that moves.

    Parameters
    ----------
    x_hat, dx : ndarray, shape (n, 3)
        Places on the circle, one after the other, and what is left of g at each of them.
    g : ndarray, shape (3,)
        The gradient at x_hat, the same for all places.
    alt : str
        What the picture shows, for those who hear the page.

    Returns
    -------
    IPython.display.HTML
        The picture, with a button and a slider; the first frame alone where no scripts run.
    """
    up, ink, grey = np.ones(3) / np.sqrt(3), "#1d2733", "#5d6b7a"
    axes = np.array([[1, -1, 0] / np.sqrt(2), [1, 1, -2] / np.sqrt(6), up])  # (3, 3)
    view = np.array([[87, -41, 0], [-19, -41, -85]]) @ axes  # (2, 3), pixels

    def line(color, width, *points, more=""):
        places = "L".join("{:.0f} {:.0f}".format(*(view @ point + (320, 300))) for point in points)
        return f'<path d="M{places}" stroke="{color}" stroke-width="{width}" fill="none" {more}/>'

    def arrow(color, width, *points):
        return line(color, width, *points, more=f'marker-end="url(#{color[1:]})"')

    def word(text, place, color=ink):
        return '<text x="{:.0f}" y="{:.0f}" fill="{}">{}</text>'.format(*place, color, text)

    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 485" font-size="26" '
    head += 'font-family="sans-serif"><rect width="640" height="485" fill="white"/>'
    for color in (RED, BLUE, GREEN, grey):
        head += f'<marker id="{color[1:]}" viewBox="0 0 9 9" refX="8" refY="4.5" orient="auto" '
        head += 'markerWidth="15" markerHeight="15" markerUnits="userSpaceOnUse">'
        head += f'<path d="M0 0L9 4.5L0 9z" fill="{color}"/></marker>'
    corners = 2.15 * np.array([[1, 1], [1, -1], [-1, -1], [-1, 1], [1, 1]]) @ axes[:2]  # (5, 3)
    head += line("#c9d2dc", 2, *corners) + line(ink, 2, *x_hat, x_hat[0])
    head += arrow(grey, 2, -0.45 * up, 2.95 * up) + word("axis of ones", (332, 60), grey)
    head += word("plane of the rows with mean 0", (20, 472), grey)
    head += '<text x="20" y="30" font-weight="bold">What is left of g?</text>'
    legend = {"g": RED, "g &#8722; mean(g)": BLUE, "dx / rstd": GREEN, "what g loses": grey}
    for k, (text, color) in enumerate(legend.items()):
        dash = 'stroke-dasharray="5 4"' * (color == grey)
        head += f'<path d="M20 {56 + 33 * k}h36" stroke="{color}" stroke-width="3" {dash}/>'
        head += word(text, (66, 65 + 33 * k), color)
    frames = []
    for start, left in zip(x_hat, dx):
        level = start + g - g.mean()  # (3,)
        dashed = line(grey, 2, start + g, level, start + left, more='stroke-dasharray="5 4"')
        frame = line(ink, 1.5, 0 * start, start) + dashed + arrow(RED, 3, start, start + g)
        frame += arrow(BLUE, 3, start, level)
        frame += arrow(GREEN, 5, start, start + left) * bool(left @ left > 1e-3)  # no tip alone
        x, y = view @ start + (320, 300)
        frame += f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6"/>' + word("x&#770;", (x - 7, y + 34))
        frames.append(frame)
    return _moving("losing-two-parts", "place of x-hat on its circle", alt, 640, head, frames)


def variance_errors(title, dtype, measured, predicted, unit, **colors):
    """Draw errors of the variance against kappa: lines are predicted, points are measured.

    The band between the first two formulas, naive and two-pass, is shaded.

    Parameters
    ----------
    title : str
        The question that the figure answers.
    dtype : type
        The format of the rows.
    measured : dict
        A formula, which is a function -> {dtype: (kappa, errors)}.
    predicted : dict
        A formula -> its error, as a function of u and kappa.
    unit : dict
        A dtype -> its rounding unit u.
    **colors : str
        The color of each formula that is drawn, by its name.
    """
    u = unit[dtype]
    fig, ax = plt.subplots(figsize=(6.6, 5.4))
    along, limits = np.logspace(-2, 0.6 - np.log10(u), 400), np.array([u / 5, 1.0])
    lines = {formula: error(u, along) for formula, error in predicted.items()}
    high, low, *_ = lines.values()  # (400,) each
    ax.fill_between(along, low, np.fmin(high, 1), where=low < 1, color="#e4eaf3", lw=0)
    # a marker, a label, and where it stands: kappa and error as powers of 1 / u, and the side
    places = {
        "naive": ("o", "naive", 0.22, -0.4, "right"),
        "two_pass": ("s", "two-pass", 0.76, -0.55, "left"),
        "corrected": ("D", "corrected", 0.86, -0.86, "center"),
        "welford": ("^", "Welford", 0.36, -0.72, "left"),
    }
    for formula, line in lines.items():
        marker, label, power_of_kappa, power_of_error, side = places[formula.__name__]
        color = colors.get(formula.__name__)
        if color:
            ax.plot(along, line, color=color, lw=2)
            ax.plot(*measured[formula][dtype], marker, ms=8, color=color)
        if color or formula.__name__ in ("naive", "two_pass"):  # the edges of the band
            look = {"color": color or GREY, "size": 16, "weight": "bold", "ha": side}
            ax.text(u**-power_of_kappa, u**-power_of_error, label, va="center", **look)
    decades = 2 if u > 1e-9 else 4
    ax.set(xscale="log", yscale="log", xlim=(along[0] / 2, along[-1]), ylim=limits, title=title)
    ax.set(xlabel=r"$\kappa$ = |mean| / std", ylabel="relative error of the variance")
    digits = np.arange(0, -np.log10(u) + 1, decades)
    ax.set(xticks=10.0**digits, yticks=10.0**-digits)
    right = ax.twinx()
    right.set(ylim=-np.log10(limits), yticks=digits, ylabel="correct decimal digits")
    for either in ax, right:
        either.minorticks_off()
    right.tick_params(length=0)
    right.grid(False)
    return fig, ax


def errors_of_y(offsets, textbook, recentred, storing, by_row):
    """Draw the largest errors of y at each offset, and below those of three rows, entry by entry.

    by_row : (N, D), the errors of the textbook's y at an offset of 1e4; rows near 0 are left out.
    """
    fig, (ax, below) = plt.subplots(2, 1, figsize=(7, 8), height_ratios=(3, 2))
    ax.loglog(offsets, textbook, "o-", color=RED, label="algorithm: centred once (textbook)")
    ax.loglog(offsets, recentred, "s-", color=GREEN, label="algorithm: centred twice")
    ax.loglog(offsets, storing, "D--", color=GREY, label="data: storing x in float32")
    ax.axhline(2.0**-24, color=BLACK, ls=":", lw=2, label="rounding unit u")
    ax.set(xlabel="offset added to all x (spread 1)", ylabel="largest error of y / largest |y|")
    ax.set_title("How many digits of y are left?")
    off = np.abs(by_row).max(axis=1)  # (N,)
    for row, marker in zip(by_row[off > off.max() / 10], "o^s"):
        below.plot(1e4 * row[:60], marker, color=RED, mfc="white", ms=5)
    below.set(xlabel="entry", ylabel=r"relative error ($10^{-4}$)")
    below.set_title("Centred once, offset $10^4$: does the error vary?")
    fig.legend(loc="outside lower center", ncols=2)
    return fig, (ax, below)


def waterfall(bits, lines, inputs, forward, title, before=None):
    """Draw correct bits, (lines, inputs), line by line, as a shaded table.

    The first `forward` lines are those of the forward pass. Cells below 18 bits are dark, with
    white numbers. Where more than one bit has changed since `before`, an arrow leads from the old
    number to the new.
    """
    fig, ax = plt.subplots(figsize=(7.5, 6.6))
    shade = np.where(np.asarray(bits) < 18, np.asarray(bits) / 2, bits)  # nothing in between
    ax.imshow(shade, cmap="Blues_r", vmin=2, vmax=26, aspect="auto")
    for (line, column), number in np.ndenumerate(bits):
        old = number if before is None else before[line, column]
        arrow = f"{old:.0f} → " if abs(old - number) > 1.5 else ""
        ink, weight = ("white", "bold") if number < 18 else ("#404040", "bold" if arrow else None)
        shown = {"color": ink, "weight": weight, "ha": "center", "va": "center"}
        ax.text(column, line, f"{arrow}{number:.0f}", fontsize=14, **shown)
    for edge in range(1, len(inputs)):
        ax.axvline(edge - 0.5, color="white", lw=2)
    ax.axhline(forward - 0.5, color=BLACK, lw=2)
    for name, middle in ("forward", forward / 2), ("backward", (forward + len(lines)) / 2):
        ax.text(len(inputs) - 0.42, middle - 0.5, name, rotation=270, va="center", fontsize=14)
    ax.set_xticks(range(len(inputs)), inputs)
    ax.set_yticks(range(len(lines)), lines)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    fig.suptitle(title, weight="bold", x=0.02, ha="left")
    return fig, ax


def growth(sizes, seconds, single):
    """Draw the textbook's seconds for so many rows of 128; dotted: `single`, for one number."""
    fig, ax = plt.subplots(figsize=(7.2, 4.8))
    ax.loglog(sizes, np.multiply(seconds, 1e3), "o-", label="rows of 128 numbers")
    ax.loglog(sizes, 0.75e3 * seconds[-1] * sizes / sizes[-1], "--", c=GREY, label="slope 1")
    ax.axhline(single * 1e3, c=BLACK, ls=":", label="for a single number")
    ax.set(xlabel="N, the number of rows", ylabel="forward + backward (ms)")
    ax.set_ylim(bottom=single * 300)
    ax.set_title("How does the textbook's time grow?")
    fig.legend(loc="outside lower center", ncols=3)
    plt.show()


def through_caches(sizes, through, size_of_x):
    """Draw {version: values through memory} against the sizes of simulated caches, in bytes."""
    _, ax = plt.subplots(figsize=(7.2, 5.2))
    for (variant, values), marker, color in zip(through.items(), "os", (BLUE, GREEN)):
        ax.semilogx(sizes / 2**20, values, marker + "-", base=2, color=color)
        words = {"color": color, "fontweight": "bold", "va": "center"}
        ax.text(1.15 * sizes[2] / 2**20, values[2] - 2 * (marker == "o"), variant, **words)
    ax.axhline(5, color=BLACK, ls=":", zorder=4)
    ax.text(0.5, 2.5, "5, the fewest", va="center")
    ax.axvline(size_of_x / 2**20, color=ORANGE, ls="--")
    ax.text(0.92 * size_of_x / 2**20, 12, "size of x", ha="right")
    ax.set(xlabel="size of the cache (MiB)", ylabel="values through memory, per element", ylim=0)
    ax.set_xlim(right=1.25 * sizes[-1] / 2**20)
    ax.set_xticks(sizes / 2**20, [f"{size / 2**20:g}" for size in sizes])
    ax.set_title("How large a cache does each version need?")
    plt.show()


def paces(pace):
    """Draw {bytes touched: {loop: GB per second}}, each loop's name and last pace at the right."""
    _, ax = plt.subplots(figsize=(7.2, 5.2))
    touched = np.array(list(pace))
    styles = {"read": ("o-", BLUE), "in place": ("s-", RED), "copy": ("^-", GREEN)}
    styles["streaming copy"] = "D--", PURPLE
    drawn = [value for each in pace.values() for value in each.values()]
    apart = (max(drawn) / min(drawn)) ** 0.085  # of two names, the factor
    free = 0  # the lowest place for a name
    ends = pace[touched[-1]]
    for name in sorted(ends, key=ends.get):
        style, color = styles[name]
        ax.loglog(touched / 2**20, [pace[n][name] for n in touched], style, color=color)
        free = max(apart * free, ends[name])
        words = {"color": color, "fontweight": "bold", "va": "center", "linespacing": 0.95}
        label = f"{name} {ends[name]:.0f}".replace(" c", "\nc")
        ax.text(1.25 * touched[-1] / 2**20, free, label, **words)
    ax.set_xscale("log", base=2)
    _mark_caches(ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    ax.set_yticks([5, 10, 20, 50, 100, 200, 500])
    ax.set_ylim(0.65 * min(drawn), 1.25 * max(drawn))
    ax.minorticks_off()
    ax.set(xlabel="arrays touched (MiB)", ylabel="pace (GB per second)")
    ax.set_title("How fast can one core read and write?", pad=24)
    plt.show()


def _mark_caches(ax):
    """Mark L2 and L3 of this machine on an axis in MiB, where Linux tells their sizes."""
    found = {}
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        level = file.with_name("level").read_text().strip()
        found[f"L{level}"] = int(file.read_text().strip("K\n")) / 1024
    for name in found.keys() & {"L2", "L3"}:
        ax.axvline(found[name], color=GREY, ls="--", lw=1.5)
        ax.text(found[name], 1.01, name, transform=ax.get_xaxis_transform(), ha="center")


def bills(parts, times, copy):
    """Draw {version: {part: ns}} as stacked bars, {version: ns} as strokes, a copy as a line."""
    fig, ax = plt.subplots(figsize=(8.6, 5.4))
    looks = (BLUE, ""), (SKY, ""), (ORANGE, "//"), ("white", "..")
    left = np.zeros(len(parts))
    for part, (color, hatch) in zip([*parts.values()][0], looks):
        widths = np.array([of_one[part] for of_one in parts.values()])
        style = {"color": color, "hatch": hatch, "edgecolor": BLACK, "lw": 1}
        ax.barh(range(len(parts)), widths, 0.6, left, label=part, **style)
        left += widths
    places = range(len(times))
    ax.plot([*times.values()], places, "|", ms=34, mew=3, color=BLACK, label="measured")
    ax.axvline(copy, color=PURPLE, ls=":", lw=2.5, label="a copy")
    ax.set_yticks(places, [f"{name}\n{ns:.2f} ns" for name, ns in times.items()])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="ns an element", xlim=(0, None))
    ax.set_title("What does each version pay for?")
    handles = [*ax.containers, *ax.lines]
    fig.legend(handles=handles, loc="outside lower center", ncols=3, markerscale=0.5)
    plt.show()


def under_the_roof(points, memory, arithmetic):
    """Draw {program: (FLOP per byte, GFLOP/s)} under memory's rising and arithmetic's level roof.

    memory is {loop: GB/s}, of which the fastest is the roof and the goal's a dashed line;
    arithmetic in GFLOP/s. A dotted line from there to a program says how much slower it goes.
    """
    look = {  # marker, colour, and where the name stands
        "textbook": ("o", BLUE, (14, -2)),
        "blocked": ("s", GREEN, (14, -6)),
        "compiled": ("D", ORANGE, (10, -22)),
        "goal": ("*", PURPLE, (-16, 4)),
        "product": ("^", RED, (-6, -28)),
    }
    measured = len(memory) > 1
    _, ax = plt.subplots(figsize=(7.2, 6 if measured else 4.6))
    fastest = max(memory, key=memory.get)
    corner = arithmetic / memory[fastest]
    least, most = (0.022, 5 * corner) if measured else (0.06, 400)
    intensity = np.geomspace(least, most, 400)
    ax.loglog(intensity, roofline(intensity, memory[fastest], arithmetic), color=BLACK, lw=2)
    ax.text(most if measured else 40, 1.15 * arithmetic, f"{arithmetic:.0f} GFLOP/s", ha="right")
    ax.set(xlabel="arithmetic intensity (FLOP per byte)", ylabel="GFLOP per second")
    ax.set_title(
        "Who comes near the goal?" if measured else "How fast can each program be?", pad=26
    )
    ax.set_xlim(0.8 * least, 1.25 * most)
    ax.set_ylim(0.4 * min(rate for _, rate in points.values()), 2 * arithmetic)
    ax.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5), numticks=20))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.plot([corner, corner], [arithmetic, 2 * arithmetic], ":", color=GREY, lw=2)
    above = {"y": 1.02, "transform": ax.get_xaxis_transform()}
    if measured:
        ax.text(corner, s=f"corner: {corner:.1f}", ha="center", **above)
        ax.figure.canvas.draw()  # which places the axes
        (left, bottom), (right, top) = ax.transData.transform([(0.1, 1), (1, 10)])
        angle = np.degrees(np.arctan2(top - bottom, right - left))  # of both lines
        pace = points["goal"][1] / points["goal"][0]
        ends = np.array([least, arithmetic / pace])
        ax.plot(ends, pace * ends, "--", color=PURPLE, lw=2)  # as its copy in `paces`
        places = {fastest: (0.033, "bottom")}
        places.setdefault(min(memory, key=lambda name: abs(memory[name] - pace)), (0.165, "top"))
        for name, (at, va) in places.items():
            words = f"{name}, {memory[name]:.0f} GB/s"
            turned = {"va": va, "rotation": angle, "rotation_mode": "anchor"}
            away = 1.06 if va == "bottom" else 0.82
            ax.text(at, away * at * memory[name], words, **turned)
        for name, (at, rate) in points.items():
            share = rate / at / pace
            if share < 0.9:  # a line from the goal's pace down to the program
                ax.plot([at, at], [rate, pace * at], ":", color=look[name][1], lw=2)
                ax.annotate(
                    f"{share:.0%}",
                    (at, rate / share**0.5),
                    (7, 0),
                    textcoords="offset points",
                    va="center",
                    color=look[name][1],
                )
    else:
        for side, word in (("right", "bytes set the limit  "), ("left", "  FLOPs set the limit")):
            ax.text(corner, s=word, ha=side, **above)
        ax.text(1.1 * corner, 0.85 * arithmetic, f"corner: {corner:g}", va="top")
        ax.text(0.42, 0.6 * memory[fastest], f"{memory[fastest]} GB/s", ha="right")
    for name, at in points.items():
        marker, color, offset = look[name]
        ms = 16 if marker == "*" else 12
        ax.plot(*at, marker, ms=ms, color=color, mew=2, zorder=3)
        style = {"color": color, "ha": "left" if offset[0] > 0 else "right"}
        style |= {"fontsize": 16, "fontweight": "bold"}
        ax.annotate(name, at, offset, textcoords="offset points", **style)
    plt.show()


def table(*rows):
    """Return rows of words and numbers, the head first, as an IPython.display.Markdown."""
    from IPython.display import Markdown

    lines = [" | ".join(map(str, row)) for row in rows]
    lines.insert(1, ":--" + " | --:" * (len(rows[0]) - 1))
    return Markdown("\n".join(f"| {line} |" for line in lines))


def verdicts(caught, rows, columns, title=None):
    """Show a table of booleans: a full blue dot says "caught" (True), an orange ring "missed"."""
    caught = np.asarray(caught)
    width = 0.3 + 0.115 * max(map(len, rows)) + max(0.92 * len(columns), 3)  # inches
    fig, ax = plt.subplots(figsize=(width, 1.6 + 0.265 * len(rows)))
    dots = (caught, BLUE, BLUE, "caught"), (~caught, RED, "white", "missed")
    for shown, color, face, label in dots:
        i, j = np.nonzero(shown)
        ax.scatter(j, i, s=130, color=color, facecolor=face, lw=2.5, label=label)
    ax.set(xlim=(-0.6, len(columns) - 0.4), ylim=(len(rows) - 0.4, -0.6))
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(columns)), [textwrap.fill(name, 9) for name in columns])
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0, labelsize=13.5)
    ax.tick_params(axis="x", labelsize=12.5)
    ax.spines[:].set_visible(False)
    title = title or "Which check catches which bug?"
    fig.suptitle(title, weight="bold", x=0.02, ha="left")
    fig.legend(loc="upper right", bbox_to_anchor=(1, 1.02), ncols=2, fontsize=13.5)
    return fig, ax


def band(ax, x, values, label, marker, color):
    """Draw the median of some seeds as a line, and the range of all; values: (len(x), seeds)."""
    low, high = values.min(axis=1), values.max(axis=1)
    ax.fill_between(x, low, high, color=color, alpha=0.18, lw=0)
    ax.plot(x, np.median(values, axis=1), marker + "-", color=color, label=label)


def trained_bugs(found, names, rates, limit, last):
    """Draw, for lesson 11, the test accuracies of the networks that were trained with each bug.

    Parameters
    ----------
    found : dict of str to array_like
        A name -> the accuracies of some seeds, in percent.
    names : list of str
        One for each row, from above; the first is "right".
    rates : dict of str to float
        A name -> the learning rate, which stands beside the row.
    limit : float
        A row is green if its median is at least this, and orange if it is less.
    last : str
        The name of a bug that stops with an error, for the last row.
    """
    fig, ax = plt.subplots(figsize=(7.4, 6))
    ax.axvspan(limit, 100, color=GREEN, alpha=0.22, lw=0)
    ax.axhline(0.5, color=GREY, lw=1)
    for x, text in (103, "median"), (128, "rate"):
        ax.text(x, -1.1, text, va="center", fontsize=12)
    for k, name in enumerate(names):
        middle = np.median(found[name])
        marker, color = ("o", GREEN) if middle >= limit else ("s", RED)
        ax.plot(found[name], [k] * len(found[name]), "|-", color=color, lw=2, ms=12, alpha=0.6)
        ax.plot(middle, k, marker, ms=7, color=color, mec="white", mew=0.5)
        rate = np.format_float_positional(rates[name], trim="-")
        ax.text(103, k, f"{middle:.0f} %", va="center", fontsize=12)
        ax.text(128, k, rate, va="center", fontsize=12)
    ax.text(1, len(names), "stops with an error", va="center", fontsize=12)
    ax.set(xlim=(0, 100), ylim=(len(names) + 0.6, -0.6))
    ax.set(xticks=range(0, 101, 20), xlabel="test accuracy after six epochs (%)")
    ax.set_yticks(range(len(names) + 1), [*names, last])
    ax.minorticks_off()
    return fig, ax
