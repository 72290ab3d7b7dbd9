"""Lesson 07: the bill of a version; the backward pass, a strip of rows at a time."""

import numpy as np

from .. import textbook
from ..checker import Score, mistakes
from ..layernorm import LayerNormCache
from ..trace import trace
from .data import layer, museum
from .registry import exercise
from .watch import blocks_are_used

BILL_CASES = {  # N, D, rows, sweeps, small, near, far, call
    "blocks of equal length": (12_288, 768, 256, 7, 6, 0.14, 0.37, 430.0),
    "a shorter last block": (1000, 96, 48, 6, 9, 0.11, 0.52, 610.0),
    "a row at a time": (2500, 300, 1, 9, 5, 0.17, 0.29, 380.0),
    "fewer rows than a block has": (100, 64, 341, 7, 4, 0.13, 0.41, 520.0),
}


@exercise("ns share", BILL_CASES)
@mistakes("""
    -(-N // rows) => N // rows  # the last block is missing where it is shorter.
    -(-N // rows) => N // rows + 1  # a block too many where all have equal length.
    -(-N // rows) => round(N / rows)  # a short last block counts, however short: round up.
    -(-N // rows) => N / rows
        a block that is shorter than the others has as many small operations, for fewer elements.
    (sweeps - 2) * near => sweeps * near  # the two far sweeps are among the sweeps.
    2 * far => far  # two sweeps are far: the first that reads x, the first that writes y.
    (sweeps - 2) * near + 2 * far => sweeps * far  # most sweeps find their block in the cache.
    (sweeps - 2) * near + 2 * far => sweeps * near  # two sweeps cost far.
    (sweeps - 2) * near + 2 * far => (sweeps - 1) * near + far  # two sweeps are far, not one.
    (sweeps - 2) * near + 2 * far => (sweeps - 2) * far + 2 * near  # far and near are swapped.
    (sweeps - 2) * near + 2 * far => blocks * ((sweeps - 2) * near + 2 * far)
        an element lies in one block only, and pays for the sweeps of that block.
    (sweeps - 2) * near + 2 * far => ((sweeps - 2) * near + 2 * far) * blocks * rows / N
        a block that is shorter than the others pays for the sweeps of fewer elements.
    (sweeps - 2) * near + 2 * far => (sweeps - 2) * near + 2 * far / blocks
        far is a price of each element, in every block.
    blocks * small => small  # the small operations of one block; each block has them.
    blocks * small => blocks  # one small operation a block.
    blocks * small => blocks * (small + sweeps)  # only the small operations cost `call`.
    blocks * small => N * small  # a small operation is one call for a whole block, not for a row.
    / (N * D) => / N  # the calls' time for a row; one element is asked.
    / (N * D) =>  # the calls' time for all elements; one is asked.
    return ns, => return ns * N * D,  # the time of the whole array; one element is asked.
    calls / ns => sweeping / ns  # the share of the sweeps.
    calls / ns => calls  # the ns of the small operations; their share of the time is asked.
    calls / ns => ns / calls  # upside down: the share is a part of the whole.
    calls / ns => calls / sweeping  # calls against sweeps; the share is of the whole.
    calls / ns => 100 * calls / ns  # percent; a number between 0 and 1 is asked.
""")
def bill_of(N, D, rows, sweeps, small, near, far, call):
    """Return the ns an element, and the share of the small operations in it."""
    blocks = -(-N // rows)  # rounded up
    sweeping = (sweeps - 2) * near + 2 * far
    calls = blocks * small * call / (N * D)
    ns = sweeping + calls
    return ns, calls / ns


def _judge_strips(function):
    x = layer(54, 301, 768)
    arrays = {k: np.float32(a) for k, a in ({"dy": x.dy} | x.cache._asdict()).items()}
    dx = np.asarray(function(*arrays.values(), 5)[0])
    if dx.dtype != np.float32:
        return f"The gradients are right, but dx is {dx.dtype} where dy is float32."
    _, steps = trace(lambda *given: function(*given, 5), *arrays.values())
    if any(_goes_by_indices(step, x.dy.shape[0], dx[0].nbytes) for step in steps):
        return "The gradients are right, but a strip is taken by an array of indices. Take a slice."
    judged = [
        blocks_are_used(function, arrays, (rows,), ("dy", "x_hat"), cache_bytes=256 * 1024)
        for rows in (5, 7)  # no fixed number fits both
    ]
    return next((verdict for verdict in judged if not isinstance(verdict, Score)), judged[0])


def _goes_by_indices(step, rows, row_bytes):
    """Is this an index of some rows of a matrix, which the trace records as the whole matrix?"""
    sides = [max((size for _, size in side), default=0) for side in (step.reads, step.writes)]
    of_an_index = step.name in ("getitem", "take", "setitem")
    return of_an_index and min(sides) < max(sides) == rows * row_bytes and min(sides) > 0


def _strip_cases():
    for N, D, rows, spread in (11, 5, 4, 1.0), (3, 8, 1, 0.004), (4, 6, 9, 1.0):
        a = layer(51, N, D, spread=spread)
        yield f"{N} rows in strips of {rows}", (a.dy, *a.cache, rows)


@exercise("dx dgamma dbeta", _strip_cases, judge=_judge_strips)
@mistakes("""
    len(dy), rows) => len(dy) - rows + 1, rows)  # the last strip is missing where it is shorter.
    len(dy), rows) => rows, rows)  # the first strip only. Is return inside the loop?
    dgamma += => dgamma =
    dbeta += => dbeta =  # the sums of the last strip only. Each strip adds to what is there.
    dgamma, dbeta = np.zeros((2, *gamma.shape), dy.dtype) => dgamma = dbeta = np.zeros_like(gamma)
        dgamma and dbeta are the same array: a = b = np.zeros(...) makes one only.
    return dx, dgamma, dbeta => return dx, *(a / -(-len(dy) // rows) for a in (dgamma, dbeta))
        the sums of the strips are averaged; they are parts of one sum.
""")
@mistakes(museum(lambda x_hat, rstd, gamma, rows: LayerNormCache(x_hat, rstd, gamma)))
def backward_by_strips(dy, x_hat, rstd, gamma, rows):
    """Return dx (N, D), dgamma (D,) and dbeta (D,); rstd is (N, 1), dy and x_hat (N, D)."""
    dx = np.empty_like(dy)  # (N, D)
    dgamma, dbeta = np.zeros((2, *gamma.shape), dy.dtype)  # (D,) each
    for start in range(0, len(dy), rows):
        strip = slice(start, start + rows)
        cache = x_hat[strip], rstd[strip], gamma
        dx[strip], more_dgamma, more_dbeta = textbook.backward_means(dy[strip], cache)
        dgamma += more_dgamma
        dbeta += more_dbeta
    return dx, dgamma, dbeta
