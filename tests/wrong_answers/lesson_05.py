"""Wrong answers to lesson 05: what a learner changed in the solution, and what check must say."""

WRONG = {
    "cost_of_one_pass": [
        (
            "flops * N * D",
            "flops * (N * D + N)",
            "for float32 (once per row does not count, nor do gamma and beta): 3.684e+06",
        ),
        ("return flops", "return (0 * N, 0)\n    return flops", "zero everywhere"),
        ("1 + 2 + 2 + 2", "1 + 2 + 2 + 2 + 3", "flops: per element, 3 too many."),
    ],
    "seconds_at_least": [
        ("np.maximum", "max", "It stops with ValueError in line 5 of the function"),
        ("nbytes / bandwidth", "flops / bandwidth", "seconds: for one layer:"),
        ("return seconds, for_arithmetic / seconds", "return seconds", "2 are asked"),
    ],
    "backward_by_strips": [
        ("np.empty_like(dy)", "np.zeros_like(dy[: len(dy) // rows * rows])", "ValueError"),
        (
            "dbeta += more_dbeta",
            "dbeta += more_dbeta / rows",
            "for a last strip that is shorter it is 0.25 times what is asked",
        ),
        ("dx[strip]", "dx", "shape (3, 5) where (11, 5) is asked"),
        ("np.empty_like(dy)", "np.empty(dy.shape)", "dx is float64 where dy is float32"),
        ("    for start", "    rows *= 8\n    for start", "goes over 32 rows at once"),
        ("    for start", "    rows = 1\n    for start", "no operation takes more than 1 row of"),
        ("    for start", "    dx[...] = dy\n    for start", "(setitem) goes over 301"),
        (
            "return dx, dgamma, dbeta",
            "return textbook.backward_means(dy, (x_hat, rstd, gamma))",
            "goes over 301 rows at once",
        ),
        (
            "return dx, dgamma, dbeta",
            "return dx, dgamma, np.einsum('nd->d', dy)",
            "(einsum) goes over 301 rows at once",
        ),
        (
            "    return dx",
            "    dbeta *= 0\n    for start in range(0, len(dy), rows):\n"
            "        dbeta += dy[start : start + rows].sum(axis=0)\n    return dx",
            "dy comes from memory 2 times",
        ),
    ],
}
