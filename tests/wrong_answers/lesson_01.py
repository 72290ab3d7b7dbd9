"""Wrong answers to lesson 01 that no table has: what was changed in the solution, and the words."""

WRONG = {
    "centre_backward": [(", keepdims=True", "", "It stops with ValueError in line 3")],
    "dx_of_row": [
        ("g = gamma * dy  # (D,)\n    return", "g = dy\n    return gamma *", "gamma outside"),
        ("np.mean(g * x_hat)", "np.mean(g * x_hat**2)", "the largest error is at dx["),
    ],
}
