"""Wrong answers that no table of mistakes has: what is changed in the solution, and the words.

They test the checker: judges, errors, shapes, results of another type.
"""

START = "total = np.zeros_like(values[0])"
FLOAT64 = "return values.sum(axis=0, dtype='d').astype(values.dtype)"
WIDENED = "if x.dtype == 'f': return robust_x_hat(x.astype(float)).astype('f')\n    _, exponent ="
PAIRWISE = "return np.ascontiguousarray(values.T).sum(-1)"
STRIPS, LOOP, ROWS = "backward_by_strips", "    for start", "axis=tuple(range(dy.ndim - 1))"
SECOND_LOOP = "dbeta *= 0\n    for s in range(0, len(dy), rows): dbeta += dy[s : s + rows].sum(0)\n"
LEAN, EINSUM = "lean_backward", 'np.einsum("nd,nd->d", dy, x_hat)'
BY_GAMMA = "(g * x_hat).sum(axis=(0, 1)) / gamma"
GAMMA = "y[block] *= gamma\n    return y"
RSTD = "rstd = 1 / np.sqrt(np.mean(small * small, axis=-1, keepdims=True) + eps / s / s)"
WIDE = "rstd = np.mean(small.astype(float) ** 2, axis=-1, keepdims=True) + eps / s / s\n"
WIDE += "    rstd = (1 / np.sqrt(rstd)).astype(x.dtype)"
JUDGED = "return gradcheck(whole, gradients, x, gamma, beta).passed"
LOOSE = f"eps = 0.1; {JUDGED.replace('beta)', 'beta, rtol=5e-3)')}"
TUPLE = "dz + layer_norm_backward(dz, cache),"
DIFFERENCE = "d * d, axis=-1) - np.mean(d, axis=-1) ** 2"
PRODUCT = "d * (d - np.mean(d, axis=-1, keepdims=True)), axis=-1)"
WIDER = "(np.mean((d := d.astype(float)) * d, axis=-1) - np.mean(d, axis=-1) ** 2)"
WIDER += ".astype(x.dtype)"
MERGED, CANCELS = "delta**2 * n_a * n_b / n", "near 1e7 m2 loses its digits"
NEW_RSTD = "return xc / np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True))"
EXPANDED = "sum(k * (m * m - 2 * m * mean + mean**2) for k, m in ((n_a, mean_a), (n_b, mean_b)))"
FLOAT32 = "(mean_a + delta * n_b / n); mean += (abs(mean) > 1e6) * 0.01"

WRONG = [
    ("row_mean", ", keepdims=True", "", "keepdims=True keeps"),
    ("backward_by_hand", "mean_gx = (g", "mean_gx = (dy", "Missing: x_hat * mean(g * x_hat)."),
    ("backward_by_hand", "(dy * x_hat).sum(axis=(0, 1))", BY_GAMMA, "NaN where gamma is 0"),
    ("backward_by_hand", ".sum(axis=(0, 1))", "", "dgamma, dbeta: not summed: every row uses"),
    ("prenorm_backward", "dz + dx,", TUPLE, "is one of them a tuple, from a function"),
    ("shifted_variance", "x[..., :1]", "x.mean(-1)[..., None]", "more digits than asked"),
    ("shifted_variance", f"np.mean({DIFFERENCE}", WIDER, "by a wider type inside"),
    ("shifted_variance", "x[..., :1]", "x[..., 1:2]", "shifted by another entry"),
    ("shifted_variance", "x[..., :1]", "x.max(-1)[..., None]", "shifted by another entry"),
    ("shifted_variance", "x[..., :1]", "x.min(-1)[..., None]", "shifted by another entry"),
    ("shifted_variance", DIFFERENCE, PRODUCT, "by two passes over the shifted x"),
    ("shifted_variance", "d = x", "x = x.astype(float); d = x", "right, but float64; the input"),
    ("merge_parts", MERGED, "n_a * mean_a**2 + n_b * mean_b**2 - n * mean**2", CANCELS),
    ("merge_parts", MERGED, EXPANDED, CANCELS),
    ("merge_parts", "mean_a + delta * n_b / n", FLOAT32, "the mean of both parts loses digits"),
    ("rebuilt_x_hat", "xc.mean(axis=-1, keepdims=True)", "xc.mean()", "takes the whole array"),
    ("rebuilt_x_hat", "return xc", "return (1 + 1e-7) * xc", "seven digits of 16"),
    ("shifted_variance", "return np", "return (1 + 1e-7) * np", "seven digits of 16"),
    ("rebuilt_x_hat", "return xc * rstd[..., None]", NEW_RSTD, "but for a factor in each row"),
    ("compensated_sum", "(t - total) - y", "t - (total + y)", "the overshoot is 0"),
    ("compensated_sum", START, FLOAT64, "by a wider type"),
    ("compensated_sum", START, PAIRWISE, "a pairwise sum: each addition still loses"),
    ("robust_x_hat", "_, exponent =", WIDENED, "by a wider type inside"),
    ("robust_x_hat", "(np.abs(x).max(axis=-1, keepdims=True))", "(x)", "each entry has its own"),
    ("robust_x_hat", "np.ldexp(x, -exponent)", "x.astype(float)", "right for 6 of 7 inputs, but"),
    ("columns_of", "return [", "return D % (threads * width) and [", "for a row without padding"),
    ("seconds_at_least", "np.maximum", "max", "ValueError in line 5 of the function"),
    (
        LEAN,
        "dx -= x_hat * along[:, None]",
        "dx = dx - x_hat * along[:, None]",
        "peak is 3.0 arrays",
    ),
    (LEAN, EINSUM, "(dy * x_hat).sum(axis=0)", "19 values per element are counted"),
    (LEAN, "dx = dy * gamma", "dx = dy; dx *= gamma", "it changes dy in place"),
    (LEAN, "return dx", "return dx.astype(float)", "dx is float64 where dy is float32"),
    (STRIPS, "np.empty_like(dy)", "np.empty(dy.shape)", "dx is float64 where dy is float32"),
    (STRIPS, LOOP, f"    rows *= 8\n{LOOP}", "goes over 40 rows at once"),
    (STRIPS, LOOP, f"    rows = 1\n{LOOP}", "no operation takes more than 1 row of"),
    (STRIPS, LOOP, f"    rows = 5\n{LOOP}", "where rows is 7, no operation takes more than 5 rows"),
    (STRIPS, LOOP, f"    dx[...] = dy\n{LOOP}", "(setitem) goes over 301"),
    (STRIPS, "dx[strip],", "dx[range(len(dy))[strip]],", "taken by an array of indices"),
    (STRIPS, "return dx", f"{SECOND_LOOP}    return dx", "dy comes from memory 2 times"),
    ("rms_backward", ROWS, "axis=(0, 1)", "for rows of shape (N, D), shape () where (5,) is asked"),
    ("rms_check", "beta).passed", "beta)", "returns the whole report of gradcheck"),
    ("rms_forward_safe", "small = x / s", "small = np.float32(x / s)", "seven digits of 16"),
    ("rms_check", JUDGED, LOOSE, "0.1 percent too large"),
    ("rms_forward_safe", RSTD, WIDE, "every rstd is the float32 next to the exact one"),
    ("rms_forward_blocked", GAMMA, "pass\n    return gamma * y", "goes over 2048 rows"),
    ("rms_forward_blocked", "out=y[block]", "out=x[block]", "changes x in place"),
    ("add_rms_norm", "z, rstd, gamma", "z, rstd, gamma, x, r", "2.0 values per element"),
    ("add_rms_norm", "z_hat, g = z * rstd", "z *= rstd; z_hat, g = z", "gives other gradients"),
    ("add_rms_norm", "return dx, dx,", "return dx,", "backward that does not return dx, dr,"),
    ("add_rms_norm", "z = x + r", "x += r; z = x + 0", "but it changes an argument in place"),
]
