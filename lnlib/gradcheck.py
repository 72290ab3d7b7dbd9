"""Is this backward pass the derivative of this forward pass? Four ways to ask.

Every check uses the scalar probe L = sum(dy * y) with a random dy and works in float64. Nothing
here knows the layer: how far an array can be moved, and the size that its gradient has where
nothing cancels, are measured on the forward pass (see `_scales`). Errors are relative to that
size, so that a gradient which is zero for a good reason is not called wrong for its rounding.
"""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from tqdm import tqdm

RTOL = {"central": 1e-8, "complex": 1e-14}
_STEP = {"central": np.cbrt(2.0**-52), "complex": 1e-30}  # of the length on which y bends
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
        Largest error of each gradient, relative as the module says; nan if a value was not finite
        or not comparable, inf if a gradient should be zero and is not. Neither ever passes.
    checked : dict of str to (int, int)
        How many entries were compared, of how many.
    problems : dict of str to str
        Why a gradient could not be compared.
    """

    method: str
    rtol: float
    errors: dict
    checked: dict
    problems: dict

    @property
    def passed(self):
        """True if every error is finite and at most rtol."""
        return all(np.isfinite(e) and e <= self.rtol for e in self.errors.values())

    def __str__(self):
        lines = [
            f"{self.method}, tolerance {self.rtol:.0e}: {'passed' if self.passed else 'FAILED'}"
        ]
        for name, error in self.errors.items():
            size = f"<= {self.rtol:.0e}" if error <= self.rtol else f"{error:.1e}"
            done, total = self.checked[name]
            lines.append(f"  {name:<11} {size:<9} {done} of {total} entries")
        lines += [f"  {name} has {problem}" for name, problem in self.problems.items()]
        return "\n".join(lines)


def gradcheck(
    forward, backward, x, gamma, beta, *,
    method="central", h=None, sample=None, rtol=None, seed=0, progress=False,
):  # fmt: skip
    """Compare dx, dgamma, dbeta with a numerical derivative, one entry at a time.

    Parameters
    ----------
    forward : callable
        forward(x, gamma, beta) -> (y, cache), y of the shape of x and linear in gamma and beta.
    backward : callable
        backward(dy, cache) -> (dx, dgamma, dbeta).
    x : array_like, shape (..., D)
    gamma, beta : array_like, shape (D,)
        Real; taken as float64. Values that differ from entry to entry test most.
    method : {"central", "complex"}
        Central differences [1]_ divide by the step really taken, (x + h) - (x - h). They lose
        digits where x has an offset beyond 1e11 spreads, or beta is a hundred times gamma or
        more. The complex step [2]_ subtracts nothing; forward must accept complex input.
    h : float, optional
        Step, the same for every entry. By default it fits the length on which y bends, which is
        measured row by row: cbrt(2**-52) or 1e-30 of it for x. In gamma and beta y is linear:
        a central step changes y by its own size or more, a complex one is 1e-30 of that.
    sample : int, optional
        Check this many randomly chosen entries of each array. By default all of them.
    rtol : float, optional
        By default 1e-8 (central) or 1e-14 (complex). An error in dx is relative to the steepest
        mean slope of dy * y in its row, one in dgamma and dbeta to the largest sum of
        |dy * change of y| of any column.
    seed : int
        For dy, the directions and the choice of entries.
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
    .. [1] P. E. Gill, W. Murray, M. H. Wright, "Practical Optimization", 1981, section 8.6.
    .. [2] W. Squire, G. Trapp, SIAM Review 40 (1998) 110-112, doi:10.1137/S003614459631241X.
    """
    if h is not None and not h > 0:
        raise ValueError(f"h must be positive, got {h}")
    if sample is not None and (not isinstance(sample, Integral) or sample is True or sample < 1):
        raise ValueError(f"sample must be a positive integer or None, got {sample!r}")
    rtol = _tolerance(method, rtol, RTOL)
    point, dy, gradients, problems, rng = _probe(forward, backward, x, gamma, beta, seed)
    lengths, yardsticks = _scales(forward, point, dy, rng)
    unit = (_STEP[method], *2 * [1 if method == "central" else _STEP[method]])
    errors, checked = {}, {}
    for k, (name, d, p) in enumerate(zip(_NAMES, gradients, point)):
        errors[name], checked[name] = np.nan, (0, p.size)
        if name in problems:
            continue
        entries, numeric = rng.permutation(p.size)[:sample], []
        for i in tqdm(entries, desc=name, disable=not progress):
            steps = [np.zeros_like(p) for p in point]
            steps[k].flat[i] = unit[k] * lengths[k].flat[i] if h is None else h
            change, taken = _change(forward, point, steps, dy, method)
            numeric.append(change / taken[k].flat[i])
        error = _relative(d.ravel()[entries] - numeric, yardsticks[k].ravel()[entries])
        errors[name] = error if np.isfinite(d).all() else np.nan
        checked[name] = len(entries), p.size
    return Report(_TITLE[method], rtol, errors, checked, problems)


def directional_check(forward, backward, x, gamma, beta, *, method="central", rtol=None, seed=0):
    """Move x, gamma and beta along one random direction: does the loss change as predicted?

    Twenty to ninety forward passes find out how far x can be moved, one or two more do it, whatever
    the size of x; gamma and beta move by gamma's size. The prediction is the sum of gradient times
    step really taken; the error is relative to the root of the sum of squared terms.

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
    size = np.abs(point[1]).max() or 1  # gamma's, so that no array's share drowns the others'
    lengths = _scales(forward, point, dy, rng)[0][0], size, size
    steps = [_STEP[method] * s * rng.standard_normal(p.shape) for s, p in zip(lengths, point)]
    change, taken = _change(forward, point, steps, dy, method)
    terms = np.concatenate([(d * t).ravel() for d, t in zip(gradients, taken)])
    error = _relative(terms.sum() - change, np.sqrt(np.sum(terms**2)))
    return _one_number(f"directional {_TITLE[method]}", rtol, "directional", error, point, problems)


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
    left = u * Jv
    right = np.concatenate([(d * w).ravel() for d, w in zip(gradients, v)])
    error = _relative(left.sum() - right.sum(), np.sqrt(np.sum(left**2) + np.sum(right**2)))
    return _one_number("adjoint test", rtol, "adjoint", error, point, problems)


def _tolerance(method, rtol, defaults):
    if method not in RTOL:
        raise ValueError(f'method must be "central" or "complex", got {method!r}')
    return defaults[method] if rtol is None else rtol


def _probe(forward, backward, x, gamma, beta, seed):
    """Return the point, a random dy, the gradients, what is wrong with them, and the generator."""
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
    dy = rng.standard_normal(shapes[0])
    gradients = backward(dy.copy(), cache)
    if not isinstance(gradients, tuple | list) or len(gradients) != 3:
        got = f"{len(gradients)} values in a " if isinstance(gradients, tuple | list) else ""
        got += type(gradients).__name__
        raise ValueError(f"backward must return the tuple dx, dgamma, dbeta, got {got}")
    gradients = [np.array(d) for d in gradients]
    problems = {
        name: f"shape {d.shape} and dtype {d.dtype}, expected {p.shape} and real numbers"
        for name, d, p in zip(_NAMES, gradients, point)
        if d.shape != p.shape or d.dtype.kind not in "fiu"
    }
    nothing = [np.full(p.shape, np.nan) for p in point]  # stands for what cannot be compared
    gradients = [n if k in problems else d for k, d, n in zip(_NAMES, gradients, nothing)]
    return point, dy, gradients, problems, rng


def _scales(forward, point, dy, rng):
    """Return the length on which y bends, and the yardstick, of x (row by row), gamma and beta.

    All rows of x move along a random direction, half as far each time. A row's length is the first
    distance at which y bends little: half as far makes half the change, nearly. (So each row is
    taken to have one such length.) Its yardstick is
    the steepest mean slope of dy * y up to there and up to 8 times as far. (The slope at x itself
    may be a remainder: with D = 2 LayerNorm's is what two large numbers leave of each other.)
    """
    x, gamma, beta = point
    y = _y(forward, x, gamma, beta)
    direction = rng.permuted(np.linspace(-1, 2, x.shape[-1]) + 0 * x, axis=-1)  # (..., D)
    distance = 8 * max(1, np.abs(x).max())
    length = np.where(np.isfinite(y).all(axis=-1, keepdims=True), 0.0, 1.0)  # (..., 1)
    steepest, slopes, wider = np.zeros_like(length), [], np.inf
    with np.errstate(all="ignore"):
        while distance > 0 and not length.all():
            move = distance * direction
            change = _y(forward, x + move, gamma, beta) - _y(forward, x - move, gamma, beta)
            slopes.append(np.abs(dy * change).max(axis=-1, keepdims=True) / (2 * distance))
            bend = np.abs(wider - 2 * change).sum(axis=-1, keepdims=True)
            found = (length == 0) & (bend <= np.abs(change).sum(axis=-1, keepdims=True) / 2)
            length[found] = 2 * distance
            steepest[found] = np.fmax.reduce(slopes[-5:])[found]
            wider, distance = change, distance / 2
    lengths, yardsticks = [length], [steepest]
    zero, one = np.zeros_like(gamma), np.ones_like(gamma)
    for ends in ((one, zero), (zero, one)):  # linear: 0 and 1 tell the slope
        change = np.abs(_y(forward, x, *ends) - _y(forward, x, zero, zero))
        largest = change.max()  # a step in gamma or beta changes y by its size or more
        lengths.append(max(1, np.abs(y).max() / largest) if largest > 0 else 1)
        yardsticks.append(np.abs(dy * change).reshape(-1, gamma.size).sum(axis=0).max())
    shapes = [p.shape for p in point]
    return [list(map(np.broadcast_to, values, shapes)) for values in (lengths, yardsticks)]


def _y(forward, *point):
    """Return a copy of y: forward may write every y into the same array."""
    return np.array(forward(*(p.copy() for p in point))[0])


def _change(forward, point, steps, dy, method):
    """Return by how much sum(dy * y) changes along the steps, and the steps really taken."""
    if method == "complex":
        y = _y(forward, *(p + 1j * s for p, s in zip(point, steps)))
        if not np.iscomplexobj(y):
            raise TypeError("forward must carry complex input through to y; it returned a real y")
        return np.sum(dy * y.imag), steps
    # At least to the next float. Subtract y before summing: what does not change adds nothing.
    steps = [np.sign(s) * np.fmax(np.abs(s), np.spacing(np.abs(p))) for p, s in zip(point, steps)]
    plus, minus = [p + s for p, s in zip(point, steps)], [p - s for p, s in zip(point, steps)]
    change = np.sum(dy * (_y(forward, *plus) - _y(forward, *minus)))
    return change, [b - a for a, b in zip(minus, plus)]


def _relative(difference, yardstick):
    """Return the largest |difference| / yardstick; 0 / 0 is 0, and what is not finite gives nan."""
    if not (np.isfinite(difference).all() and np.isfinite(yardstick).all()):
        return np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(difference == 0, 0, np.abs(difference) / yardstick)))


def _one_number(title, rtol, name, error, point, problems):
    size = sum(p.size for p in point)
    return Report(title, rtol, {name: error}, {name: (0 if problems else size, size)}, problems)
