"""Wrong answers to lesson 03 that no table has: what was changed in the solution, and the words."""

DIVIDED = "(f(plus) - f(minus)) / (plus[index] - minus[index])"

WRONG = {
    "agrees": [
        ("bool(error <= rtol)", "True", "one entry that is too large: True where"),
    ],
    "central_difference": [
        ("x.copy(), x.copy()", "x, x.copy()", "changes x in place"),
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
    "complex_gradient": [
        ("1e-30", "1e-8", "right for one row, for an array of shape (2, 3, 5), but for rows with"),
        (".imag / h", ".imag / 1j / h", "zero everywhere. A real array drops"),
    ],
}
