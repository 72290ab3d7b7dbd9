"""Is this backward pass the derivative of this forward pass? Four ways to ask.

Every check uses the scalar probe L = sum(dy * y) with a random dy and works in float64. `gradcheck`
divides every error by the size that the gradient has where nothing in it cancels: the largest
rstd * |gamma * dy| of the row for dx, the largest sum of absolute terms of any column for dgamma
and dbeta. So a gradient that is zero for a good reason is not called wrong for its rounding.
"""

from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
from tqdm import tqdm

from .layernorm import layer_norm_forward

RTOL = {"central": 1e-8, "complex": 1e-14}
_TITLE = {"central": "central differences", "complex": "complex step"}
_UNIT = {"central": np.cbrt(2.0**-52), "complex": 1e-30}
_NAMES = ("x", "gamma", "beta")


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes
    ----------
    method : str
    rtol : float
    errors : dict of str to float
        Largest error of each gradient, relative as the module says; nan if a value was not finite,
        inf if a gradient could not be compared or should be zero and is not.
    checked : dict of str to (int, int)
        How many entries were compared, of how many.
    problems : dict of str to str
        Why a gradient could not be compared.
    """

    method: str
    rtol: float
    errors: dict
    checked: dict
    problems: dict = field(default_factory=dict)

    @property
    def passed(self):
        """True if every error is at most rtol; a nan never is."""
        return all(error <= self.rtol for error in self.errors.values())

    def __str__(self):
        verdict = "passed" if self.passed else "FAILED"
        lines = [f"{self.method}, tolerance {self.rtol:.0e}: {verdict}"]
        for name, error in self.errors.items():
            size = f"<= {self.rtol:.0e}" if error <= self.rtol else f"{error:.1e}"
            done, total = self.checked[name]
            lines.append(f"  {name:<11} {size:<9} {done} of {total} entries")
        lines += [f"  {name} has {problem}" for name, problem in self.problems.items()]
        return "\n".join(lines)


def gradcheck(
    forward, backward, x, gamma, beta, *,
    method="central", h=None, sample=None, rtol=None, eps=1e-5, seed=0, progress=False,
):  # fmt: skip
    """Compare dx, dgamma, dbeta with a numerical derivative, one entry at a time.

    Parameters
    ----------
    forward : callable
        forward(x, gamma, beta) -> (y, cache).
    backward : callable
        backward(dy, cache) -> (dx, dgamma, dbeta).
    x : array_like, shape (..., D)
    gamma, beta : array_like, shape (D,)
        Real; taken as float64. Values that differ from entry to entry test most.
    method : {"central", "complex"}
        Central differences [1]_ divide by the step really taken, (x + h) - (x - h). They lose
        digits where beta is a thousand times gamma or more, or x has an offset beyond 1e11
        spreads. The complex step [2]_ subtracts nothing; forward must accept complex input.
    h : float, optional
        Step, the same for every entry. By default it fits the length on which y changes:
        cbrt(2**-52) * sqrt(var + eps) for x, 1 for gamma and beta, in which y is linear. For the
        complex step 1e-30 * sqrt(var + eps) and 1e-30.
    sample : int, optional
        Check this many randomly chosen entries of each array. By default all of them.
    rtol : float, optional
        By default 1e-8 (central) or 1e-14 (complex).
    eps : float
        The eps that forward uses. It sets the step and the yardstick for dx, nothing else.
    seed : int
        For dy and for the choice of entries.
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
        If method is unknown, h, sample or a shape does not fit, x is empty, or backward does not
        return three gradients.

    References
    ----------
    .. [1] P. E. Gill, W. Murray, M. H. Wright, "Practical Optimization", 1981, section 8.6.
    .. [2] W. Squire, G. Trapp, SIAM Review 40 (1998) 110-112, doi:10.1137/S003614459631241X.
    """
    if method not in RTOL:
        raise ValueError(f'method must be "central" or "complex", got {method!r}')
    if h is not None and not h > 0:
        raise ValueError(f"h must be positive, got {h}")
    if sample is not None and not _is_count(sample):
        raise ValueError(f"sample must be a positive integer or None, got {sample!r}")
    point = _point(x, gamma, beta)
    dy, gradients, problems, rng = _probe(forward, backward, point, seed)
    std, yardsticks = _scales(dy, *point, eps)
    errors, checked = {}, {}
    for k, name in enumerate(_NAMES):
        size = point[k].size
        if f"d{name}" in problems:
            errors[f"d{name}"], checked[f"d{name}"] = np.inf, (0, size)
            continue
        entries = np.arange(size)
        if sample is not None and sample < size:
            entries = rng.choice(size, sample, replace=False)
        if h is not None:
            steps = np.full(size, h)
        elif name == "x":
            steps = (_UNIT[method] * std).ravel()
        else:  # y is linear in gamma and beta: no step is too large
            steps = np.full(size, 1.0 if method == "central" else _UNIT[method])
        bar = tqdm(entries, desc=f"d{name}", disable=not progress)
        numeric = [_derivative(forward, point, k, i, dy, steps[i], method) for i in bar]
        error = _relative(gradients[k].ravel()[entries] - numeric, yardsticks[k].ravel()[entries])
        errors[f"d{name}"] = error if np.all(np.isfinite(gradients[k])) else np.nan
        checked[f"d{name}"] = len(entries), size
    return Report(_TITLE[method], RTOL[method] if rtol is None else rtol, errors, checked, problems)


def directional_check(forward, backward, x, gamma, beta, *, rtol=1e-8, eps=1e-5, seed=0):
    """Move x, gamma and beta along one random direction: does the loss change as predicted?

    Two more forward passes, whatever the size of x. The prediction is the sum of gradient times
    step really taken; the error is relative to the root of the sum of squared terms.

    Parameters
    ----------
    forward, backward, x, gamma, beta, seed
        As for `gradcheck`.
    rtol : float
    eps : float
        The eps that forward uses. It sets the step for x.

    Returns
    -------
    Report
        With one entry, "directional".

    Raises
    ------
    TypeError, ValueError
        As `gradcheck`.
    """
    point = _point(x, gamma, beta)
    dy, gradients, problems, rng = _probe(forward, backward, point, seed)
    if problems:
        return _one_number("directional difference", rtol, "directional", np.inf, point, problems)
    std = 1 / layer_norm_forward(*point, eps)[1].rstd  # (..., 1)
    plus, minus = [], []
    for p, length in zip(point, (std, 1, 1)):
        step = _UNIT["central"] * length * rng.standard_normal(p.shape)
        step = np.copysign(np.maximum(np.abs(step), np.spacing(np.abs(p))), step)  # p must move
        plus.append(p + step)
        minus.append(p - step)
    terms = np.concatenate([(d * (b - a)).ravel() for d, a, b in zip(gradients, minus, plus)])
    change = np.sum(dy * (forward(*plus)[0] - forward(*minus)[0]))
    error = _relative(terms.sum() - change, np.sqrt(np.sum(terms**2)))
    return _one_number("directional difference", rtol, "directional", error, point)


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
    point = _point(x, gamma, beta)
    u, gradients, problems, rng = _probe(forward, backward, point, seed)
    if problems:
        return _one_number("adjoint test", rtol, "adjoint", np.inf, point, problems)
    v = [rng.standard_normal(p.shape) for p in point]
    Jv = np.asarray(jvp(*point, *v))
    if Jv.shape != u.shape:
        raise ValueError(f"jvp must return the shape of y, {u.shape}, got {Jv.shape}")
    left = u * Jv
    right = np.concatenate([(d * w).ravel() for d, w in zip(gradients, v)])
    error = _relative(left.sum() - right.sum(), np.sqrt(np.sum(left**2) + np.sum(right**2)))
    return _one_number("adjoint test", rtol, "adjoint", error, point)


def _is_count(value):
    return isinstance(value, Integral) and not isinstance(value, bool) and value > 0


def _point(x, gamma, beta):
    point = []
    for name, value in zip(_NAMES, (x, gamma, beta)):
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} must be real, got dtype {array.dtype}")
        point.append(array.astype(np.float64, order="C"))
    shapes = [p.shape for p in point]
    if not shapes[0] or not shapes[0][-1:] == shapes[1] == shapes[2]:
        raise ValueError(f"x, gamma, beta must have shapes (..., D), (D,), (D,), got {shapes}")
    if point[0].size == 0:
        raise ValueError(f"x must not be empty, got shape {shapes[0]}: there is nothing to check")
    return point


def _probe(forward, backward, point, seed):
    """Return a random dy, what backward makes of it, what is wrong with that, and the generator."""
    rng = np.random.default_rng([seed, 2016])  # not the stream of a caller's default_rng(seed)
    y, cache = forward(*(p.copy() for p in point))  # copies: forward or backward may write
    dy = rng.standard_normal(y.shape)
    gradients = backward(dy.copy(), cache)
    if not isinstance(gradients, tuple | list) or len(gradients) != 3:
        got = f"{len(gradients)} values" if hasattr(gradients, "__len__") else type(gradients)
        raise ValueError(f"backward must return dx, dgamma, dbeta, got {got}")
    gradients = [np.asarray(d) for d in gradients]
    problems = {}
    for name, d, p in zip(_NAMES, gradients, point):
        if d.shape != p.shape:
            problems[f"d{name}"] = f"shape {d.shape}, expected {p.shape}"
        elif d.dtype.kind not in "fiu":
            problems[f"d{name}"] = f"dtype {d.dtype}, expected real numbers"
    return dy, gradients, problems, rng


def _scales(dy, x, gamma, beta, eps):
    """Return sqrt(var + eps), shape of x, and the yardsticks of dx, dgamma and dbeta."""
    _, (x_hat, rstd, _) = layer_norm_forward(x, gamma, beta, eps)
    rows = tuple(range(x.ndim - 1))
    yardsticks = (
        rstd * np.abs(gamma * dy).max(axis=-1, keepdims=True),
        np.abs(dy * x_hat).sum(axis=rows).max(),
        np.abs(dy).sum(axis=rows).max(),
    )
    shaped = [np.broadcast_to(v, p.shape) for v, p in zip(yardsticks, (x, gamma, beta))]
    return np.broadcast_to(1 / rstd, x.shape), shaped


def _relative(difference, yardstick):
    """Return the largest |difference| / yardstick; 0 / 0 is 0, and what is not finite gives nan."""
    difference, yardstick = np.broadcast_arrays(np.abs(difference), yardstick)
    if not (np.isfinite(difference).all() and np.isfinite(yardstick).all()):
        return np.nan
    nonzero = difference > 0
    with np.errstate(divide="ignore"):
        return float(np.max(difference[nonzero] / yardstick[nonzero], initial=0.0))


def _derivative(forward, point, k, i, dy, h, method):
    def forward_at(value):
        moved = [p.copy() for p in point]
        moved[k] = moved[k].astype(np.result_type(moved[k], value), copy=False)
        moved[k].flat[i] = value
        return forward(*moved)[0]

    value = point[k].flat[i]
    if method == "complex":
        y = forward_at(value + 1j * h)
        if not np.iscomplexobj(y):
            raise TypeError("forward must carry complex input through to y; it returned a real y")
        return np.sum(dy * y.imag) / h
    h = max(h, np.spacing(abs(value)))  # at least to the next float
    plus, minus = value + h, value - h
    # Subtract y before summing: entries that do not change then contribute exactly nothing.
    return np.sum(dy * (forward_at(plus) - forward_at(minus))) / (plus - minus)


def _one_number(title, rtol, name, error, point, problems=None):
    size = sum(p.size for p in point)
    checked = {name: (0 if problems else size, size)}
    return Report(title, rtol, {name: error}, checked, problems or {})
