"""Wrong answers to lesson 04: what a learner changed in the solution, and what check must say."""

SHIFTED = "np.mean(d * d, axis=-1) - np.mean(d, axis=-1) ** 2"

WRONG = {
    "shifted_variance": [
        ("x - x[..., :1]", "x", "nothing is shifted"),
        (SHIFTED, "(x**2).mean(-1) - x.mean(-1) ** 2", "nothing is shifted"),
        (SHIFTED, "np.var(x, axis=-1)", "two-pass"),
        (SHIFTED, "x.astype(float).var(axis=-1).astype(x.dtype)", "two-pass"),
        (SHIFTED, "np.mean((x - x.mean(axis=-1, keepdims=True)) ** 2, axis=-1)", "two-pass"),
        (" - np.mean(d, axis=-1) ** 2", "", "distances to the first entry"),
        ("np.mean(d, axis=-1) ** 2", "np.mean(x, axis=-1) ** 2", "the second mean is that of x"),
        ("np.mean(d * d", "np.mean(x * x", "the squares are those of x"),
        ("axis=-1) ** 2", "axis=-1)", "not squared"),
        ("axis=-1) ** 2", "axis=-1) * 2", "the largest error is at variance["),
        (SHIFTED, "np.var(d, axis=-1, ddof=1)", "divided by D - 1"),
        (SHIFTED, f"np.sqrt({SHIFTED})", "the standard deviation"),
        (SHIFTED, "d.var(axis=-1) * x.shape[-1]", "a factor: 5 for ordinary rows, 9"),
        ("x[..., :1]", "x[:, :1]", "the first row of each sequence"),
        ("x[..., :1]", "x[0, 0, 0]", "one shift for all rows"),
        ("x[..., :1]", "x[0, 0]", "the largest error is at variance["),
        ("x[..., :1]", "x[..., 0]", "ValueError in line 3"),
        ("axis=-1)", "axis=-1, keepdims=True)", "shape (2, 3, 1) where (2, 3) is asked"),
        ("d = x", "x = x.astype(float); d = x", "right, but float64; the input is float32"),
        ("d = x - x[..., :1]", "x -= x[..., :1].copy(); d = x", "changes x in place"),
        (  # Welford's algorithm: one pass, but its running mean is rounded
            "d = x - x[..., :1]  # (B, T, D)\n    return " + SHIFTED,
            "m = s = 0 * x[..., 0]\n    for k in range(x.shape[-1]):\n"
            "        d = x[..., k] - m; m = m + d / (k + 1); s = s + d * (x[..., k] - m)\n"
            "    return s / x.shape[-1]",
            "right for ordinary rows, for another shape, but for rows with an offset of 1e7",
        ),
    ],
    "merge_parts": [
        ("mean_a + delta * n_b / n", "(mean_a + mean_b) / 2", "the two means count the same"),
        ("delta * n_b / n ", "delta * n_a / n ", "the weights have changed places"),
        ("mean_a + delta", "mean_a - delta", "from mean_a it goes towards mean_b"),
        ("delta = mean_b - mean_a", "delta = mean_a - mean_b", "n, m2: right"),
        (" + delta**2 * n_a * n_b / n", "", "a term with (mean_b - mean_a)**2 is missing"),
        ("delta**2 * n_a * n_b / n", "delta**2", "has no weight"),
        ("delta**2 * n_a * n_b / n", "delta**2 * n_a * n_b", "not yet divided by n"),
        ("n_a * n_b / n", "n_a * n_b / n**2", "that of an average; m2 is a sum"),
        ("delta**2 * n_a * n_b / n", "delta * (mean_b - mean)", "n_b new ones count n_b times"),
        ("delta**2 * n_a * n_b / n", "n_b * (mean_b - mean) ** 2", "only part b moves"),
        ("delta**2", "delta", "is not squared"),
        (
            "m2_a + m2_b + delta**2 * n_a * n_b / n",
            "(m2_a + m2_b) / n",
            "the largest error is at m2",
        ),
        (
            "m2_a + m2_b + delta**2 * n_a * n_b / n",
            "(m2_a + m2_b + delta**2 * n_a * n_b / n) / n",
            "makes it the variance",
        ),
        (
            "delta**2 * n_a * n_b / n",
            "n_a * mean_a**2 + n_b * mean_b**2 - n * mean**2",
            "near 1e7 the digits cancel",
        ),
        (  # other roundings than those of the known mistake
            "m2_a + m2_b + delta**2 * n_a * n_b / n",
            "(m2_a + n_a * mean_a**2) + (m2_b + n_b * mean_b**2) - n * mean * mean",
            "squares of the means are subtracted",
        ),
        ("return n, mean, ", "return mean, ", "2 values where 3 are asked: n, mean, m2"),
        ("n = n_a + n_b", "m2_a += m2_b; n = n_a + n_b", "changes m2_a in place"),
    ],
    "compensated_sum": [
        ("row - excess", "row", "the plain running sum"),
        ("(t - total) - y", "t - (total + y)", "look at the parentheses"),
        (
            "    for row in values:",
            "    return values.sum(axis=0)\n    for row in values:",
            "plain",
        ),
        ("row - excess", "row + excess", "what was lost is lost twice"),
        ("(t - total) - y", "y - (t - total)", "what was lost is lost twice"),
        ("- y\n", "- row\n", "measured against the row"),
        (
            "excess = (t - total) - y\n        total = t\n",
            "total = t\n        excess = (t - total) - y\n",
            "the old total is needed",
        ),
        ("excess = (t", "excess += (t", "count each of them once"),
        ("np.zeros_like(values[0])", "values[0].copy()", "the first row is counted twice"),
        ("in values:", "in values[1:]:", "the first row is missing"),
        ("np.zeros_like(values[0])", "np.zeros(values.shape[1])", "right, but float64"),
        (
            "total = np.zeros_like(values[0])",
            "return values.sum(axis=0, dtype=np.float64).astype(values.dtype)",
            "by a wider type",
        ),
        (
            "total = np.zeros_like(values[0])",
            "total = sum(values.astype(np.float64)); return total.astype(values.dtype)",
            "by a wider type",
        ),
        (
            "return total",
            "total = np.zeros(values.shape[1])\n    for row in values:\n"
            "        total += row\n    return total.astype(np.float32)",
            "by a wider type",
        ),
        (
            "total = np.zeros_like(values[0])",
            "return values[::-1].sum(axis=0)",
            "right for a few rows",
        ),
        ("    return total", "    return total.sum()", "one number; dgamma"),
        ("in values:", "in values.T:", "ValueError in line 6"),
        ("np.zeros_like(values[0])", "values.sum(axis=1); return total", "each row is added up"),
        ("y = row - excess", "row -= excess; y = row", "changes values in place"),
    ],
    "robust_x_hat": [
        ("x = np.ldexp(x, -exponent)", "x = x + 0", "not scaled"),
        ("xc = xc - xc.mean(axis=-1, keepdims=True)", "", "centred once: what the rounding"),
        (
            "xc = xc - xc.mean(axis=-1, keepdims=True)  # (B, T, D)\n    return xc / np.sqrt("
            "np.mean(xc * xc, axis=-1, keepdims=True))",
            "return xc / np.std(x, axis=-1, keepdims=True)",
            "centred once: what the rounding",
        ),
        (
            "xc = xc - xc.mean(axis=-1, keepdims=True)  # (B, T, D)\n    return xc / np.sqrt("
            "np.mean(xc * xc, axis=-1, keepdims=True))",
            "return xc / np.std(xc, axis=-1, keepdims=True)",
            "the variance is corrected for it",
        ),
        (
            "_, exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True))",
            "return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)",
            "the textbook's",
        ),
        ("np.ldexp(x, -exponent)", "x / np.abs(x).max(axis=-1, keepdims=True)", "that rounds"),
        ("np.abs(x).max(axis=-1, keepdims=True)", "np.abs(x).max()", "one scale for the whole"),
        ("np.abs(x).max(axis=-1, keepdims=True)", "x", "every entry has a scale of its own"),
        (
            "np.abs(x).max(axis=-1, keepdims=True)",
            "x.max(axis=-1, keepdims=True)",
            "the largest in size",
        ),
        ("return xc / ", "return np.ldexp(1, exponent) * xc / ", "x_hat does not have it"),
        (
            "np.ldexp(x, -exponent)",
            "np.ldexp(x, exponent)",
            "multiplied by the power of two, where",
        ),
        ("max(axis=-1, keepdims=True)", "max(axis=-1)", "ValueError in line 4"),
        ("np.mean(xc * xc, axis=-1, keepdims=True)", "np.mean(xc * xc)", "the largest error"),
        ("np.mean(xc * xc", "1e-5 + np.mean(xc * xc", "here eps is 0"),
        ("np.mean(xc * xc", "1e-12 + np.mean(xc * xc", "but for an offset of a million"),
        (
            "np.mean(xc * xc, axis=-1, keepdims=True)",
            "np.var(xc, axis=-1, ddof=1, keepdims=True)",
            "divided by D - 1",
        ),
        (
            "_, exponent = np.frexp(np.abs(x).max(axis=-1, keepdims=True))",
            "dtype = x.dtype; x = x.astype(np.float64); xc = x - x.mean(-1, keepdims=True); "
            "xc = xc - xc.mean(-1, keepdims=True)\n    "
            "return (xc / xc.std(-1, keepdims=True)).astype(dtype)",
            "right for 8 of 9 inputs, but for float64 rows near 1e200",
        ),
        ("x = np.ldexp", "x[...] = np.ldexp", "changes x in place"),
        ("return xc", "return xc.astype(np.float64)", "right, but float64"),
    ],
}
