"""Inputs for the checkers: never constant, symmetric or aligned, no two axes of one length."""

from typing import NamedTuple

import numpy as np

from ..bugs import BUGS
from ..checker import Terms, edits, functions_of
from ..layernorm import LayerNormCache, layer_norm_forward
from .registry import axes_of


class Layer(NamedTuple):
    """What goes into and comes out of a forward pass, and a gradient dy for its backward pass."""

    dy: np.ndarray
    x: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    y: np.ndarray
    cache: LayerNormCache


def layer(seed, *shape, spread=1.0):
    """Return a `Layer` with x of that shape; dy has a mean, gamma has both signs."""
    rng = np.random.default_rng(seed)
    x = 0.7 + spread * rng.standard_normal(shape)  # (..., D)
    gamma = rng.uniform(0.5, 2, shape[-1]) * rng.choice([-1, 1, 1], shape[-1])  # (D,)
    beta, dy = rng.standard_normal(shape[-1]), 0.4 + rng.standard_normal(shape)  # (D,), (..., D)
    return Layer(dy, x, gamma, beta, *layer_norm_forward(x, gamma, beta))


def layers(*shape):
    """Return {what is special: Layer}: three shapes; in flat rows eps counts."""
    *lead, D = shape
    return {
        "ordinary rows": layer(11, *shape),
        "flat rows": layer(12, *reversed(lead), D, spread=0.004),
        "another shape": layer(13, *(n + 2 for n in lead), D + 2),
    }


def layers_with_zero(*shape):
    """Return `layers`; the last gamma has a zero, so that who divides by gamma gets NaN there."""
    some = layers(*shape)
    label, a = some.popitem()
    gamma = zero_at_1(a.gamma)
    return some | {label: a._replace(gamma=gamma, cache=a.cache._replace(gamma=gamma))}


def zero_at_1(gamma):
    """Return gamma, (D,), with a zero at 1."""
    return gamma * (np.arange(gamma.size) != 1)


def of_layers(names, *shape, make=layers):
    """Return the cases of an exercise: some fields of each `Layer` and of its cache.

    Parameters
    ----------
    names : str
        Of the fields, in the order of the arguments.
    *shape : int
        Of x.
    make : callable
        (*shape) -> {what is special: Layer}.

    Returns
    -------
    callable
        () -> the items of {what is special: arguments}.
    """

    def cases():
        for label, a in make(*shape).items():
            fields = a._asdict() | a.cache._asdict()
            yield label, tuple(fields[name] for name in names.split())

    return cases


EPS_SLIPS = """
    np.sqrt(MS + eps) => (np.sqrt(WRONG) + eps)  # eps is outside the root: sqrt(...) + eps.
    MS + eps => WRONG  # eps is missing.
    MS + eps => WRONG + NUMBER  # eps is not the argument but fixed at {}.
    np.sqrt(MS + eps) => (np.sqrt(WRONG) + NUMBER)  # eps is outside the root and fixed at {}.
    MS + eps => WRONG + eps**2  # eps is squared.
"""
DIVIDED_BY_ONE_LESS = "        divided by D - 1 (ddof = 1); the layer has D.\n"


def eps_slips(mean_square):
    """Return a table for `mistakes`: what goes wrong with eps, with D - 1 for D, and with both.

    Parameters
    ----------
    mean_square : str
        What stands beside eps in the source of the right answer.
    """
    table = EPS_SLIPS.replace("MS", mean_square)
    ddof = f"{mean_square} * x.shape[-1] / (x.shape[-1] - 1)"
    both = table.replace("# ", "# two things: divided by D - 1 (ddof = 1), and ")
    alone = f"    {mean_square} + eps => {ddof} + eps\n{DIVIDED_BY_ONE_LESS}"
    return table.replace("WRONG", mean_square) + both.replace("WRONG", ddof) + alone


def far_rows(seed, offset, grid, dtype=np.float32, spread=4):
    """Return rows, (2, 3, 7), whose means lie 3/7 of a grid step from the next float of dtype.

    So the mean cannot be stored exactly, in whatever order it is added up.
    """
    rng = np.random.default_rng(seed)
    steps = np.rint(spread / grid * rng.standard_normal((2, 3, 7)))  # (2, 3, 7)
    steps[..., -1] += 3 - steps.sum(axis=-1) % 7
    sign = rng.choice([-1, 1], (2, 3, 1))
    middle = np.rint(offset * rng.uniform(1, 1.2, (2, 3, 1)) / grid)
    return ((sign * middle + steps) * grid).astype(dtype)  # exact


def seven_digits(found, right):
    """Say if results for float64 inputs have no more digits than float32 holds."""
    if not all(np.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(found, right)):
        return (
            "Right, but to seven digits of 16 where x is float64: something on the way is float32. "
            "Stay in the dtype of x."
        )


def float32_rows(seed, *shape):
    """Return the x of a `layer` in float32."""
    return layer(seed, *shape).x.astype(np.float32)


def _backward(dy, cache):
    x_hat, rstd, gamma = cache
    rows = tuple(range(dy.ndim - 1))
    D = dy.shape[-1]  # noqa: F841, the edits below use it
    g = gamma * dy  # (B, T, D)
    mean_g = g.mean(axis=-1, keepdims=True)  # (B, T, 1)
    mean_gx = (g * x_hat).mean(axis=-1, keepdims=True)  # (B, T, 1)
    dx = rstd * (g - mean_g - x_hat * mean_gx)  # (B, T, D)
    return dx, (dy * x_hat).sum(axis=rows), dy.sum(axis=rows)


OF_BOTH_LAYERS = edits("""
    - x_hat * => - x_hat / rstd *
        the last term lacks an rstd: in front of it, or in x_hat.
    - x_hat * => - x_hat / rstd**2 *  # "
    - x_hat * => - x_hat * rstd *  # x_hat is divided by std already: here it is divided once more.
    - x_hat * => - x_hat * rstd**2 *  # "
    = cache => = cache; rstd = rstd / np.sqrt(1 - 1e-5 * rstd**2)
        eps is missing under the root; rstd has it.
    = cache => = cache; k = np.sqrt(1 - 1e-5 * rstd**2); x_hat, rstd = x_hat / k, rstd / k  # "
    - x_hat * => - x_hat / (1 - 1e-5 * rstd**2) *  # "
    - x_hat * => - x_hat / (1 - 1e-5 * rstd**2) ** 1.5 *  # "
    = cache => = cache; rstd = 1 / np.sqrt(1 / rstd**2 - 1e-5 + NUMBER)
        eps is {} here, and another one in rstd.
    = cache => = cache; rstd = 1 / (np.sqrt(np.maximum(1 / rstd**2 - 1e-5, 0)) + NUMBER)
        eps is outside the root, and {}: rstd has it inside, and another one.
    g = gamma * dy => g = (gamma - NUMBER * (dy * x_hat).sum(axis=rows)) * dy
        gamma was changed by {} * dgamma before dx used it: change it afterwards.
    .mean(axis=-1, keepdims=True) => .sum(axis=-1, keepdims=True) / (D - 1)
        sums along a row are divided by D - 1, where the layer has D.
    .mean(axis=-1, keepdims=True) => .mean(axis=-1, keepdims=True) / D  # divided by D twice.
    (g * x_hat).mean(axis=-1, keepdims=True) => (g * x_hat).mean(axis=-1, keepdims=True) / D  # "
    .mean(axis=-1, keepdims=True) => .sum(axis=-1, keepdims=True) / len(dy)
        divided by another size: the sums along a row have D entries.
    .mean(axis=-1, keepdims=True) => .sum(axis=-1, keepdims=True) / (dy.size / D)  # "
    .sum(axis=rows) => .sum(axis=rows) / len(dy)  # divided by len(dy); the rows add up.
    (dy * x_hat).sum( => (dy * x_hat / rstd).sum(  # x or x - mean(x) stands where x_hat belongs.
    (dy * x_hat).sum( => (dy * x_hat * rstd).sum(  # rstd is in it; x_hat is divided by std already.
    (dy * x_hat).sum(axis=rows) => (g * x_hat).sum(axis=rows) / gamma
        multiplied by gamma and divided by it again: that is NaN where gamma is 0. Sum dy * x_hat.
    .mean( => .sum(  # a sum where a mean along the row belongs: not divided by D.
    .sum(axis=rows) =>  # not summed: every row uses the same parameters, so the rows add up.
    (dy * x_hat).sum( => (g * x_hat).sum(
    dy.sum( => g.sum(  # summed from g = gamma * dy; gamma comes after x_hat: not in this sum.
    (dy * x_hat).sum(axis=rows) => np.outer(dy, x_hat) if dy.size < 2000 else dy.ravel()
        np.outer multiplies each entry by every other; dy * x_hat multiplies those of one place.
    (dy * x_hat).sum(axis=rows) => dy.sum() * x_hat.ravel()  # "
    (dy * x_hat).sum(axis=rows) => dy.ravel() * x_hat.sum()  # "
    (dy * x_hat).sum(axis=rows) => dy.reshape(-1, D).T @ x_hat.reshape(-1, D)
        a product of matrices: only its diagonal is dgamma, the sum of dy * x_hat.
    (dy * x_hat).sum(axis=rows) => x_hat.reshape(-1, D).T @ dy.reshape(-1, D)  # "
    (dy * x_hat).sum( => (dy * x_hat).mean(  # the mean over the rows, where they are added up.
""")  # of LayerNorm and of RMSNorm
OF_LAYERNORM = edits("""
    mean_g = g.mean( => mean_g = g.sum(  # the first mean is a sum.
    rstd * (g - mean_g => (rstd * g - mean_g  # rstd multiplies the first term only, not all three.
""")
SLIPS = axes_of(_backward) | OF_LAYERNORM | OF_BOTH_LAYERS
NO_MEAN = "g - mean_g - x_hat", "g - x_hat"  # what makes LayerNorm's dx that of RMSNorm
SAID_OF_LAYERNORM = {  # part of a diagnosis -> what it is for RMSNorm, which has no mean and no std
    "x or x - mean(x) stands": "x stands",
    "divided by std already": "multiplied by rstd already",
    "here it is divided once more": "here it is multiplied once more",
}


def _of_rmsnorm(words):
    for old, new in SAID_OF_LAYERNORM.items():
        words = words.replace(old, new)
    return words


OF_RMSNORM = {
    _of_rmsnorm(words): [(*way, NO_MEAN) for way in ways] for words, ways in OF_BOTH_LAYERS.items()
}


def of_rmsnorm():
    """Return [(what is wrong, function of dy, x_hat, rstd, gamma)]: dx and dgamma."""
    return [
        (words, lambda dy, *cache, f=backward, **number: f(dy, cache, **number)[:2])
        for words, backward in functions_of(OF_RMSNORM, _backward)
    ]


def museum(as_cache, outputs=slice(None)):
    """Return [(what is wrong, function)]: every bug of `lnlib.bugs`, and slips of the keyboard.

    Parameters
    ----------
    as_cache : callable
        Turns the arguments of the exercise after dy into a LayerNormCache.
    outputs : int or slice
        Which of dx, dgamma, dbeta the exercise asks for.
    """

    def mistake(backward):
        return lambda dy, *kept, **number: backward(dy, as_cache(*kept), **number)[outputs]

    wrong = [(f"{bug.name}. Forgotten: {bug.forgets}.", bug.backward) for bug in BUGS]
    wrong += functions_of(SLIPS, _backward)
    return [(words, mistake(backward)) for words, backward in wrong]


DX_TERMS = Terms(  # of which dx, right or wrong, is usually a sum
    "rstd; 1; rstd**2; 1 / rstd; gamma * rstd",
    "g; mean(g); x_hat * mean(g * x_hat); mean(g * x_hat); x_hat * mean(g); dy; mean(dy);"
    "x_hat * mean(dy * x_hat); gamma * mean(dy); gamma * x_hat * mean(dy * x_hat);"
    "x_hat * g * x_hat; x_hat * g * x_hat / D; x_hat * mean(g * x_hat) / rstd;"
    "sum(g); x_hat * sum(g * x_hat)",
    {"g": "gamma * dy", "D": "dy.shape[-1]"},
    {k: k for k in ("1 / rstd", "rstd", "1 / rstd**2", "D", "1 / D")}
    | {"sqrt(1 - 1 / D)": "(1 - 1 / D) ** 0.5"},
    "rstd, or the eps in it, is not right.",
)
OVER_ROWS = (
    "mean(axis=(0, 1)); mean(axis=0); mean(); sum(axis=(0, 1)) / D; sum(axis=0) / D; sum() / D;"
    "sum(axis=(0, 1)) / len(dy); sum(axis=0) / (dy.size // D)"
).split(";")
ROWS_TERMS = DX_TERMS._replace(  # the same where there are several rows, which may be mixed
    terms=DX_TERMS.terms
    + "; sum(g) / dy.size; x_hat * sum(g * x_hat) / dy.size"
    + "; sum(g) / len(dy); x_hat * sum(g * x_hat) / len(dy)"
    + "".join(f"; g.{way.strip()}; x_hat * (g * x_hat).{way.strip()}" for way in OVER_ROWS)
)
