"""Is this backward pass the derivative of this forward pass? Four ways to ask.

Every check uses the scalar probe L = sum(dy * y) with a random dy and works in float64. Every error
is divided by the size that the gradient would have if nothing in it cancelled: the largest
rstd * |gamma * dy| of the row for dx (the bound of lesson 01), the largest sum of absolute terms of
any column for dgamma and dbeta. So a gradient that is zero for a good reason is not called wrong
for its rounding.
"""

from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

RTOL = {"central": 1e-8, "complex": 1e-14}
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
        inf if the shape was wrong.
    checked : dict of str to (int, int)
        How many entries were compared, of how many.
    problems : dict of str to str
        What is wrong beside the numbers, in words.
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
            note = f"  {self.problems[name]}" if name in self.problems else ""
            lines.append(f"  {name:<11} {size:<9} {done} of {total} entries{note}")
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
        Central differences [1]_ divide by the step really taken, (x + h) - (x - h). The complex
        step [2]_ subtracts nothing; forward must accept complex input.
    h : float, optional
        Step, the same for every entry. By default cbrt(2**-52) (central) or 1e-30 (complex) times
        the length on which y changes: sqrt(var + eps) for x, 1 for gamma and beta.
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
        If method is unknown, or h, sample or a shape does not fit.

    References
    ----------
    .. [1] P. E. Gill, W. Murray, M. H. Wright, "Practical Optimization", 1981, section 8.6.
    .. [2] W. Squire, G. Trapp, SIAM Review 40 (1998) 110-112, doi:10.1137/S003614459631241X.
    """
    if method not in RTOL:
        raise ValueError(f'method must be "central" or "complex", got {method!r}')
    if h is not None and not h > 0:
        raise ValueError(f"h must be positive, got {h}")
    if sample is not None and not (isinstance(sample, int) and sample > 0):
        raise ValueError(f"sample must be a positive integer or None, got {sample!r}")
    point = _point(x, gamma, beta)
    rng = np.random.default_rng(seed)
    dy, analytic, problems = _probe(forward, backward, point, rng)
    length, yardstick = _scales(dy, *point, eps)
    errors, checked = {}, {}
    for k, name in enumerate(_NAMES):
        size = point[k].size
        entries = np.arange(size)
        if sample is not None and sample < size:
            entries = rng.choice(size, sample, replace=False)
        checked[f"d{name}"] = (len(entries), size)
        if f"d{name}" in problems:
            errors[f"d{name}"] = np.inf
            continue
        steps = length[k].ravel() if h is None else np.full(size, h)
        worst = 0.0 if np.all(np.isfinite(analytic[k])) else np.nan
        for i in tqdm(entries, desc=f"d{name}", disable=not progress):
            numeric = _derivative(forward, point, k, i, dy, steps[i], method, h is None)
            error = abs(analytic[k].flat[i] - numeric)
            worst = np.maximum(worst, error and error / yardstick[k].flat[i])  # keeps nan
        errors[f"d{name}"] = float(worst)
    rtol = RTOL[method] if rtol is None else rtol
    title = {"central": "central differences", "complex": "complex step"}[method]
    return Report(title, rtol, errors, checked, problems)


def directional_check(forward, backward, x, gamma, beta, *, rtol=1e-8, eps=1e-5, seed=0):
    """Move x, gamma and beta along one random direction: does the loss change as predicted?

    Two forward passes, whatever the size of x. The prediction is sum(gradient * step really taken).

    Parameters
    ----------
    forward, backward, x, gamma, beta, rtol, eps, seed
        As for `gradcheck`. The error is relative to the root of the sum of squared terms.

    Returns
    -------
    Report
        With one entry, "directional".
    """
    point = _point(x, gamma, beta)
    rng = np.random.default_rng(seed)
    dy, gradient, problems = _probe(forward, backward, point, rng)
    if problems:
        return _one_number("directional difference", rtol, "directional", np.inf, point, problems)
    length, _ = _scales(dy, *point, eps)
    step = [np.cbrt(2.0**-52) * s * rng.standard_normal(p.shape) for s, p in zip(length, point)]
    plus = [p + s for p, s in zip(point, step)]
    minus = [p - s for p, s in zip(point, step)]
    terms = np.concatenate([(d * (b - a)).ravel() for d, a, b in zip(gradient, minus, plus)])
    change = np.sum(dy * (forward(*plus)[0] - forward(*minus)[0]))
    error = abs(terms.sum() - change) / np.sqrt(np.sum(terms**2))
    return _one_number("directional difference", rtol, "directional", error, point)


def adjoint_check(jvp, forward, backward, x, gamma, beta, *, rtol=1e-12, seed=0):
    """Test <J v, u> = <v, J^T u>: is the backward pass the transpose of the forward derivative?

    No step size, hence no truncation; but it trusts jvp.

    Parameters
    ----------
    jvp : callable
        jvp(x, gamma, beta, vx, vgamma, vbeta) -> the derivative of y along (vx, vgamma, vbeta).
    forward, backward, x, gamma, beta, rtol, seed
        As for `gradcheck`. The error is relative to the root of the sum of squared terms.

    Returns
    -------
    Report
        With one entry, "adjoint".
    """
    point = _point(x, gamma, beta)
    rng = np.random.default_rng(seed)
    u, transposed, problems = _probe(forward, backward, point, rng)
    if problems:
        return _one_number("adjoint test", rtol, "adjoint", np.inf, point, problems)
    v = [rng.standard_normal(p.shape) for p in point]
    left = u * jvp(*point, *v)
    right = np.concatenate([(d * w).ravel() for d, w in zip(transposed, v)])
    error = abs(left.sum() - right.sum()) / np.sqrt(np.sum(left**2) + np.sum(right**2))
    return _one_number("adjoint test", rtol, "adjoint", error, point)


def _point(x, gamma, beta):
    point = []
    for name, value in zip(_NAMES, (x, gamma, beta)):
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} must be real, got dtype {array.dtype}")
        point.append(array.astype(np.float64, order="C"))
    x, gamma, beta = point
    if x.ndim == 0 or not x.shape[-1] == gamma.size == beta.size:
        shapes = [p.shape for p in point]
        raise ValueError(f"x, gamma, beta must have shapes (..., D), (D,), (D,), got {shapes}")
    return point


def _probe(forward, backward, point, rng):
    """Return a random dy, the gradients that backward gives for it, and what is wrong with them."""
    y, cache = forward(*point)
    dy = rng.standard_normal(y.shape)
    gradients = [np.asarray(d) for d in backward(dy, cache)]
    problems = {
        f"d{name}": f"shape {d.shape}, expected {p.shape}"
        for name, d, p in zip(_NAMES, gradients, point)
        if d.shape != p.shape
    }
    return dy, gradients, problems


def _scales(dy, x, gamma, beta, eps):
    """Return the length on which y changes with each entry, and the yardstick of each gradient."""
    xc = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    std = np.sqrt(np.mean(xc * xc, axis=-1, keepdims=True) + eps)  # (..., 1)
    rows = tuple(range(x.ndim - 1))
    with np.errstate(divide="ignore", invalid="ignore"):  # eps = 0 on a constant row
        yardsticks = (
            np.abs(gamma * dy).max(axis=-1, keepdims=True) / std,
            np.abs(dy * xc / std).sum(axis=rows).max(),
            np.abs(dy).sum(axis=rows).max(),
        )
    lengths = (std, 1.0, 1.0)
    return tuple(
        [np.broadcast_to(v, p.shape) for v, p in zip(values, (x, gamma, beta))]
        for values in (lengths, yardsticks)
    )


def _derivative(forward, point, k, i, dy, h, method, automatic):
    def forward_at(value):
        moved = list(point)
        moved[k] = point[k].astype(np.result_type(point[k], value))  # a copy
        moved[k].flat[i] = value
        return forward(*moved)[0]

    value = point[k].flat[i]
    if method == "complex":
        h = 1e-30 * h if automatic else h
        y = forward_at(value + 1j * h)
        if not np.iscomplexobj(y):
            raise TypeError("forward must carry complex input through to y; it returned a real y")
        return np.sum(dy * y.imag) / h
    h = max(np.cbrt(2.0**-52) * h, np.spacing(abs(value))) if automatic else h
    plus, minus = value + h, value - h
    # Subtract y before summing: entries that do not change then contribute exactly nothing.
    return np.sum(dy * (forward_at(plus) - forward_at(minus))) / (plus - minus)


def _one_number(title, rtol, name, error, point, problems=None):
    size = sum(p.size for p in point)
    text = "; ".join(f"{k}: {v}" for k, v in (problems or {}).items())
    return Report(
        title, rtol, {name: float(error)}, {name: (size, size)}, {name: text} if text else {}
    )
