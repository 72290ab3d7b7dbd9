"""Wrong answers to lesson 07: what a learner changed in the solution, and what check must say."""

PASSED = "return gradcheck(whole, gradients, x, gamma, beta).passed"
NO_AXIS = "axis=tuple(range(dy.ndim - 1))"

WRONG = {
    "rms_forward": [
        ("x_hat = x * rstd", "x_hat = x; x_hat *= rstd", "changes x in place"),
        (", x_hat, rstd", ", rstd", "3 are asked"),
        (", keepdims=True", "", "ValueError in line 4"),
    ],
    "rms_jacobian": [
        (
            "np.eye(D) - np.outer(x_hat, x_hat) / D",
            "1 - x_hat**2 / D",
            "shape (5,) where (5, 5) is asked",
        ),
    ],
    "rms_backward": [
        ("np.mean(g", "0.5 * np.mean(g", "Not right in this: x_hat mean(g x_hat)"),
        (NO_AXIS, "axis=(0, 1)", "for rows of shape (N, D) shape () where (5,) is asked"),
        (NO_AXIS, "axis=0", "shape (3, 5) where (5,) is asked"),
        ("g = gamma * dy", "dy *= gamma; g = dy", "changes dy in place"),
        ("return dx", "return -dx", "dx: right, but for its sign"),
    ],
    "rms_check": [
        ("beta).passed", "beta)", "its .passed says which"),
        ("rng.uniform(0.5, 2, 5)", "np.full(5, 2.0)", "gamma in front of the mean"),
        ("= forward(", "= namespace_forward(", "NameError"),
        ("return y + beta, (", "return y, (", "it says False of everything"),
    ],
    "rms_forward_safe": [
        ("np.ldexp(one", "np.ldexp(1.0", "right, but float64"),
    ],
    "rms_forward_blocked": [
        ("y[block] *= gamma\n    return y", "pass\n    return gamma * y", "goes over 2048 rows"),
        ("for start in", "squares = x * x\n    for start in", "(multiply) goes over 2048 rows"),
        ("for start in", "np.linalg.norm(x, axis=1)\n    for start in", "goes over 2048 rows"),
        ("    for start", "    rows = 1\n    for start", "no operation takes more than 1 row of"),
        ("return y,", "return np.concatenate([y[:999], y[999:]]),", "(concatenate) goes over"),
        (
            "        np.multiply",
            "    for start in range(0, len(x), rows):\n"
            "        block = slice(start, start + rows)\n        np.multiply",
            "x comes from memory 2 times",
        ),
        ("out=y[block]", "out=x[block]", "changes x in place"),
        (" / x.shape[1]", "", "the largest error is at y["),
    ],
}

# ---- Kernels, compiled by test_exercise_kernels.py: a few seconds each ---------------------------

SQUARES = "block_sum<THREADS>(sum_of_squares(row), 0)"
CLEAR = "for (int v = 0; v < VECTORS; v++) total[v] = Vector<WIDTH>();"

KERNELS = {
    "rms_forward_kernel": [
        (SQUARES, "sum_of_squares(row)", "every thread has only its own"),
        (" / D;", ";", "not divided by D"),
        ("        if (i < vectors)\n", "", "store only where i < vectors"),
        ("    if (threadIdx.x == 0)\n", "", "no barrier in between"),
        ("D / WIDTH", "D / 4", "but for rows of 201"),
        ("load<THREADS>(x, start", "load<THREADS>(x, 0", "every block works on row 0"),
        ("        rstd[blockIdx.x] = r;", "        ;", "never written"),
        (
            "    load<THREADS>(gamma",
            "    load<THREADS>(x, start, vectors, row);\n    load<THREADS>(gamma",
            "x is loaded 2 times",
        ),
    ],
    "rms_backward_kernel": [
        ("        buffer = 1 - buffer;\n", "", "no barrier in between"),
        ("1 - buffer", "1", "no barrier in between"),
        ("1 - buffer", "1 + buffer", "is out of range"),
        ("block_sum<THREADS>(along, buffer)", "warp_sum(along)", "every warp has only its own"),
        ("x_hat[v].at[j] *= r;", "", "x stands where"),
        ("        float along = 0;", f"        float along = 0; {CLEAR}", "only the last row"),
        ("            if (i < vectors)\n", "", "store only where i < vectors"),
    ],
}
