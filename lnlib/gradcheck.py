"""Is this backward pass the derivative of this forward pass? Four ways to ask.

Every check uses the scalar probe L = sum(dy * y) with a random dy and works in float64. Nothing
here knows the layer. A numerical derivative comes with an estimate of its own error: a gradient
fails if the two differ by more than the estimate allows, and where the estimate is too large, the
report says that the check cannot judge. The error of an entry is relative to the sum of
|dy_j * derivative of y_j|, so that it stays small where these terms cancel. What the estimate
allows is added to that size.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

RTOL = {"central": 1e-8, "complex": 1e-14}
_SAFETY = 10  # an error may be larger than its estimate by this factor
_ENOUGH = 1e-10  # relative error of a derivative that needs no further step
_COARSE = 1e-5  # a derivative with a larger relative error judges nothing, unless rtol is larger
_ROUNDING = 2.0**-48  # error that rounding leaves in every entry, relative to the largest one
_TINY = 1e-30  # the complex step, relative to the largest central one
_REACH = (1.1, 1e6, 1e6)  # the largest step, relative to the array: y bends little in gamma, beta
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
        Largest error of each gradient, relative as the module says; nan if it could not be
        compared, inf if an entry should be zero and is not.
    checked : dict of str to (int, int)
        How many entries were compared, of how many.
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
    def passed(self):
        """True if every error is finite and at most rtol, and everything could be judged."""
        small = all(np.isfinite(e) and e <= self.rtol for e in self.errors.values())
        return small and not self.unjudged

    def __str__(self):
        wrong = any(not e <= self.rtol for e in self.errors.values())
        verdict = "FAILED" if wrong else "passed"
        if "forward" in self.unjudged or (self.unjudged and not wrong):
            verdict = "cannot judge"
        lines = [f"{self.method}, tolerance {self.rtol:.0e}: {verdict}"]
        for name, error in self.errors.items():
            size = f"<= {self.rtol:.0e}" if error <= self.rtol else f"{error:.1e}"
            done, total = self.checked[name]
            lines.append(f"  {name:<11} {size:<9} {done} of {total} entries")
        remarks = *self.problems.items(), *self.unjudged.items()
        return "\n".join([*lines, *(f"  {name} has {remark}" for name, remark in remarks)])


def gradcheck(
    forward, backward, x, gamma, beta, *,
    method="central", h=None, sample=None, rtol=None, seed=0, progress=False,
):  # fmt: skip
    """Compare dx, dgamma, dbeta with a numerical derivative, one entry at a time.

    Parameters
    ----------
    forward : callable
        forward(x, gamma, beta) -> (y, cache), y of the shape of x.
    backward : callable
        backward(dy, cache) -> (dx, dgamma, dbeta).
    x : array_like, shape (..., D)
    gamma, beta : array_like, shape (D,)
        Real; taken as float64. Values that differ from entry to entry test most.
    method : {"central", "complex"}
        Central differences of several steps are extrapolated to step 0 [1]_ [2]_. The complex
        step [3]_ subtracts nothing; forward must accept complex input and be analytic, without
        abs, max or np.var. Central differences along a random direction test that.
    h : float, optional
        Step, the same for every entry; then nothing is extrapolated or estimated.
    sample : int, optional
        Check this many randomly chosen entries of each array. By default all of them.
    rtol : float, optional
        Relative error that is called wrong, by default 1e-8 (central) or 1e-14 (complex). An
        entry is judged if its numerical derivative is known to 1e-5 or rtol of its own size, or
        to rtol of the largest entry's.
    seed : int
        For dy, the direction and the choice of entries.
    progress : bool
        Show a progress bar on stderr.

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
    rtol = _tolerance(method, rtol, RTOL)
    point, dy, gradients, problems, rng = _probe(forward, backward, x, gamma, beta, seed)
    unjudged = _not_analytic(forward, point, dy, rng) if method == "complex" else {}
    errors, checked = {}, {}
    for k, (name, p) in enumerate(zip(_NAMES, point)):
        errors[name], checked[name] = np.nan, (0, p.size)
        if name in gradients:
            entries, found = rng.permutation(p.size)[:sample], []
            for i in tqdm(entries, desc=name) if progress else entries:
                direction = [np.zeros_like(p) for p in point]
                direction[k].flat[i] = 1
                line = forward, point, dy, direction, gradients
                found.append(_along(method, line, rtol, h, _REACH[k]))
            errors[name], doubts = _verdict(name, found, rtol)
            unjudged |= doubts
            checked[name] = len(entries), p.size
    return Report(_TITLE[method], rtol, errors, checked, problems, unjudged)


def directional_check(forward, backward, x, gamma, beta, *, method="central", rtol=None, seed=0):
    """Move x, gamma and beta along one random direction: does the loss change as predicted?

    An entry moves in inverse proportion to its gradient, if that is at least a thousandth of the
    largest of its array, so that entries with small gradients count too. The error is relative to
    the root of the sum of squared terms, gradient times move.

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
    rtol = _tolerance(method, rtol, {"central": 1e-8, "complex": 1e-12})
    point, dy, gradients, problems, rng = _probe(forward, backward, x, gamma, beta, seed)
    unjudged = _not_analytic(forward, point, dy, rng) if method == "complex" else {}
    found = None
    if len(gradients) == 3:
        direction = [_direction(d, rng) for d in gradients.values()]
        found = _along(method, (forward, point, dy, direction, gradients), rtol)
        terms = [d * v for d, v in zip(gradients.values(), direction)]
        found = found._replace(size=np.sqrt(sum(np.sum(t * t) for t in terms)))
    title = f"directional {_TITLE[method]}"
    return _one_number(title, rtol, "directional", found, point, problems, unjudged)


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
    point, u, gradients, problems, rng = _probe(forward, backward, x, gamma, beta, seed)
    v = [rng.standard_normal(p.shape) for p in point]
    Jv = np.asarray(jvp(*point, *v))
    if Jv.shape != u.shape:
        raise ValueError(f"jvp must return the shape of y, {u.shape}, got {Jv.shape}")
    found, left = None, u * Jv
    if len(gradients) == 3:
        right = np.concatenate([(d * w).ravel() for d, w in zip(gradients.values(), v)])
        size = np.sqrt(np.sum(left**2) + np.sum(right**2))
        found = _Slope(left.sum() - right.sum(), 0.0, size)
    return _one_number("adjoint test", rtol, "adjoint", found, point, problems, {})


class _Slope(NamedTuple):
    """The derivative less what the gradients predict, its error, its terms' size, and the step."""

    value: float
    error: float
    size: float
    step: float = 0.0


def _tolerance(method, rtol, defaults):
    if method not in RTOL:
        raise ValueError(f'method must be "central" or "complex", got {method!r}')
    if rtol is not None and not rtol > 0:
        raise ValueError(f"rtol must be positive, got {rtol}")
    return defaults[method] if rtol is None else rtol


def _probe(forward, backward, x, gamma, beta, seed):
    """Return the point, a random dy, the usable gradients, all problems, and the generator."""
    point = []
    for name, value in (("x", x), ("gamma", gamma), ("beta", beta)):
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} must be real, got dtype {array.dtype}")
        point.append(array.astype(np.float64, order="C"))
    shapes = [p.shape for p in point]
    if 0 in shapes[0] or not shapes[0][-1:] == shapes[1] == shapes[2] != ():
        raise ValueError(f"x, gamma, beta must be (..., D), (D,), (D,), not empty, got {shapes}")
    rng = np.random.default_rng([seed, 2016])  # not the stream of a caller's default_rng(seed)
    y, cache = forward(*(p.copy() for p in point))  # copies: forward or backward may write
    if np.shape(y) != shapes[0]:
        raise ValueError(f"forward must return y in the shape of x, {shapes[0]}, got {np.shape(y)}")
    y_dtype, dy = np.asarray(y).dtype, rng.standard_normal(shapes[0])
    returned = backward(dy.copy(), cache)
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        got = f"{len(returned)} values in a " if isinstance(returned, tuple | list) else ""
        got += type(returned).__name__
        raise ValueError(f"backward must return the tuple dx, dgamma, dbeta, got {got}")
    gradients, problems = {}, {}
    if y_dtype != np.float64:
        problems["forward"] = f"y in {y_dtype} for float64 input, so its rounding limits the check"
    for name, value, p in zip(_NAMES, returned, point):
        d = np.array(value)
        if d.shape != p.shape or d.dtype.kind not in "fiu":
            got = f"shape {d.shape} and dtype {d.dtype}"
            problems[name] = f"{got}, expected {p.shape} and real numbers"
        elif not np.isfinite(d).all():
            problems[name] = "values that are not finite"
        else:
            gradients[name] = d.astype(np.float64)
    return point, dy, gradients, problems, rng


def _along(method, line, rtol, h=None, reach=1.1):
    """Return the slope along a line = (forward, point, dy, direction, gradients)."""
    ends = [(np.abs(p).max(), np.abs(v).max()) for p, v in zip(line[1], line[3]) if v.any()]
    start = max(reach * max(1, size) / move for size, move in ends)
    if method == "central":
        measure = _central_difference(*line)
        return _extrapolated(measure, start) if h is None else measure(h)._replace(error=0.0)
    found = _complex_step(*line, h or _TINY * start)
    if h is None and abs(found.value) > rtol * found.size:
        # Another step is rounded in another way, and that is all that it changes.
        others = [_complex_step(*line, _TINY * start * (1 + k / 9)).value for k in range(1, 9)]
        found = found._replace(error=np.ptp([found.value, *others]))
    return found


def _complex_step(forward, point, dy, direction, gradients, h):
    y = np.asarray(forward(*(p + 1j * (h * v) for p, v in zip(point, direction)))[0])
    if not np.iscomplexobj(y):
        raise TypeError("forward must carry complex input through to y; it returned a real y")
    terms = dy * y.imag / h
    return _Slope(terms.sum() - _predicted(gradients, direction), 0.0, np.abs(terms).sum())


def _predicted(gradients, moves):
    return sum(np.sum(gradients[name] * m) for name, m in zip(_NAMES, moves) if name in gradients)


def _central_difference(forward, point, dy, direction, gradients):
    """Return a function: step -> slope, whose error is what the rounding of y explains."""
    moved = np.zeros(dy.shape, bool)  # by any step so far: the rest of y cannot be off

    def measure(h):
        # |p| + |s| is a float, so p lies halfway between the floats p + s and p - s.
        away = [np.abs(p) + h * np.abs(v) - np.abs(p) for p, v in zip(point, direction)]
        steps = [np.copysign(s, v) for s, v in zip(away, direction)]
        off = [np.abs(s - h * v).sum() > h * np.abs(v).sum() / 10 for s, v in zip(steps, direction)]
        if any(off):  # floats are too far apart for this step
            return _Slope(np.nan, np.nan, np.nan)
        ends = [p + s for p, s in zip(point, steps)], [p - s for p, s in zip(point, steps)]
        high, low = (np.array(forward(*end)[0]) for end in ends)  # copies, as forward may reuse y
        moved[high != low] = True
        terms = dy * (high - low) / 2
        eps = np.finfo(np.result_type(high, np.float16)).eps
        rounding = eps / 2 * np.sum(np.abs(dy) * (np.abs(high) + np.abs(low)), where=moved)
        step = max(s.max() for s in away) / max(np.abs(v).max() for v in direction)
        change = terms.sum() - _predicted(gradients, steps)
        return _Slope(change / step, rounding / step, np.abs(terms).sum() / step, step)

    return measure


def _extrapolated(measure, start):
    """Return the slope at step 0, from the largest steps that tell it.

    The step shrinks by 64 until slopes settle. Then more steps are taken, smaller ones if the
    error is mostly truncation and larger ones if it is rounding, until the error is small.
    """
    slopes, top = {}, start

    def at(h):
        slopes[h] = slopes.get(h) or measure(h)
        return slopes[h]

    with np.errstate(all="ignore"):
        while not _settled(at(top), at(top / 64), at(top / 4096)) and top > start / 1e60:
            top /= 64
        smaller = (4**n for n in (1, 2, 4, 5, 7, 8, 9, 10, 11))
        larger = iter((4, 16, 2, 8, 1 / 4, 1 / 2))
        while True:
            best, rounding = _ridders([slopes[h] for h in sorted(slopes)[::-1] if h < 64 * top])
            divisor = next(larger if best.error < 2 * rounding else smaller, None)
            if best.error <= _ENOUGH * best.size or best.size == 0 or divisor is None:
                return best
            at(top / divisor)


def _settled(coarse, middle, fine):
    """Say whether slopes at three steps, each 64 times smaller, agree, and better and better.

    From afar x + tanh(x) looks like x: then slopes agree too, but less and less.
    """
    first, second = abs(coarse.value - middle.value), abs(middle.value - fine.value)
    apart = max(first, abs(coarse.size - middle.size)) - middle.size / 5
    agree = apart <= _SAFETY * middle.error
    better = second <= first / 4 + _SAFETY * (middle.error + fine.error)
    return not fine.step > 0 or (agree and better)


def _ridders(slopes):
    """Return the best of Neville's extrapolations in step**2, and the rounding in its error.

    Its error is the distance from the two numbers that it was made of, and their rounding.
    """
    best, rounding, above, steps = _Slope(np.nan, np.inf, np.nan), np.inf, [], []
    slopes, excess = [slope for slope in slopes if np.isfinite(slope).all()], 1
    if len(slopes) > 2:  # do the last two differ by more than truncation and rounding explain?
        long, middle, short = slopes[-3:]
        truncation = 4 * abs(long.value - middle.value) * (middle.step / long.step) ** 2
        excess = max(1, (abs(middle.value - short.value) - truncation) / short.error)
    for slope in slopes:
        steps, row = [slope.step, *steps], [(slope.value, excess * slope.error)]
        for (coarse, coarse_noise), longer in zip(above, steps[1:]):
            (fine, noise), ratio = row[-1], (longer / slope.step) ** 2 - 1
            value, noise = fine + (fine - coarse) / ratio, noise + (noise + coarse_noise) / ratio
            error = max(abs(value - fine), abs(value - coarse)) + noise
            if error < best.error:
                best, rounding = _Slope(value, error, slope.size), noise
            row.append((value, noise))
        above = row
    return best, rounding


def _direction(d, rng):
    """Return a random move of about the same effect for every entry of the gradient d."""
    size = np.abs(d).max() or 1
    return rng.standard_normal(d.shape) / np.maximum(np.abs(d), size / 1000) / np.sqrt(d.size)


def _not_analytic(forward, point, dy, rng):
    """Return what to say if complex step and central differences disagree along a direction."""
    direction = [rng.choice([-1.0, 1.0], p.shape) * (p is point[0]) for p in point]
    line = forward, point, dy, direction, {}
    central, complex_step = (_along(method, line, rtol=1) for method in RTOL)
    if abs(central.value - complex_step.value) > _SAFETY * central.error + 1e-4 * central.size:
        got = f"the complex step gives {complex_step.value:.3g}, central differences "
        got += f"{central.value:.3g}. np.var, abs and max are not analytic: use central differences"
        return {"forward": f"no complex derivative: along one direction {got}"}
    return {}


def _verdict(name, found, rtol):
    """Return the largest error of the entries that can be judged, and what to say of the rest."""
    value, error, size, _ = np.transpose(found)
    with np.errstate(all="ignore"):
        known, largest = _SAFETY * error, np.fmax.reduce(size)
        allowed = rtol * size + known + _ROUNDING * largest
        relative = np.where(value == 0, 0, rtol * np.abs(value) / allowed)
        sure = (value == 0) | (known <= max(rtol, _COARSE) * size) | (known <= rtol * largest)
        worst = np.max((known / size)[~sure], initial=0)
    doubt = f"{np.sum(~sure)} of {sure.size} entries whose numerical derivative is known to "
    doubt += f"{worst:.0e} only"
    return np.max(relative[sure], initial=0), {} if sure.all() else {name: doubt}


def _one_number(title, rtol, name, found, point, problems, unjudged):
    size = sum(p.size for p in point)
    error, doubts = (np.nan, {}) if found is None else _verdict(name, [found], rtol)
    checked = 0 if found is None else size, size
    return Report(title, rtol, {name: error}, {name: checked}, problems, unjudged | doubts)
