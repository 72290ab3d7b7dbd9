"""Wrong answers to lesson 03 that no table has: what was changed in the solution, and the words."""

DIVIDED = "(f(plus) - f(minus)) / (plus[index] - minus[index])"

WRONG = {
    "agrees": [
        ("np.abs(measured))", "np.abs(measured), axis=-1)", "ValueError in line 4"),
        ("bool(error <= rtol)", "error", "where True is right"),
        ("bool(error <= rtol)", "True", "one entry that is too large: True where"),
        (
            "bool(error <= rtol)",
            "bool(np.isfinite(computed).all() and not error > rtol)",
            "right for 18 of 19 inputs, but for a NaN in measured: True where False",
        ),
    ],
    "central_difference": [
        (DIVIDED, "(f(plus) - f(minus)) / 2 * h", "right, but for a factor"),
        ("x.copy(), x.copy()", "x, x.copy()", "changes x in place"),
        ("np.empty_like(x)", "np.empty(x.size)", "IndexError in line 8"),
        (  # two mistakes at once: one is named after the other
            "f(minus)) / (plus[index] - minus[index])",
            "f(x)) / (2 * h)",
            "the largest error is at gradient[",
        ),
        (
            f"[index] += h\n        minus[index] -= h\n        gradient[index] = {DIVIDED}",
            "[...] += h\n        minus[...] -= h\n        gradient[index] = "
            "(f(plus) - f(minus)) / (2 * h)",
            "all entries move at once",
        ),
        (
            "[index] += h\n        minus[index] -= h",
            "[index] += 0.7 * h\n        minus[index] -= 0.7 * h",
            "or another step taken?",
        ),
        (  # Richardson's extrapolation
            DIVIDED,
            "(8 * (f(plus) - f(minus)) - f(2 * plus - x) + f(2 * minus - x)) / "
            "(6 * (plus[index] - minus[index]))",
            "this is nearer to the derivative than steps of h can come",
        ),
    ],
    "complex_gradient": [
        ("1e-30", "1e-8", "right for one row, for an array of shape (2, 3, 5), but for rows with"),
        ("1e-30", "1e-4", "for one row (shape (7,)) the largest error"),
        (".imag / h", ".imag / 1j / h", "zero everywhere. A real array drops"),
        ("np.empty_like(x)", "np.empty(x.shape, complex)", "complex numbers where real"),
        ("f(moved).imag", "(f(x + 1e-6) - f(x - 1e-6))", "the largest error is at gradient["),
    ],
    "blind_dy": [
        ("np.mean(gamma * dy,", "np.mean(dy,", "the largest error is at dy["),
        ("return dy - c * gamma", "return 0 * dy", "zero everywhere"),
    ],
}
