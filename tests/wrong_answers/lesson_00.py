"""Wrong answers to lesson 00: what a learner changed in the solution, and what check must say."""

WRONG = {
    "row_mean": [
        (", keepdims=True", "", "keepdims=True keeps it"),
        ("axis=-1", "axis=0", "axis 0"),
        ("axis=-1", "axis=1", "axis 1"),
        ("axis=-1, keepdims=True", "", "one mean for the whole array"),
        ("mean(axis", "sum(axis", "not divided by D"),
        ("return x", "x *= 2; return x", "It changes x in place"),
        ("x.mean", "x.means", "AttributeError in line 3"),
    ],
    "shift_backward": [
        ("axis=(0, 1)", "axis=0", "the tokens are not summed"),
        ("axis=(0, 1)", "axis=1", "the sequences are not summed"),
        ("axis=(0, 1)", "axis=-1", "add up the rows"),
        ("axis=(0, 1)", "", "one number"),
        (".sum(", ".mean(", "not divided by B T"),
        ("axis=(0, 1)", "axis=(0, 1), keepdims=True", "shape (1, 1, 5) where (5,) is asked"),
    ],
    "mean_backward": [
        (" / D", "", "1/D of the mean is missing"),
        ("np.repeat(dm, D, axis=-1)", "dm", "must have the shape of x"),
        (" / D", " / (dm.size)", "divided by the number of rows"),
        (" / D", " * D", "25 for D = 5, 49 for D = 7"),
        ("axis=-1", "axis=1", "shape (2, 15, 1) where (2, 3, 5) is asked"),
    ],
}
