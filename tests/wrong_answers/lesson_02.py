"""Wrong answers to lesson 02 that no table has: what was changed in the solution, and the words."""

WRONG = {
    "forward_by_hand": [
        ("x_hat, rstd", "rstd, x_hat", "this is what rstd should be; the order is y, x_hat, rstd"),
    ],
    "backward_by_hand": [
        ("g - mean_g", "g + mean_g", "it is rstd * (g + mean(g) - x_hat mean(g x_hat)). Not right"),
        ("rstd * (g", "gamma * rstd * (g", "Not right in this: what stands in front."),
        ("axis=(0, 1)", "axis=0", "dgamma, dbeta: shape (3, 5) where (5,) is asked"),
        ("g = gamma * dy", "dy *= gamma; g = dy", "changes dy in place"),
    ],
    "backward_from_y": [
        (  # lnlib's backward pass has other numbers where x_hat is wrong
            "(y - beta) / gamma  # (B, T, D)\n    return backward_by_hand(dy, x_hat, rstd, gamma)",
            "y\n    from lnlib.layernorm import LayerNormCache\n"
            "    return layer_norm_backward(dy, LayerNormCache(x_hat, rstd, gamma))",
            "dx, dgamma: y is taken for x_hat",
        ),
    ],
}
