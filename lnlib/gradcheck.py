"""Is this backward pass the derivative of this forward pass? Four ways to ask.

Every check uses the scalar probe L = sum(dy * y) with a random dy and works in float64. Nothing
here knows the layer. A numerical derivative comes with an estimate of its own error. The scale of
an entry is the sum of |dy_j * derivative of y_j|, which stays large where these terms cancel. An
entry passes if gradient and numerical derivative differ by at most

    rtol * its scale + 10 * the estimate + 2**-48 * the largest scale in its array,

and its error in the report is rtol * difference / this sum. So beside a far larger entry, a small
one may be wrong by more than rtol. Where the estimate is too large, the report says that the check
cannot judge. Right code can fail where forward has a kink nearby, or is ill-conditioned.
"""

import functools
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np

RTOL = {"central": 1e-8, "complex": 1e-14}
_SAFETY = 10  # an error may be larger than its estimate by this factor
_ENOUGH = 1e-10  # relative error of a derivative that needs no further step
_COARSE = 1e-5  # a derivative with a larger relative error judges nothing, unless rtol is larger
_ROUNDING = 2.0**-48  # error that rounding leaves in every entry, relative to the largest one
_TINY = 1e-30  # the complex step, relative to the largest central one
_REACH = 1.1  # the largest step, relative to the array
_FAR = 1e6  # the same in gamma and beta, where shorter steps do not tell the slope
_NAMES = ("dx", "dgamma", "dbeta")
_TITLE = {"central": "central differences", "complex": "complex step"}


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes
    ----------
    method : str
    rtol : float
    errors : dict of str to float
        Largest error of each gradient, as the module defines it; nan if it could not be
        compared, inf if an entry should be zero and is not.
    checked : dict of str to (int, int)
        How many entries were judged, of how many.
    problems : dict of str to str
        Why a gradient could not be compared, or in which dtype forward returns y.
    unjudged : dict of str to str
        Why some entries of a gradient cannot be judged; all of them if the key is "forward".
    """

    method: str
    rtol: float
    errors: dict
    checked: dict
    problems: dict
    unjudged: dict

    @property
    def verdict(self):
        """Is it "passed", "FAILED" or "cannot judge"? FAILED if something is wrong for certain."""
        small = all(np.isfinite(e) and e <= self.rtol for e in self.errors.values())
        if "forward" in self.unjudged or (small and self.unjudged):
            return "cannot judge"
        return "passed" if small else "FAILED"

    @property
    def passed(self):
        """True if every error is finite and at most rtol, and everything could be judged."""
        return self.verdict == "passed"

    def __str__(self):
        lines = [f"{self.method}, tolerance {self.rtol:.0e}: {self.verdict}"]
        for name, error in self.errors.items():
            size = f"<= {self.rtol:.0e}" if error <= self.rtol else f"{error:.1e}"
            done, total = self.checked[name]
            lines.append(f"  {name:<11} {size:<9} {done} of {total} entries")
        remarks = *self.problems.items(), *self.unjudged.items()
        return "\n".join([*lines, *(f"  {name} has {remark}" for name, remark in remarks)])


def gradcheck(
    forward, backward, x, gamma, beta, *,
    method="central", h=None, sample=None, rtol=None, seed=0,
):  # fmt: skip
    """Compare dx, dgamma, dbeta with a numerical derivative, one entry at a time.

    Parameters
    ----------
    forward : callable
        forward(x, gamma, beta) -> (y, cache), y of the shape of x, the same in every call.
    backward : callable
        backward(dy, cache) -> (dx, dgamma, dbeta).
    x : array_like, shape (..., D)
    gamma, beta : array_like, shape (D,)
        Real; taken as float64. Values that differ from entry to entry test most.
    method : {"central", "complex"}
        Central differences of several steps are extrapolated to step 0 [1]_ [2]_. The complex
        step [3]_ subtracts nothing; forward must accept complex input and be analytic, without
        abs, max, np.var or comparisons such as y > 0. Central differences along a random direction
        test that, to about 1e-5: at a kink, or for a smaller flaw, the verdict means nothing.
    h : float, optional
        Step, the same for every entry; then nothing is extrapolated or estimated.
    sample : int, optional
        Check this many randomly chosen entries of each array. By default all of them.
    rtol : float, optional
        In the sum that the module names, by default 1e-8 (central) or 1e-14 (complex). An entry
        is judged if its numerical derivative is known to 1e-5 or rtol of its own scale, or to rtol
        of the largest scale in its array.
    seed : int
        For dy, the direction and the choice of entries.

    Returns
    -------
    Report

    Raises
    ------
    TypeError
        If an array is complex or not numeric, or forward discards the imaginary part.
    ValueError
        If method is unknown, h, sample or a shape does not fit, x is empty, or forward or backward
        does not return what it should.

    References
    ----------
    .. [1] C. J. F. Ridders, "Accurate computation of F'(x) and F'(x) F''(x)", Advances in
       Engineering Software 4 (1982) 75-76, doi:10.1016/S0141-1195(82)80057-0.
    .. [2] W. H. Press et al., "Numerical Recipes", 3rd ed., 2007, section 5.7.
    .. [3] W. Squire, G. Trapp, SIAM Review 40 (1998) 110-112, doi:10.1137/S003614459631241X.
    """
    if h is not None and not h > 0:
        raise ValueError(f"h must be positive, got {h}")
    if sample is not None and (not isinstance(sample, Integral) or sample is True or sample < 1):
        raise ValueError(f"sample must be a positive integer or None, got {sample!r}")
    probe = _Probe(forward, backward, x, gamma, beta, seed, method, rtol)
    rtol = rtol or RTOL[method]
    found, checked = {}, {}
    for name, part in zip(_NAMES, probe.arrays(np.arange(probe.point.size))):
        skipped = probe.unjudged or name in probe.problems
        entries = [] if skipped else probe.rng.permutation(part.ravel())[:sample]
        found[name], checked[name] = [], (len(entries), part.size)
        for i in entries:
            direction = np.eye(1, probe.point.size, i)[0]
            slope = _slope(probe, method, direction, rtol, h)
            if name != "dx" and not _well_known(slope, rtol):
                slope = _farther(slope, _slope(probe, method, direction, rtol, h, _FAR))
            found[name].append(slope)
    return _report(_TITLE[method], rtol, probe, found, checked)


def directional_check(forward, backward, x, gamma, beta, *, method="central", rtol=None, seed=0):
    """Move x, gamma and beta along one random direction: does the loss change as predicted?

    An entry moves in inverse proportion to the gradient that backward returns, if that is at least
    a thousandth of the largest of its array, so that entries with small gradients count too. The
    scale is the root of the sum of squared terms, gradient times move. Only the part of an error
    along the direction is seen: what one seed misses, another seed may find.

    Parameters
    ----------
    forward, backward, x, gamma, beta, method, seed
        As for `gradcheck`.
    rtol : float, optional
        By default 1e-8 (central) or 1e-12 (complex).

    Returns
    -------
    Report
        With one entry, "directional".

    Raises
    ------
    TypeError, ValueError
        As `gradcheck`.
    """
    probe = _Probe(forward, backward, x, gamma, beta, seed, method, rtol)
    rtol = rtol or max(RTOL[method], 1e-12)
    direction = np.concatenate([_move(d.ravel(), probe.rng) for d in probe.arrays(probe.gradient)])
    # In rows of two numbers the terms nearly cancel, and the root of their squares is far smaller.
    found = _slope(probe, method, direction, rtol / 1000)
    found = found._replace(size=np.linalg.norm(probe.gradient * direction))
    return _one_number(f"directional {_TITLE[method]}", rtol, probe, "directional", found)


def adjoint_check(jvp, forward, backward, x, gamma, beta, *, rtol=1e-12, seed=0):
    """Test <J v, u> = <v, J^T u>: is the backward pass the transpose of the forward derivative?

    No step size, hence no truncation; but it trusts jvp. The error is relative to the root of the
    sum of squared terms.

    Parameters
    ----------
    jvp : callable
        jvp(x, gamma, beta, vx, vgamma, vbeta) -> the derivative of y along (vx, vgamma, vbeta).
    forward, backward, x, gamma, beta, seed
        As for `gradcheck`.
    rtol : float

    Returns
    -------
    Report
        With one entry, "adjoint".

    Raises
    ------
    TypeError, ValueError
        As `gradcheck`, and if jvp does not return the shape of y.
    """
    probe = _Probe(forward, backward, x, gamma, beta, seed, rtol=rtol)
    v = probe.rng.standard_normal(probe.point.size)
    Jv = np.asarray(jvp(*probe.arrays(probe.point), *probe.arrays(v)))
    if Jv.shape != probe.dy.shape:
        raise ValueError(f"jvp must return the shape of y, {probe.dy.shape}, got {Jv.shape}")
    terms = np.append(probe.dy * Jv, -probe.gradient * v)
    found = _Slope(terms.sum(), 0.0, np.linalg.norm(terms))
    return _one_number("adjoint test", rtol, probe, "adjoint", found)


class _Slope(NamedTuple):
    """A numerical derivative along a direction, less what the gradients predict of it.

    Attributes
    ----------
    value : float
        0 if the gradients are right.
    error : float
        Of the value, as estimated.
    size : float
        The sum of the sizes of the derivative's terms.
    step : float
        With which the derivative was taken.
    bend : float
        Half the difference of the slopes on either side.
    """

    value: float
    error: float
    size: float
    step: float = 0.0
    bend: float = 0.0


_UNKNOWN = _Slope(*[np.nan] * 5)


class _Probe:
    """A point, a random dy, and the gradients there; x, gamma and beta are joined to a vector.

    Attributes
    ----------
    point, gradient : ndarray, shape (M,)
        The gradient is zero where it cannot be compared.
    shapes, starts : sequence
        Of x, gamma and beta, in these vectors.
    dy, y0 : ndarray, shape of x
        y0 is y at the point.
    eps : float
        Of the dtype that holds y.
    problems, unjudged : dict of str to str
        As in a `Report`.
    rng : numpy.random.Generator
    """

    def __init__(self, forward, backward, x, gamma, beta, seed, method="central", rtol=None):
        if method not in RTOL:
            raise ValueError(f'method must be "central" or "complex", got {method!r}')
        if rtol is not None and not rtol > 0:
            raise ValueError(f"rtol must be positive, got {rtol}")
        arrays = _checked_arrays(x, gamma, beta)
        self.shapes = [array.shape for array in arrays]
        self.starts = np.cumsum([0, arrays[0].size, arrays[1].size])
        self.point = np.concatenate(arrays, axis=None, dtype=np.float64)
        self.rng = np.random.default_rng([seed, 2016])  # not a caller's default_rng(seed)
        self.forward, self.gradient, self.problems = forward, np.zeros_like(self.point), {}
        returned = self._run(backward)
        self.unjudged = _not_repeatable(self)
        if method == "complex" and not self.unjudged:
            self.unjudged = _not_analytic(self)
        self._keep(returned)

    def _run(self, backward):
        """Run both passes, on copies; return what backward returned."""
        y, cache = self.forward(*self.arrays(self.point.copy()))
        y, shape = np.array(y), self.shapes[0]
        if y.shape != shape:
            raise ValueError(f"forward must return y in the shape of x, {shape}, got {y.shape}")
        self.y0, held = y, _held(y, self.point)
        self.eps = np.finfo(np.result_type(held, np.float16)).eps
        if held != np.float64:
            self.problems["forward"] = f"y in {held} for float64 input, which limits the check"
        self.dy = self.rng.standard_normal(shape)
        returned = backward(self.dy.copy(), cache)
        if not isinstance(returned, tuple | list) or len(returned) != 3:
            raise ValueError(f"backward must return dx, dgamma, dbeta, got {returned!r:.60}")
        return returned

    def _keep(self, returned):
        """Keep the gradients that can be compared."""
        for name, value, part in zip(_NAMES, returned, self.arrays(self.gradient)):
            d = np.asarray(value)
            if d.shape != part.shape or d.dtype.kind not in "fiu":
                got = f"shape {d.shape} and dtype {d.dtype}"
                self.problems[name] = f"{got}, expected {part.shape} and real numbers"
            elif not np.isfinite(d).all():
                self.problems[name] = "values that are not finite"
            else:
                part[...] = d

    def arrays(self, vector):
        """Return the parts in the shapes of x, gamma and beta."""
        parts = zip(self.starts, [*self.starts[1:], vector.size], self.shapes)
        return [vector[start:end].reshape(shape) for start, end, shape in parts]

    def y(self, vector):
        """Return a copy of y, as forward may reuse its array."""
        return np.array(self.forward(*self.arrays(vector))[0])


def _checked_arrays(x, gamma, beta):
    """Return x, gamma and beta as arrays; TypeError or ValueError if they do not fit."""
    arrays = [np.asarray(a) for a in (x, gamma, beta)]
    for name, array in zip(("x", "gamma", "beta"), arrays):
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} must be real, got dtype {array.dtype}")
    dims = [array.shape for array in arrays]
    if 0 in dims[0] or not dims[0][-1:] == dims[1] == dims[2] != ():
        raise ValueError(f"x, gamma, beta must be (..., D), (D,), (D,), not empty, got {dims}")
    return arrays


def _held(y, point):
    """Return the dtype of y, or that of fewer digits which holds y if it does not hold the point.

    A forward pass in float32 may return its y as float64.
    """
    for dtype in (np.float16, np.float32) if y.dtype == np.float64 else ():
        with np.errstate(all="ignore"):
            if np.any(point.astype(dtype) != point) and np.all(y.astype(dtype) == y):
                return np.dtype(dtype)
    return y.dtype


def _not_repeatable(probe):
    """Return what to say if two calls with the same input differ by more than rounding."""
    with np.errstate(all="ignore"):
        apart = np.max(np.abs(probe.y(probe.point.copy()) - probe.y0))
        if not apart > 1000 * probe.eps * np.max(np.abs(probe.y0)):
            return {}
    return {"forward": f"no single y: two calls with the same input differ by {apart:.0e}"}


def _slope(probe, method, direction, rtol, h=None, reach=_REACH):
    """Return the slope along a direction; no step moves an array by more than reach times it."""
    sizes, moves = np.maximum.reduceat(np.abs([probe.point, direction]), probe.starts, axis=1)
    longest = max(reach * max(1, size) / move for size, move in zip(sizes, moves) if move)
    if method == "complex":
        return _complex_slope(probe, direction, rtol, h, _TINY * longest)
    measure = _central_differences(probe, direction)
    if h is not None:
        return measure(h)._replace(error=0.0)
    found = _extrapolated(measure, longest)
    # What y changes by less than its rounding, no step shows.
    hidden = probe.eps / 2 * np.sum(np.abs(probe.dy * probe.y0)) / longest
    return found._replace(error=found.error + hidden)


def _well_known(slope, rtol):
    """Say of which slopes the error is small beside the size."""
    return _SAFETY * slope.error <= max(rtol, _COARSE) * slope.size


def _farther(near, far):
    """Return the slope by long steps if that by short steps, within its error, agrees; else that.

    In rows of hardly any spread y hardly moves with gamma. Long steps show a slope there, as y is
    nearly always linear in gamma and beta. Where it is not, they may miss a narrow bend.
    """
    agree = abs(far.value - near.value) <= _SAFETY * near.error
    return far if agree and far.error < near.error else near


# ---- The complex step ----------------------------------------------------------------------------


def _complex_slope(probe, direction, rtol, h, tiny):
    """Return the slope by a complex step of h, or by a tiny one, then with its error."""
    found = _complex_step(probe, direction, h or tiny)
    if h is None and abs(found.value) > rtol * found.size:
        # Another step is rounded in another way, and that is all that it changes.
        steps = tiny * (1 + np.arange(9) / 9)
        others = [_complex_step(probe, direction, step).value for step in steps]
        found = found._replace(error=np.ptp(others))
    return found


def _complex_step(probe, direction, h):
    y = probe.y(probe.point + 1j * (h * direction))
    if not np.iscomplexobj(y):
        raise TypeError("forward must carry complex input through to y; it returned a real y")
    terms = probe.dy * y.imag / h
    return _Slope(terms.sum() - probe.gradient @ direction, 0.0, np.abs(terms).sum())


def _not_analytic(probe):
    """Return what to say if complex step and central differences disagree along a direction.

    First x moves, each row in proportion to its spread. Then gamma and beta do: moved together,
    one of them may hide the other.
    """
    x, gamma, beta = probe.arrays(probe.point)
    spread = np.ptp(x, axis=-1, keepdims=True)  # squares could overflow
    moves = np.where(spread > 0, spread, np.ones_like(x)), np.ones_like(gamma), np.ones_like(beta)
    sizes, in_x = np.concatenate(moves, axis=None), np.arange(probe.point.size) < x.size
    for moving in (in_x, ~in_x):
        signs = probe.rng.choice([-1.0, 1.0], probe.point.size)
        direction = np.where(moving, signs * sizes, 0)
        central, complex_step = (_slope(probe, method, direction, rtol=1) for method in RTOL)
        slopes = complex_step.value, central.value
        allowed = _SAFETY * central.error + 1e-5 * central.size / np.sqrt(x.size)
        if abs(slopes[0] - slopes[1]) > allowed:
            found = "{:.3g} along one direction, {:.3g} by differences".format(*slopes)
            advice = "np.var, abs and max are not analytic: use central differences"
            return {"forward": f"no complex derivative: {found}. {advice}"}
    return {}


# ---- Central differences, extrapolated to step 0 -------------------------------------------------


def _central_differences(probe, direction):
    """Return a function of h: the slope by steps of h, whose error is what rounding explains."""
    moved = np.zeros(probe.dy.shape, bool)  # the entries of y that any step so far has changed

    def measure(h):
        steps = _exact_steps(probe, h * direction)
        if steps is None:
            return _UNKNOWN
        high, low = probe.y(probe.point + steps), probe.y(probe.point - steps)
        moved[(high != probe.y0) | (low != probe.y0)] = True
        terms = probe.dy * (high - low) / 2
        change = terms.sum() - probe.gradient @ steps
        sizes = np.abs(probe.dy) * (np.abs(high) + np.abs(low))
        rounding = probe.eps / 2 * np.sum(sizes, where=moved)
        bend = np.abs(np.sum(probe.dy * ((high - probe.y0) + (low - probe.y0)) / 2))
        step = np.abs(steps).max() / np.abs(direction).max()
        return _Slope(change / step, rounding / step, np.abs(terms).sum() / step, step, bend / step)

    return measure


def _exact_steps(probe, wanted):
    """Return steps near the wanted ones, so that point + step and point - step are floats.

    Return None where floats are so far apart that the steps of an array change by a tenth.
    """
    size = np.abs(probe.point)
    steps = np.copysign(size + np.abs(wanted) - size, wanted)
    off, whole = np.add.reduceat(np.abs([steps - wanted, wanted]), probe.starts, axis=1)
    return None if np.any(off > whole / 10) else steps


def _extrapolated(measure, longest):
    """Return the slope at step 0, and how well it is known.

    Parameters
    ----------
    measure : callable
        Of a step: the `_Slope` with that step.
    longest : float
        The step to begin with.
    """
    measure = functools.cache(measure)
    with np.errstate(all="ignore"):
        steps, kink = _settled_steps(measure, longest)
        best = _refined(measure, steps)
        # At the kink of |x| a slope of exactly 0 tells nothing.
        return best._replace(value=best.value or kink, error=best.error + kink)


def _settled_steps(measure, longest):
    """Return the longest steps that tell the slope, each a 64th of the one before, and the kink.

    The kink is a bend that does not shrink with the step: so far off may the slope be.
    """
    step, kink = longest, 0.0
    while True:
        steps = step, step / 64, step / 4096
        coarse, middle, fine = map(measure, steps)
        if _bends_less(middle, fine):
            kink = 0.0
        elif fine.bend > _explained(middle, fine):
            kink = fine.bend
        if _settled(coarse, middle, fine) or step < longest / 1e60:
            return steps, kink
        step /= 64


def _settled(coarse, middle, fine):
    """Say whether the slopes at three steps agree, and better and better.

    From afar x + tanh(x) looks like x: then slopes agree too, but less and less. At a kink all
    slopes agree, but those on either side of it do not come closer.
    """
    if not fine.step > 0:  # floats are too far apart for smaller steps
        return True
    first, second = abs(coarse.value - middle.value), abs(middle.value - fine.value)
    apart = max(first, abs(coarse.size - middle.size))
    agree = apart - middle.size / 5 <= _SAFETY * middle.error
    better = second <= first / 4 + _SAFETY * (middle.error + fine.error)
    return agree and better and _bends_less(middle, fine, _explained(middle, fine))


def _bends_less(middle, fine, explained=0.0):
    """Say whether the slopes on either side come closer as the step shrinks."""
    return fine.bend <= middle.bend / 8 + fine.size / 1e7 + explained


def _explained(middle, fine):
    """Return how large a bend rounding and truncation make."""
    return _SAFETY * (2 * fine.error + abs(middle.value - fine.value))


def _refined(measure, steps):
    """Take more steps until the extrapolated slope is well known, or there are no more to try.

    They are longer ones if its error is mostly rounding, and shorter ones if it is truncation.
    """
    first, (_, middle, fine) = steps[0], map(measure, steps)
    within = 2 * abs(middle.value - fine.value) + _SAFETY * (middle.error + fine.error)
    longer = iter((4, 16, 2, 8, 1 / 4, 1 / 2))
    shorter = iter(4**n for n in (1, 2, 4, 5, 7, 8, 9, 10, 11))
    while True:
        slopes = [measure(step) for step in sorted(steps, reverse=True)]
        best, rounding = _best_extrapolation(slopes, middle.value, within)
        divisor = next(longer if best.error < 2 * rounding else shorter, None)
        if best.error <= _ENOUGH * best.size or best.size == 0 or divisor is None:
            return best
        steps = {*steps, first / divisor}


def _best_extrapolation(slopes, near, within):
    """Return the best of Neville's extrapolations in step**2, and the rounding in its error.

    Each is made of two numbers, from longer steps and from shorter ones. Its error is the distance
    from both, and their rounding. It is larger for what lies further from near than within: large
    steps may agree by chance.
    """
    table = np.array(slopes)  # (steps, 5)
    finite = _Slope(*table[np.isfinite(table).all(axis=1)].T)  # (steps,) each
    values, steps = finite.value, finite.step
    noise = finite.error * _noise_factor(values, finite.error, steps)
    best, rounding = _UNKNOWN._replace(error=np.inf), np.inf
    for k in range(1, len(steps)):
        coarse, fine, ratio = values[:-1], values[1:], (steps[:-k] / steps[k:]) ** 2 - 1
        values = fine + (fine - coarse) / ratio
        noise = noise[1:] + (noise[1:] + noise[:-1]) / ratio
        errors = np.maximum(np.abs(values - fine), np.abs(values - coarse)) + noise
        errors = np.fmin(np.fmax(errors, np.abs(values - near) - within), np.inf)  # no nan
        i = np.argmin(errors)
        if errors[i] < best.error:
            best, rounding = _Slope(values[i], errors[i], finite.size[i + k]), noise[i]
    return best, rounding


def _noise_factor(values, noise, steps):
    """Return how many times larger than its error the last slope's noise seems to be, at least 1.

    The last two slopes differ by truncation, which the two before tell, and by noise.
    """
    if len(steps) < 3:
        return 1
    truncation = 4 * abs(values[-3] - values[-2]) * (steps[-2] / steps[-3]) ** 2
    return max(1, (abs(values[-2] - values[-1]) - truncation) / noise[-1])


# ---- Verdicts ------------------------------------------------------------------------------------


def _move(d, rng):
    """Return a random move of about the same effect for every entry of the gradient d."""
    size = np.abs(d).max() or 1
    return rng.standard_normal(d.size) / np.maximum(np.abs(d), size / 1000) / np.sqrt(d.size)


def _report(title, rtol, probe, found, checked):
    """Judge the slopes found, a list for each name, which is empty if none could be compared."""
    judged = {name: _judged(slopes, rtol) for name, slopes in found.items()}
    errors = {name: error for name, (error, _, _) in judged.items()}
    doubts = {name: doubt for name, (_, _, doubt) in judged.items() if doubt}
    checked = {
        name: (round(share * checked[name][0]), checked[name][1])
        for name, (_, share, _) in judged.items()
    }
    return Report(title, rtol, errors, checked, probe.problems, probe.unjudged | doubts)


def _judged(slopes, rtol):
    """Return the largest error of what can be judged, its share, and what to say of the others.

    Errors are relative; one of rtol is one that the estimate, with rounding, just allows.
    """
    if not slopes:
        return np.nan, 1, ""
    found = _Slope(*np.transpose(slopes))  # (entries,) each
    value, size, known = found.value, found.size, _SAFETY * found.error
    largest = np.fmax.reduce(size, initial=0)
    with np.errstate(all="ignore"):
        allowed = rtol * size + known + _ROUNDING * largest
        relative = np.where(value == 0, 0, rtol * np.abs(value) / allowed)
        well_known = _well_known(found, rtol)
        too_small_to_matter = known <= rtol * largest
        wrongly_not_zero = (size == 0) & (np.abs(value) > known)
        sure = (value == 0) | well_known | too_small_to_matter | wrongly_not_zero
        worst_known = np.max((known / size)[~sure], initial=0)
    doubt = f"{np.sum(~sure)} of {sure.size} entries whose numerical derivative is known to"
    doubt = "" if sure.all() else f"{doubt} {worst_known:.0e} only"
    return np.max(relative[sure], initial=0), np.mean(sure), doubt


def _one_number(title, rtol, probe, name, slope):
    """Report on one slope along a direction in which all entries move."""
    usable, size = probe.problems.keys() <= {"forward"}, probe.point.size
    checked = {name: (size if usable else 0, size)}
    return _report(title, rtol, probe, {name: [slope] if usable else []}, checked)
