"""Wrong answers to lesson 04 that no table has: what was changed in the solution, and the words."""

SHIFTED = "np.mean(d * d, axis=-1) - np.mean(d, axis=-1) ** 2"
START = "total = np.zeros_like(values[0])"

WRONG = {
    "shifted_variance": [
        ("x - x[..., :1]", "x - x[..., :1]; return np.var(d, axis=-1)", "Two passes, or a wider"),
        ("x[..., :1]", "np.mean(x, axis=-1, keepdims=True)", "Two passes, or a wider type?"),
        ("d = x", "x = x.astype(float); d = x", "right, but float64; the input is float32"),
        (  # Welford's algorithm: one pass, but its running mean is rounded
            "d = x - x[..., :1]  # (B, T, D)\n    return " + SHIFTED,
            "m = s = 0 * x[..., 0]\n    for k in range(x.shape[-1]):\n"
            "        d = x[..., k] - m; m = m + d / (k + 1); s = s + d * (x[..., k] - m)\n"
            "    return s / x.shape[-1]",
            "right for ordinary rows, for another shape, but for rows with an offset of 1e7",
        ),
    ],
    "merge_parts": [
        (  # other roundings than those of the known mistake
            "m2_a + m2_b + delta**2 * n_a * n_b / n",
            "(m2_a + n_a * mean_a**2) + (m2_b + n_b * mean_b**2) - n * mean * mean",
            "squares of the means are subtracted",
        ),
    ],
    "compensated_sum": [
        ("(t - total) - y", "t - (total + y)", "look at the parentheses"),
        (START, "return values.sum(axis=0, dtype='d').astype(values.dtype)", "by a wider type"),
        (START, "return sum(values.astype(np.longdouble)).astype(values.dtype)", "(longdouble)"),
        (START, "return np.ascontiguousarray(values.T).sum(-1)", "but for 800 small rows after"),
    ],
    "robust_x_hat": [
        ("np.mean(xc * xc", "1e-12 + np.mean(xc * xc", "but for an offset of a million"),
        (
            "_, exponent",
            "d = x.astype(float); d -= d.mean(-1, keepdims=True); d -= d.mean(-1, keepdims=True)\n"
            "    return (d / d.std(-1, keepdims=True)).astype(x.dtype)\n    _, exponent",
            "right for 8 of 9 inputs, but for float64 rows near 1e200",
        ),
    ],
}
