"""Wrong answers to lesson 00 that no table has: what was changed in the solution, and the words."""

WRONG = {
    "row_mean": [
        (", keepdims=True", "", "keepdims=True keeps it"),
        ("return x", "x *= 2; return x", "It changes x in place"),
    ],
    "mean_backward": [(" / D", " * D", "25 for D = 5, 49 for D = 7")],
}
