"""Wrong answers to lesson 07: what a learner changed in the solution, and what check must say."""

NO_AXIS = "axis=tuple(range(dy.ndim - 1))"

WRONG = {
    "rms_forward": [
        ("x_hat = x * rstd", "x_hat = x; x_hat *= rstd", "changes x in place"),
    ],
    "rms_backward": [
        ("np.mean(g", "0.5 * np.mean(g", "Not right in this: x_hat mean(g x_hat)"),
        (NO_AXIS, "axis=(0, 1)", "for rows of shape (N, D) shape () where (5,) is asked"),
    ],
    "rms_check": [
        ("beta).passed", "beta)", "its .passed says which"),
        ("rng.uniform(0.5, 2, 5)", "np.full(5, 2.0)", "gamma in front of the mean"),
        ("return y + beta, (", "return y, (", "it says False of everything"),
    ],
    "rms_forward_safe": [
        ("np.ldexp(one", "np.ldexp(1.0", "right, but float64"),
    ],
    "rms_forward_blocked": [
        ("y[block] *= gamma\n    return y", "pass\n    return gamma * y", "goes over 2048 rows"),
        ("for start in", "squares = x * x\n    for start in", "(multiply) goes over 2048 rows"),
        ("return y,", "return np.concatenate([y[:999], y[999:]]),", "(concatenate) goes over"),
        ("out=y[block]", "out=x[block]", "changes x in place"),
    ],
}

# ---- Kernels, compiled by test_exercise_kernels.py: a few seconds each ---------------------------

SQUARES = "block_sum<THREADS>(sum_of_squares(row), 0)"
CLEAR = "for (int v = 0; v < VECTORS; v++) total[v] = Vector<WIDTH>();"

KERNELS = {
    "rms_forward_kernel": [
        (SQUARES, "sum_of_squares(row)", "every thread has only its own"),
        ("        if (i < vectors)\n", "", "store only where i < vectors"),
        ("    if (threadIdx.x == 0)\n", "", "no barrier in between"),
        ("D / WIDTH", "D / 4", "but for rows of 201"),
        ("        rstd[blockIdx.x] = r;", "        ;", "never written"),
        (
            "    load<THREADS>(gamma",
            "    load<THREADS>(x, start, vectors, row);\n    load<THREADS>(gamma",
            "x is loaded 2 times",
        ),
    ],
    "rms_backward_kernel": [
        ("        buffer = 1 - buffer;\n", "", "no barrier in between"),
        ("block_sum<THREADS>(along, buffer)", "warp_sum(along)", "every warp has only its own"),
        ("        float along = 0;", f"        float along = 0; {CLEAR}", "only the last row"),
        ("            if (i < vectors)\n", "", "store only where i < vectors"),
    ],
}
