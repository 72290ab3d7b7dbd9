"""Wrong answers to lesson 05: what a learner changed in the solution, and what check must say."""

WRONG = {
    "cost_of_one_pass": [
        ("* N * D,", "* (N * D + N),", "once per row does not count, nor do gamma and beta)"),
        ("1 + 2 + 2 + 2", "1 + 2 + 2 + 2 + 3", "flops: per element, 3 too many."),
    ],
    "seconds_at_least": [
        ("np.maximum", "max", "It stops with ValueError in line 5 of the function"),
        ("nbytes / bandwidth", "flops / bandwidth", "seconds: for one layer:"),
    ],
    "backward_by_strips": [
        ("+= more_dbeta", "+= more_dbeta / rows", "that is shorter it is 0.25 times what is asked"),
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
}
