"""Wrong answers to lesson 01 that no table has: what was changed in the solution, and the words."""

WRONG = {
    "centre_backward": [(", keepdims=True", "", "It stops with ValueError in line 3")],
    "jacobian_of_y": [
        ("gamma[:, None] * J", "(gamma[:, None] * J)[0]", "shape (5,) where (5, 5) is asked"),
    ],
    "dx_of_row": [
        ("g - g.mean() -", "g -", "no mean term"),
        ("g = gamma * dy  # (D,)\n    return", "g = dy\n    return gamma *", "gamma outside"),
        ("np.mean(g * x_hat)", "np.mean(g) * np.mean(x_hat)", "no projection term"),
        ("np.mean(g * x_hat)", "np.mean(g * x_hat**2)", "the largest error is at dx["),
    ],
}
