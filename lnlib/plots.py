"""Figure style, and the figures whose plumbing would drown a lesson."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

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


# The graph of y: where its nodes stand, how they are written, and what enters where.
GRAPH = {
    "x": ((0, 2), "x"),
    "mean": ((1.4, 0), r"\mathrm{mean}"),
    "xc": ((2.8, 2), "x_c"),
    "var": ((4.1, 0), r"\mathrm{var}"),
    "rstd": ((5.8, 0), r"\mathrm{rstd}"),
    "x_hat": ((5.8, 2), r"\hat{x}"),
    "gamma": ((7.2, 0), r"\gamma"),
    "beta": ((9.6, 0), r"\beta"),
    "y": ((8.4, 2), "y"),
}
ARROWS = "x-mean x-xc mean-xc xc-var var-rstd rstd-x_hat xc-x_hat x_hat-y gamma-y beta-y".split()


def computation_graph(title, nodes=None, edges=None, backward=False):
    """Draw the graph of y, with numbers at nodes and edges ("x-mean") if given.

    Backward, the arrows point from y to x, and each node is named by its gradient.
    """
    fig, ax = plt.subplots(figsize=(8.6, 5.2 if nodes else 3.4))
    patches = {}
    for name, (place, symbol) in GRAPH.items():
        text = f"$d{symbol}$" if backward else f"${symbol}$"
        if nodes:
            text += "\n" + numbers(nodes[name], "\n")
        style = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": GREY, "lw": 1.5}
        box = ax.text(
            *place, text, ha="center", va="center", fontsize=14 if nodes else 19, bbox=style
        )
        patches[name] = box.get_bbox_patch()
    for arrow in ARROWS:
        start, end = arrow.split("-")
        through_statistics = {start, end} & {"mean", "var", "rstd"}
        style = {"arrowstyle": "<|-" if backward else "-|>", "lw": 2.5, "shrinkA": 3, "shrinkB": 3}
        style |= {"patchA": patches[start], "patchB": patches[end]}
        style["color"] = RED if through_statistics else BLUE
        start, end = np.array(GRAPH[start][0]), np.array(GRAPH[end][0])
        ax.annotate("", end, start, arrowprops=style)
        if edges:
            middle = (start + end) / 2 + (0, 0.18 if start[1] == end[1] else 0)
            style = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"}
            text = numbers(edges[arrow], " ")
            ax.text(*middle, text, ha="center", va="center", fontsize=12, bbox=style)
    ax.set(xlim=(-0.6, 10.1), ylim=(-0.7, 2.7) if nodes else (-0.3, 2.3))
    ax.set_title(title)
    ax.axis("off")
    return fig, ax


def numbers(values, between):
    """Write a number, or a row of numbers, briefly."""
    text = between.join(f"{value + 0:g}" for value in np.ravel(values))  # + 0: no "-0"
    return text.replace("-", "\N{MINUS SIGN}")


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
        for place, axis in (
            ((1.5, -1.2, -0.6), "$T$"),
            ((4.6, 3, -0.6), "$D$"),
            ((-0.7, 0, 1), "$B$"),
        ):
            ax.text(*place, axis, fontsize=20)
        ax.set_title(name, loc="center")
    return fig, axes


def matrix(ax, values, title, limit):
    """Show a matrix as a heat map from -limit (red) over 0 (white) to limit (blue)."""
    image = ax.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit)
    ax.set_title(title)
    ax.set(xlabel="column: the x that moves", ylabel=r"row: the $\hat{x}$ that answers")
    ax.grid(False)
    return image


def tangent_circle(x_hat, g, tangent):
    """Draw, in the plane of centred rows for D = 3, which part of g survives; all three (2,)."""
    fig, ax = plt.subplots(figsize=(6.4, 6.6))
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.sqrt(3) * np.cos(angle), np.sqrt(3) * np.sin(angle), color=GREY, lw=1.5)
    ax.plot(*np.transpose([0 * x_hat, 1.6 * x_hat]), ":", color=GREY)
    ax.plot(*np.transpose([x_hat + g, x_hat + tangent]), "--", color=GREY, label="removed")
    ax.plot(*x_hat, "o", color=BLACK, ms=10)
    ax.annotate(r"$\hat{x}$", x_hat, (-8, -28), textcoords="offset points", fontsize=20)
    arrows = (
        (g, ORANGE, "$g$ without its mean"),
        (tangent, BLUE, r"$dx\,/\,\mathrm{rstd}$"),
    )
    for vector, color, label in arrows:
        ax.quiver(*x_hat, *vector, color=color, angles="xy", scale_units="xy", scale=1, width=0.014)
        ax.plot([], [], color=color, lw=5, label=label)
    ax.set(xlim=(-2, 3), ylim=(-2, 3), xlabel="first axis of the plane", ylabel="second axis")
    ax.set_aspect("equal")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=12)
    fig.suptitle("Which part of the gradient survives?", weight="bold", x=0.02, ha="left")
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


def x_hat_bars(ax, computed, truth, title):
    """Compare a computed row (blue bars) with the truth (black dashes); 'not finite' is said so."""
    index = np.arange(len(truth))
    finite = np.isfinite(computed)
    ax.bar(index[finite], np.clip(computed[finite], -4, 4), color=SKY)
    ax.plot(index, truth, "_", color=BLACK, ms=18, mew=3)
    if not finite.all():
        ax.text(len(truth) / 2 - 0.5, 3, "not finite", ha="center", color=RED, weight="bold")
    ax.set(ylim=(-4, 4), xticks=[])
    ax.grid(axis="x", visible=False)
    ax.set_title(title, fontsize=13)


def verdicts(caught, rows, columns):
    """Show a table of booleans: blue cells say "caught" (True), orange ones "missed" (False)."""
    fig, ax = plt.subplots(figsize=(13, 8))
    ax.pcolormesh(
        np.asarray(caught), cmap=ListedColormap(["#F6D5A8", "#A9D3EE"]), edgecolor="white", lw=2
    )
    for i, row in enumerate(caught):
        for j, value in enumerate(row):
            text = "caught" if value else "missed"
            ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=11)
    ax.invert_yaxis()
    ax.xaxis.tick_top()
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    for label in ax.get_xticklabels():
        label.set(rotation=35, ha="left", rotation_mode="anchor")
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    fig.suptitle("Which check catches which bug?", weight="bold", x=0.02, ha="left")
    return fig, ax
