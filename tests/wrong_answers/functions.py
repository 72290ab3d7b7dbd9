"""Wrong answers that no table of mistakes has: what is changed in the solution, and the words.

They test the checker: two mistakes at once, judges, errors, shapes, results of another type.
"""

DIVIDED = "(f(plus) - f(minus)) / (plus[index] - minus[index])"
START = "total = np.zeros_like(values[0])"
NO_AXIS = "axis=tuple(range(dy.ndim - 1))"
CACHE = "z, {}\n\n    def backward(dy, dz, cache):\n        z, rstd, gamma = {}"
KEPT = CACHE.format("(z, rstd, gamma)", "cache")

WRONG = {
    "row_mean": [(", keepdims=True", "", "keepdims=True keeps it")],
    "backward_by_hand": [
        ("g - mean_g", "g + mean_g", "it is rstd * (g + mean(g) - x_hat * mean(g * x_hat)). Not"),
        ("rstd * (g", "gamma * rstd * (g", "Not right in this: what stands in front."),
    ],
    "prenorm_backward": [
        (
            "dz + dx,",
            "dz + layer_norm_backward(dz, cache),",
            "is one of them a tuple, as a function",
        ),
    ],
    "central_difference": [
        (  # two mistakes at once, of which one does not show in the first case
            f"minus[index] -= h\n        gradient[index] = {DIVIDED}",
            "minus[index] -= h; plus[...], minus[...] = x + h, x - h\n        "
            "gradient[index] = (f(plus) - f(minus)) / (2 * h)",
            "all entries move at once",
        ),
        (  # Richardson's extrapolation
            DIVIDED,
            "(8 * (f(plus) - f(minus)) - f(2 * plus - x) + f(2 * minus - x)) / "
            "(6 * (plus[index] - minus[index]))",
            "this is nearer to the derivative than steps of h can come",
        ),
    ],
    "shifted_variance": [
        ("x - x[..., :1]", "x - x[..., :1]; return np.var(d, axis=-1)", "Two passes, or a wider"),
        ("x[..., :1]", "np.mean(x, axis=-1, keepdims=True)", "Two passes, or a wider type?"),
        ("d = x", "x = x.astype(float); d = x", "right, but float64; the input is float32"),
        (  # Welford's algorithm: one pass, but its running mean is rounded
            "d = x - x[..., :1]",
            "m = s = 0 * x[..., 0]\n    for k in range(x.shape[-1]):\n"
            "        d = x[..., k] - m; m = m + d / (k + 1); s = s + d * (x[..., k] - m)\n"
            "    return s / x.shape[-1]\n    d = x",
            "right for ordinary rows, for another shape, but for rows with an offset of 1e7",
        ),
    ],
    "compensated_sum": [
        ("(t - total) - y", "t - (total + y)", "look at the parentheses"),
        (START, "return values.sum(axis=0, dtype='d').astype(values.dtype)", "by a wider type"),
        (  # a float64 accumulator by default
            f"{START}  # (D,)",
            "total, excess = np.zeros((2, values.shape[1]))\n    for row in values:\n"
            "        y = row - excess; t = total + y; excess = (t - total) - y; total = t\n"
            "    return total.astype(values.dtype)",
            "by a wider type",
        ),
        (START, "return np.ascontiguousarray(values.T).sum(-1)", "but for 800 small rows after"),
    ],
    "robust_x_hat": [
        (
            "_, exponent",
            "d = x.astype(float); d -= d.mean(-1, keepdims=True); d -= d.mean(-1, keepdims=True)\n"
            "    return (d / d.std(-1, keepdims=True)).astype(x.dtype)\n    _, exponent",
            "right for 8 of 9 inputs, but for float64 rows near 1e200",
        ),
    ],
    "seconds_at_least": [
        ("np.maximum", "max", "It stops with ValueError in line 5 of the function"),
    ],
    "backward_by_strips": [
        ("np.empty_like(dy)", "np.empty(dy.shape)", "dx is float64 where dy is float32"),
        ("    for start", "    rows *= 8\n    for start", "goes over 32 rows at once"),
        ("    for start", "    rows = 1\n    for start", "no operation takes more than 1 row of"),
        ("    for start", "    dx[...] = dy\n    for start", "(setitem) goes over 301"),
        ("return dx", "dbeta = np.einsum('nd->d', dy); return dx", "(einsum) goes over 301 rows"),
        (
            "    return dx",
            "    dbeta *= 0\n    for start in range(0, len(dy), rows):\n"
            "        dbeta += dy[start : start + rows].sum(axis=0)\n    return dx",
            "dy comes from memory 2 times",
        ),
    ],
    "columns_of": [
        ("vector * width + j", "vector + j", "Run it again: columns_of(25, 64, 4, 1000)"),
    ],
    "rms_backward": [
        (NO_AXIS, "axis=(0, 1)", "for rows of shape (N, D) shape () where (5,) is asked"),
    ],
    "rms_check": [
        ("beta).passed", "beta)", "its .passed says which"),
        ("rng.uniform(0.5, 2, 5)", "np.full(5, 2.0)", "gamma in front of the mean"),
    ],
    "rms_forward_safe": [("np.ldexp(one", "np.ldexp(1.0", "right, but float64")],
    "rms_forward_blocked": [
        ("y[block] *= gamma\n    return y", "pass\n    return gamma * y", "goes over 2048 rows"),
        ("out=y[block]", "out=x[block]", "changes x in place"),
    ],
    "add_rms_norm": [
        (KEPT, CACHE.format("(z, rstd, gamma, x, r)", "cache[:3]"), "holds 2.0 values per element"),
        (KEPT, CACHE.format("lambda: (z, rstd, gamma)", "cache()"), "has a function in its cache"),
        (
            "return gamma * (z * rstd), " + KEPT,
            "forward.kept = z, rstd, gamma\n        return gamma * (z * rstd), "
            + CACHE.format("None", "forward.kept"),
            "after another forward pass the same cache gives other gradients",
        ),
    ],
}
