"""Figure style, and the figures whose plumbing would drown a lesson."""

import matplotlib.pyplot as plt
import numpy as np

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


def story(jacobian, kept, gradient_errors, output_errors, moved, passes):
    """Draw the course in six panels: a matrix, three pairs of bars, two sets of curves."""
    fig, axes = plt.subplots(2, 3, figsize=(15, 8.4))
    limit = np.abs(jacobian).max()
    axes[0, 0].imshow(jacobian, cmap="RdBu", vmin=-limit, vmax=limit)
    axes[0, 0].set(xlabel="the x that moves", ylabel="the output that answers")
    axes[0, 0].grid(False)
    bars = (
        (axes[0, 1], kept, "kept for backward (MiB)"),
        (axes[1, 1], moved, "values moved per element"),
        (axes[1, 2], passes, "passes over the data"),
    )
    for ax, values, unit in bars:
        shown = ax.bar(list(values), list(values.values()), 0.6, color=[RED, GREEN])
        ax.bar_label(shown, fmt="%.0f")
        ax.set(ylabel=unit, ylim=(0, 1.2 * max(values.values())))
        ax.grid(axis="x", visible=False)
    curves = (
        (axes[0, 2], gradient_errors, (RED, GREEN), "step h"),
        (axes[1, 0], output_errors, (RED, ORANGE, GREEN), "offset of x (spread 1)"),
    )
    for ax, (x, named), colors, xlabel in curves:
        for (label, values), color, width in zip(named.items(), colors, (5, 3, 2)):
            shown = np.nan_to_num(values, nan=1e3)  # not finite: at the upper edge
            ax.loglog(x, shown, "o-", color=color, lw=width, label=label)
        ax.set(xlabel=xlabel, ylabel="relative error")
        ax.legend(fontsize=12)
    questions = (
        "Who answers whom?",
        "What must be kept?",
        "Is the gradient right?",
        "Where do the digits go?",
        "What does it cost?",
        "How few passes?",
    )
    for number, (ax, question) in enumerate(zip(axes.flat, questions), start=1):
        ax.set_title(f"{number:02} · {question}")
    return fig, axes


def computation_graph():
    """Draw the graph of y: boxes for the nodes, arrows for what enters where."""
    fig, ax = plt.subplots(figsize=(11, 3.6))
    nodes = {
        "x": (0, 1),
        "mean": (1.5, 0),
        "xc": (3, 1),
        "var": (4.5, 0),
        "rstd": (6, 0),
        "x_hat": (7.5, 1),
        "y": (9.5, 1),
        "gamma": (8.5, 2),
        "beta": (10.5, 2),
    }
    labels = {
        "x": "$x$",
        "mean": r"$\mathrm{mean}$",
        "xc": "$x_c$",
        "var": r"$\mathrm{var}$",
        "rstd": r"$\mathrm{rstd}$",
        "x_hat": r"$\hat{x}$",
        "y": "$y$",
        "gamma": r"$\gamma$",
        "beta": r"$\beta$",
    }
    arrows = "x-mean x-xc mean-xc xc-var var-rstd rstd-x_hat xc-x_hat x_hat-y gamma-y beta-y"
    for arrow in arrows.split():
        start, end = arrow.split("-")
        through_statistics = {start, end} & {"mean", "var", "rstd"}
        ax.annotate(
            "",
            nodes[end],
            nodes[start],
            arrowprops={
                "arrowstyle": "-|>",
                "lw": 2.5,
                "shrinkA": 30,
                "shrinkB": 32,
                "color": RED if through_statistics else BLUE,
            },
        )
    for name, (column, row) in nodes.items():
        box = {"boxstyle": "round,pad=0.45", "fc": "white", "ec": GREY, "lw": 1.5}
        ax.text(column, row, labels[name], ha="center", va="center", fontsize=18, bbox=box)
    ax.set(xlim=(-0.6, 11.1), ylim=(-0.5, 2.5))
    ax.set_title(r"Along how many paths does $\mathbf{x}$ reach $\mathbf{\hat{x}}$?")
    ax.axis("off")
    return fig, ax


def matrix(ax, values, title, limit):
    """Show a matrix as a heat map from -limit (red) over 0 (white) to limit (blue)."""
    image = ax.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit)
    ax.set_title(title)
    ax.set(xlabel="column: the x that moves", ylabel=r"row: the $\hat{x}$ that answers")
    ax.grid(False)
    return image


def tangent_circle(x_hat, g, tangent):
    """Draw, in the plane of centred rows for D = 3, which part of g survives; all three (2,)."""
    fig, ax = plt.subplots(figsize=(8, 5.6))
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.sqrt(3) * np.cos(angle), np.sqrt(3) * np.sin(angle), color=GREY, lw=1.5)
    ax.plot(*np.transpose([0 * x_hat, 1.6 * x_hat]), ":", color=GREY)
    ax.plot(*np.transpose([x_hat + g, x_hat + tangent]), "--", color=GREY)
    ax.plot(*x_hat, "o", color=BLACK, ms=10)
    ax.annotate(r"$\hat{x}$", x_hat, (-8, -26), textcoords="offset points", fontsize=20)
    arrows = (
        (g, ORANGE, "$g$ without its mean"),
        (tangent, BLUE, r"$dx\,/\,\mathrm{rstd}$"),
    )
    for vector, color, label in arrows:
        ax.quiver(*x_hat, *vector, color=color, angles="xy", scale_units="xy", scale=1, width=0.012)
        ax.plot([], [], color=color, lw=5, label=label)
    ax.set(xlim=(-2, 2.9), ylim=(-2, 2.9), xlabel="first axis of the plane", ylabel="second axis")
    ax.set_aspect("equal")
    ax.set_axisbelow(True)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    ax.set_title("Which part of the gradient survives?")
    return fig, ax


def number_line(ax, points, spacing, title, xlabel):
    """Show points (orange) above the grid of floats (grey) and where each of them is rounded to."""
    points = np.asarray(points, dtype=float)
    rounded = spacing * np.round(points / spacing)  # ties to even, as floats do
    grid = np.arange(min(0, rounded.min()), max(points.max(), rounded.max()) + spacing, spacing)
    ax.plot(grid, 0 * grid, "|", color=GREY, ms=30, mew=2)
    ax.plot(points, 0 * points + 1, "o", color=RED)
    for point, target in zip(points, rounded):
        ax.annotate("", (target, 0.12), (point, 0.92), arrowprops={"arrowstyle": "->", "lw": 1.5})
    ax.set(ylim=(-0.5, 1.3), yticks=[0, 1], yticklabels=["floats", "exact"], xlabel=xlabel)
    ax.set_xticks(grid)
    ax.grid(False)
    ax.set_title(title)


def log_points(ax, x, y, limits, marker, color, label=None):
    """Plot y on log axes; what is beyond the limits, or not finite, stands hollow at their edge."""
    x, y, (low, high) = np.asarray(x), np.nan_to_num(y, nan=np.inf), limits
    inside = (low <= y) & (y <= high)
    ax.loglog(x, np.where(inside, y, np.nan), marker, color=color, label=label)
    edge = np.clip(y, low, high)[~inside]
    ax.loglog(x[~inside], edge, marker[0], color=color, mfc="white", mew=1.5)


def x_hat_bars(ax, computed, stored, original, title):
    """Compare a computed row with the right one for the stored x and for x before it was stored."""
    index = np.arange(len(stored))
    finite = np.isfinite(computed)
    shown = np.clip(computed[finite], -4, 4)
    bars = ax.bar(index[finite], shown, color=SKY, label="computed")
    dashes = ax.plot(index, stored, "_", color=BLACK, ms=13, mew=3, label="right for the stored x")
    rings = ax.plot(index, original, "o", color=RED, mfc="none", label="right before storing")
    if not finite.all():
        ax.text(len(stored) / 2 - 0.5, 3, "not finite", ha="center", color=RED, weight="bold")
    ax.set(ylim=(-4, 4), xticks=[])
    ax.grid(axis="x", visible=False)
    ax.set_title(title, fontsize=13)
    return [bars, *dashes, *rings]


def verdicts(caught, rows, columns):
    """Show a table of booleans: a full blue dot says "caught" (True), an orange ring "missed"."""
    caught = np.asarray(caught)
    fig, ax = plt.subplots(figsize=(3.2 + 0.42 * len(columns), 2.6 + 0.34 * len(rows)))
    for shown, color, face, label in (
        (caught, BLUE, BLUE, "caught"),
        (~caught, RED, "white", "missed"),
    ):
        i, j = np.nonzero(shown)
        ax.scatter(j, i, s=130, color=color, facecolor=face, lw=2.5, label=label)
    ax.set(xlim=(-0.6, len(columns) - 0.4), ylim=(len(rows) - 0.4, -0.6))
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    fig.suptitle("Which check catches which bug?", weight="bold", x=0.02, ha="left")
    fig.legend(loc="outside lower center", ncols=2)
    return fig, ax
