"""Lesson 03: the parts of a gradient check, and data that hide a bug from it."""

import numpy as np

from ..checker import mistakes
from ..textbook import forward_rstd
from .data import layer, of_layers
from .registry import exercise


def _agreement_cases():
    """Return {what is special: (computed, measured, rtol)}."""
    rng = np.random.default_rng(31)
    m = rng.uniform(-1.8, 1.8, (4, 5, 6))  # (4, 5, 6)
    m[2, 1, 4] = -3.0  # the largest entry is negative
    noise = rng.uniform(-1, 1, m.shape)  # (4, 5, 6)
    one = np.zeros(m.shape)  # (4, 5, 6)
    one[1, 4, 2] = 6e-6
    uneven = np.abs(m) * np.where(np.arange(5) == 2, 1e-3, 1)[:, None]  # (4, 5, 6)
    spoilt, zero = np.where(one, np.nan, m), np.where(one, 0, m)  # (4, 5, 6) each
    return {
        "arrays that agree to nine digits": (m * (1 + 1e-9 * noise), m, 1e-8),
        "one entry that is too large": (m + one, m, 1e-6),
        "one entry that is too small": (m - one, m, 1e-6),
        "a measured entry of 0 and a computed one of 1e-12": (zero + 1e-12, zero, 1e-8),
        "a largest entry that is negative": (m + 2.4e-6 * np.sign(noise), m, 1e-6),
        "rows of small entries beside larger ones": (uneven + 2.4e-6 * noise, uneven, 1e-6),
        "a NaN in computed": (spoilt, m, 1e-8),
        "a NaN in measured": (m, spoilt, 1e-8),
        "a NaN, with the rest 10 % too large": (1.1 * spoilt, m, 1e-8),
        "twice what it should be, rtol = 0.6": (2 * m, m, 0.6),
        "gradients near 1e-8 that differ by 1.2 rtol": (1.012e-8 * m, 1e-8 * m, 1e-2),
        "a NaN at the same place of both arrays": (spoilt, spoilt, 1e-8),
        "an error of exactly rtol": (4 * np.sign(m) + 0.5, 4 * np.sign(m), 0.125),
    }


def _over_both(a, b):
    return np.abs(a - b) / np.maximum(1e-8, np.abs(a) + np.abs(b))


def _by_entry(a, b):
    return np.abs(a - b) / np.abs(b)


@exercise("answer", _agreement_cases, rtol=0)
@mistakes("""
    error <= rtol => not error > rtol  # a NaN passes: `nan > rtol` is False. Ask if it is small.
    np.abs(measured) => np.abs(measured) + 1e-8
        small wrong gradients pass: the divisor is larger than max |measured|. Is something added?
    return => error = np.max(_over_both(computed, measured)); return
        element-wise, over the sum of both: an entry near 0 fails, and the quotient is about half.
    np.max(np.abs(computed - measured)) => np.linalg.norm(computed - measured)
    np.max(np.abs(measured)) => (np.linalg.norm(computed) + np.linalg.norm(measured))
        a sum of squares dilutes one wrong entry, and the sum below the line halves the quotient.
    )) / np.max(np.abs(measured)) => ) / np.max(np.abs(measured), axis=-1, keepdims=True))
        each row relative to its own largest entry: take the largest of all entries.
    bool(error <= rtol) => np.allclose(computed, measured, rtol)  # np.allclose has an atol of 1e-8.
    np.abs(measured) => np.abs(computed)  # relative to the computed gradient, which is on trial.
    / np.max(np.abs(measured)) =>  # not divided by anything: it depends on the unit of x.
    np.max(np.abs(computed - measured)) / np.max( => np.mean(np.abs(computed - measured)) / np.mean(
        a mean or a sum of squares dilutes one wrong entry.
    np.max(np.abs(computed - measured)) / np.max(np.abs(measured)) => _by_entry(computed, measured)
    return bool(error <= rtol) => return bool(np.all(error <= rtol))
        element-wise: each error is divided by its own entry. Divide by the largest one.
""")
def agrees(computed, measured, rtol):
    """Return True if the norm-wise error is at most rtol, else False; both arrays (B, T, D)."""
    error = np.max(np.abs(computed - measured)) / np.max(np.abs(measured))
    return bool(error <= rtol)


def _curved(seed, *shape, centre=0.0):
    """Return a function of an array, in which no two entries are alike and all interact, and x."""
    rng = np.random.default_rng(seed)
    w, v, x = rng.uniform(0.5, 2, (3, *shape)) * rng.choice([-1, 1], (3, *shape))

    def f(x):
        return np.sum(w * np.sin(x - centre)) + np.sum(v * (x - centre)) ** 2

    return f, centre + x


CURVED_CASES = {
    "a vector": (*_curved(32, 7), 1e-3),
    "an array of shape (2, 3, 5)": (*_curved(34, 2, 3, 5), 1e-3),
    "x near 1e8, where the step taken is not 2h": (*_curved(35, 3, 4, centre=1e8), 1e-6),
}


def _slope_by_complex_step(f, x, index, h=1e-30):
    moved = x.astype(complex)
    moved[index] += 1j * h
    return f(moved).imag / h


@exercise("gradient", CURVED_CASES)
@mistakes("""
    f(minus)) / (plus[index] - minus[index]) => f(x)) / h  # forward, where a central one is asked.
    f(minus)) / (plus[index] - minus[index]) => f(x)) / (plus[index] - x[index])
        forward, where a central one is asked.
    (f(plus) - f(minus)) / (plus[index] - minus[index]) => _slope_by_complex_step(f, x, index)
        too exact: a complex step or an extrapolation? Plain central differences are asked.
    (plus[index] - minus[index]) => h  # divided by h: from x - h to x + h it is two steps.
    (plus[index] - minus[index]) => (2 * h)  # divided by 2h; near 1e8 the step taken is another.
    x.copy(), x.copy() => (x.copy(),) * 2  # no step is taken: both are the same array. Make two.
    / (plus[index] - minus[index]) => / (plus[index] - minus[index]); return gradient
        only the first entry is there: is the return inside the loop?
    [index] += h => [...] += h
    [index] -= h => [...] -= h  # all entries move at once. Move them one at a time.
    np.ndindex(x.shape) => range(len(x))  # all of x[i] moves at once; np.ndindex(x.shape) goes on.
    gradient = np.empty_like(x) => gradient, plus, minus = np.empty_like(x), x.copy(), x.copy()
    plus, minus = x.copy(), x.copy() => pass  # moved entries are not put back: begin with a copy.
""")
def central_difference(f, x, h):
    """Return the gradient of f at x, an array of the shape of x."""
    gradient = np.empty_like(x)  # shape of x
    for index in np.ndindex(x.shape):
        plus, minus = x.copy(), x.copy()
        plus[index] += h
        minus[index] -= h
        gradient[index] = (f(plus) - f(minus)) / (plus[index] - minus[index])
    return gradient


def _probe(seed, *shape, spread=1.0, eps=1e-5, value=-60):
    """Return the probe of a LayerNorm, a function of x that may be complex or Dual, and x."""
    dy, x, gamma, beta = layer(seed, *shape)[:4]

    def f(x):
        y, _ = forward_rstd(x * gamma, gamma, beta, eps)  # changes if all x move alike
        return np.sum(dy * y) + value

    return f, spread * x


PROBE_CASES = {
    "one row": _probe(36, 7),
    "an array of shape (2, 3, 5)": _probe(37, 2, 3, 5, value=60),
    "rows with a spread of 1e-12": _probe(38, 2, 4, spread=1e-12, eps=1e-26),  # h is less
}


@exercise("gradient", PROBE_CASES, rtol=1e-13)
@mistakes("""
    .imag => .real  # the value of f is the real part; the imaginary one has the derivative.
    f(moved).imag => abs(f(moved))  # abs mixes the value of f in; take the imaginary part alone.
    / h => / (2 * h)  # divided by 2h, as central differences are; here is one step, of h.
    f(moved).imag / h => (f(moved) / (1j * h)).imag  # dividing by i swaps the parts; divide by h.
    x.astype(complex) => x.copy()  # zero everywhere. A real array drops imaginary parts: is it
        x.astype(complex) that moves, by 1j * h, and is h real where you divide?
    [index] += 1j => [index] = 1j  # the entry is replaced by 1j * h; it must move: add 1j * h.
    [index] += => [...] +=  # all entries move at once. Move them one at a time.
    np.ndindex(x.shape) => range(len(x))  # all of x[i] moves at once; np.ndindex(x.shape) goes on.
    moved = x.astype(complex) => moved = moved
    gradient, h = np.empty_like(x) => moved, gradient, h = x.astype(complex), np.empty_like(x)
        moved entries are not put back: begin with a copy.
    1e-30 => 1e-5  # the step is too large for f's shortest length; nothing cancels: go far lower.
    1e-30 => 1e-6  # "
    1e-30 => 1e-8  # "
    1e-30 => 1e-10  # "
    1e-30 => 1e-12  # "
    1e-30 => 1e-14  # "
    1e-30 => 1e-15  # "
    1e-30 => 1e-16  # "
    1e-30 => 1e-17  # "
    1e-30 => 1e-18  # "
    1e-30 => 1e-300  # f multiplies the step by small numbers: the products have too few bits.
    1e-30 => 1e-305  # "
    1e-30 => 1e-308  # "
    1e-30 => 1e-320  # so small a step has few bits: take a larger one.
""")
def complex_gradient(f, x):
    """Return the gradient of f at x, a real array of the shape of x."""
    gradient, h = np.empty_like(x), 1e-30  # shape of x
    for index in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[index] += 1j * h
        gradient[index] = f(moved).imag / h
    return gradient


@exercise("dy", of_layers("dy gamma", 2, 3, 5))
@mistakes("""
    c * gamma => c * np.mean(gamma**2) / gamma
        mean(gamma * dy) is 0, but another dy is nearer: go perpendicular to the plane.
    c * gamma => c * np.mean(gamma**2) / np.mean(gamma)  # "
    dy - c * gamma => dy  # dy is as it came.
    dy - c * gamma => c * gamma  # that is the change of dy, not the changed dy.
    dy - c * gamma => dy + c * gamma  # dy moves away from the plane: look at the sign.
    c * gamma => np.mean(gamma * dy, axis=-1, keepdims=True) * gamma
        dy moves in the right direction, by a wrong amount: solve the condition for c.
    / np.mean(gamma**2) => / np.sum(gamma**2)  # "
    / np.mean(gamma**2) => / np.mean(gamma) ** 2  # "
    / np.mean(gamma**2) => / np.linalg.norm(gamma)  # "
    / np.mean(gamma**2) => / np.mean(gamma)  # "
    / np.mean(gamma**2) => / np.sum(gamma) ** 2  # "
    np.mean(gamma * dy, => np.sum(gamma * dy,  # "
    c * gamma => np.mean(gamma * dy, axis=-1, keepdims=True)
        mean(gamma * dy) is not 0 in every row: look at the condition again.
    c * gamma => np.mean(dy, axis=-1, keepdims=True)  # "
    np.mean(gamma * dy, axis=-1, keepdims=True) => np.mean(gamma * dy)
        one c for the whole array: each row has its own, along axis=-1.
    np.mean(gamma * dy, axis=-1, keepdims=True) / np.mean => np.sum(gamma * dy) / np.sum
        "
""")
def blind_dy(dy, gamma):
    """Return the nearest dy, (B, T, D), with mean(gamma * dy) = 0 in every row; gamma (D,)."""
    c = np.mean(gamma * dy, axis=-1, keepdims=True) / np.mean(gamma**2)  # (B, T, 1)
    return dy - c * gamma


def _dual_cases():
    x, v = np.array([0.7, -1.6, 2.3, 1.1]), np.array([0.4, 1.3, -0.9, 2.1])  # (4,) each
    v6, v5 = (0.3 + np.random.default_rng(s).standard_normal(D) for s, D in ((40, 6), (42, 5)))
    return {
        "a sum": (lambda x: x[0] * 3 + x[1] + 5 - x[2], x, v),
        "a product": (lambda x: x[0] * x[1] * x[2] + x[3] * 2, x, v),
        "a power": (lambda x: (x[0] * 3 + x[2]) ** 3 + x[3], x, v),
        "a quotient and a root": (lambda x: np.sqrt(x[2]) / (x[0] * x[3] + 2), x, v),
        "a row of LayerNorm": (*_probe(39, 6, value=0), v6),
        "a row of LayerNorm in which eps counts": (*_probe(41, 5, spread=0.004, value=0), v5),
    }


def _judge_one_pass(function):
    """Say if f is called several times, or is given something else than dual numbers."""
    (f, x), given = _probe(39, 6, value=0), []

    def watched(numbers):
        given.append(np.asarray(numbers))
        return f(numbers)

    function(watched, x, np.ones(6))
    if any(numbers.dtype != object for numbers in given):
        return (
            "The numbers are right, but f is given other numbers than Duals, as in the complex "
            "step of exercise 3.3. Give it an array whose entries are Dual(value, slope)."
        )
    if len(given) > 1:
        return (
            f"The numbers are right, but f is called {len(given)} times. One pass is asked: give "
            "entry i the slope v[i]."
        )


def _quotient(f, x, v, h):
    return (f(x + h * v) - f(x - h * v)) / (2 * h)


@exercise("derivative", _dual_cases, rtol=1e-11, judge=_judge_one_pass)
@mistakes("""
    self.slope * b.value + self.value * b.slope => self.slope * b.slope
        a product's slope is not the product of the slopes: one factor moves, then the other.
    self.slope * b.value + self.value * b.slope => self.slope * b.value
        the product rule has two terms: either factor moves.
    self.slope * b.value + self.value * b.slope => self.value * b.slope  # "
    self.slope * b.value + self.value => self.slope * b.value - self.value
        the two terms of the product rule are added.
    n * self.value ** (n - 1) => self.value ** (n - 1)  # the factor n of the power's slope is gone.
    ** (n - 1) * self.slope => ** (n - 1)  # the chain rule: the inner slope is a factor.
    n * self.value ** (n - 1) => n * self.value**n  # the power's slope has the exponent n - 1.
    self.slope + b.slope => self.slope  # the slope of a sum is the sum of both slopes.
    self.slope + b.slope => self.slope * b.slope  # the slopes of a sum are added.
    ])).slope => ])).value  # that is the value of f; its slope is asked.
    Dual(a, b) for => Dual(a, 1.0) for  # every entry moves by 1: begin with the slopes v.
    else Dual(b, 0.0) => else Dual(b, 1.0)  # a plain number does not move: its slope is 0.
    f(np.array([Dual(a, b) for a, b in zip(x, v)])).slope => _quotient(f, x, v, 1e-4)
        a difference quotient, which truncates and rounds. Give f the dual numbers instead.
    f(np.array([Dual(a, b) for a, b in zip(x, v)])).slope => _quotient(f, x, v, 1e-5)
        "
    f(np.array([Dual(a, b) for a, b in zip(x, v)])).slope => _quotient(f, x, v, 1e-6)
        "
    f(np.array([Dual(a, b) for a, b in zip(x, v)])).slope => _quotient(f, x, v, 1e-7)
        "
    f(np.array([Dual(a, b) for a, b in zip(x, v)])).slope => _quotient(f, x, v, 1e-8)
        "
""")
def dual_derivative(f, x, v):
    """Return the derivative of f at x along v, both (D,), in one pass through f."""

    class Dual:  # a value, and the slope with which it moves
        def __init__(self, value, slope):
            self.value, self.slope = value, slope

        def __add__(self, b):
            b = b if isinstance(b, Dual) else Dual(b, 0.0)
            return Dual(self.value + b.value, self.slope + b.slope)

        def __mul__(self, b):
            b = b if isinstance(b, Dual) else Dual(b, 0.0)
            return Dual(self.value * b.value, self.slope * b.value + self.value * b.slope)

        def __pow__(self, n):  # n is a plain number
            return Dual(self.value**n, n * self.value ** (n - 1) * self.slope)

        __radd__, __rmul__ = __add__, __mul__
        __neg__, sqrt = (lambda a: a * -1), (lambda a: a**0.5)
        __sub__, __rsub__ = (lambda a, b: a + b * -1), (lambda a, b: a * -1 + b)
        __truediv__, __rtruediv__ = (lambda a, b: a * b**-1.0), (lambda a, b: a**-1.0 * b)

    return f(np.array([Dual(a, b) for a, b in zip(x, v)])).slope
