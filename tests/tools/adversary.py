"""Search for the rows on which a layer's float32 error is the largest part of the promise's scale.

python tests/tools/adversary.py --layer blocked --seconds 60

A climb starts at a row of a kind that is hard to add up, or to project; gamma may hide nearly all
of dy. It tries changes of x, dy and gamma, some small and some large, and keeps those that make
the error larger. Each climb has a length D, one of the four results, and a start of its own.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from layers import LAYERS
from oracle import Results, fractions

from lnlib import blocked

LENGTHS = [2, 3, 4, 5, 8, 15, 16, 33, 64, 128, 136, 256, 512, 768, 1000, 1024, 2048, 4096, 16384]
STEPS, VALUES, ROWS = 60, 2**14, 40  # of a climb: steps, and values and most rows in each of them


# ---- Starts: D numbers each ----------------------------------------------------------------------


def signs(D, rng):
    """Plus and minus one."""
    return rng.choice([-1.0, 1.0], D)


def outlier(D, rng):
    """Equal sizes, and one entry with a tenth to nearly all of the spread."""
    x = signs(D, rng)
    x[rng.integers(D)] *= rng.uniform(0.3, 9) * D**0.5
    return x


def one_sign(D, rng):
    """A few different numbers above zero: their sums are rounded the same way again and again."""
    return rng.choice(rng.uniform(0.5, 2, 3), D)


def normal(D, rng):
    """Gaussian, and one entry that is some times as large."""
    x = rng.standard_normal(D)
    x[rng.integers(D)] *= 10 ** rng.uniform(0, 4)
    return x


def sorted_normal(D, rng):
    """From the smallest to the largest."""
    return np.sort(rng.standard_normal(D))


def powers(D, rng):
    """Powers of two, and their neighbours in float32."""
    x = np.ldexp(signs(D, rng), rng.integers(-3, 4, D))
    return x * (1 + rng.integers(-1, 2, D) * 2.0**-23)


def one_hot(D, rng):
    """One entry is not zero."""
    return np.eye(1, D, rng.integers(D))[0] * rng.uniform(0.5, 2)


def levels(D, rng):
    """Zeros, two levels of opposite sign, and an outlier: each level is rounded one way."""
    x = np.where(signs(D, rng) > 0, *rng.uniform([0.5, -2], [2, -0.5]))
    x[rng.integers(D)] *= rng.uniform(0.3, 2) * D**0.5
    x[rng.integers(D, size=D // 2)] = 0
    return x


STARTS = signs, outlier, one_sign, normal, sorted_normal, powers, one_hot, levels

# ---- Moves ---------------------------------------------------------------------------------------


def _change(row, rng):
    """Return a row with some entries changed a little, one changed much, or all in a new order."""
    D, row = len(row), row.copy()
    some = rng.integers(D, size=rng.integers(1, 2 + D // 4))
    kind = rng.integers(8)
    if kind == 0:
        row[some] *= 1 + rng.standard_normal() * 10 ** rng.uniform(-7, 0)
    elif kind == 1:
        row[some] = np.nextafter(row[some].astype("f"), np.float32(rng.choice([-np.inf, np.inf])))
    elif kind == 2:
        row[some[0]] *= 2 ** rng.uniform(-4, 6)
    elif kind == 3:
        row[some] = row[some[0]]
    elif kind == 4:
        row[some] *= -1
    elif kind == 5:
        row = np.roll(row, rng.integers(D))
    elif kind == 6:
        row *= rng.uniform(0.5, 2) * 10 ** rng.choice([0, 0, 0, rng.uniform(-4, 4)])
    else:
        row += rng.standard_normal() * row.std() * 10 ** rng.choice([0, 0, 0, rng.uniform(-3, 7)])
    return row


def _along(x, rng):
    """Return a dy that the projection or the centring should remove, nearly."""
    xc = x - x.mean()
    dy = rng.choice([0, rng.uniform(0.5, 2)]) * xc + rng.choice([0, 1]) * np.sign(xc)
    dy = dy + rng.choice([0, 10 ** rng.uniform(-6, -1)]) * rng.standard_normal(len(x))
    dy = dy + rng.choice([0, 0, 1]) * (x == 0)  # and what the projection should leave alone
    return dy + rng.choice([0, 0, 10 ** rng.uniform(0, 4)]) * dy.std()


def _hidden(dy, gamma, rng):
    """Return a dy that gamma hides: the rest of it is tiny, and its mean is tiny or 0."""
    dy, seen = dy.astype(np.float32).astype(float), gamma != 0
    rest = rng.permutation(np.flatnonzero(~seen))
    half = len(rest) // 2
    dy[rest[:half]] = -dy[rest[half : 2 * half]]
    dy[rest[2 * half :]] = 0
    dy[seen] *= rng.choice([0, 10 ** rng.uniform(-12, -2)])
    return dy


def rounded_up_and_down(factor, floats):
    """Return two of the floats: their products with factor are rounded most up, and most down."""
    off = floats * factor - floats.astype(float) * float(factor)
    return floats[off.argmax()], floats[off.argmin()]


def _rounded_along(x, rng):
    """Return dy and gamma with like products, rounded up where x is large and down elsewhere.

    In a few entries gamma may hide a large dy.
    """
    floats = (1 + rng.integers(2**22, size=4096) * 2.0**-23).astype(np.float32)
    v = rng.choice(floats)
    gamma = np.where(x > x.mean(), *rounded_up_and_down(v, floats)).astype(float)
    dy, few = np.full(len(x), float(v)), rng.integers(len(x), size=(2, rng.integers(3)))
    gamma[few], dy[few[0]], dy[few[1]] = 0, 2.0**23, -(2.0**23)
    return dy, gamma


def _moved(pair, gamma, rng):
    x, dy = pair
    kind = rng.integers(5)
    if kind < 2:
        x = _change(x, rng)
    if kind in (1, 2):
        dy = _change(dy, rng)
    if kind == 3:
        dy = _along(x, rng)
    return x, _hidden(dy, gamma, rng) if kind == 4 and not gamma.all() else dy


def _in_range(x, dy, gamma):
    """Tell for which rows the promise is meant, by the limits in `lnlib.layernorm`."""
    sizes = np.abs(x).max(axis=-1), np.abs(dy).max(axis=-1)
    inside = [(1e-12 < size) & (size < 1e12) for size in sizes]
    g = gamma * dy
    dx = np.abs(gamma * dy).max(axis=-1) / (x.std(axis=-1) + 1e-3)  # about
    normal = (dx == 0) | (dx > 1e-30)  # far from what float32 rounds to 0
    return inside[0] & inside[1] & normal & (np.abs(g.mean(axis=-1)) <= 1e4 * g.std(axis=-1))


def _score(layer, arrays, target):
    """Return each row's error in y or dx, or one of dgamma or dbeta, in units of its scale."""
    dy, x, gamma, beta = (a.astype(np.float32) for a in arrays)
    errors = fractions(layer.both(dy, x, gamma, beta), dy, x, gamma, beta)
    in_range = _in_range(*(a.astype(float) for a in (x, dy, gamma)))
    return np.where(in_range, getattr(errors, target), 0)


def _first_rows(start, D, count, rng):
    """Return gamma, beta and so many pairs of x and dy, with which a climb begins."""
    gamma, beta = (np.ones(D), np.zeros(D)) if rng.random() < 0.5 else rng.uniform(0.5, 2, (2, D))
    gamma[0] *= rng.choice([1, 1, 10])
    gamma[rng.random(D) < rng.choice([0, 0, rng.random()])] = 0
    if hides := rng.random() < 0.2:
        gamma[rng.permutation(D)[: -rng.integers(1, 1 + D // 2)]] = 0
    rows = [start(D, rng) + rng.choice([0, 0, 10 ** rng.uniform(-1, 7)]) for _ in range(count)]
    if rng.random() < 0.2:
        dy, gamma = _rounded_along(rows[0], rng)
        return gamma, beta, [(rows[0], dy * 2.0**k) for k in range(count)]
    pairs = [(x, _along(x, rng)) for x in rows]
    return gamma, beta, [(x, _hidden(dy, gamma, rng)) if hides else (x, dy) for x, dy in pairs]


def _next_rows(dy, x, gamma, count, rng):
    """Return so many pairs near the best: near a single row, or near all rows of a sum."""
    if len(x) == 1:
        pair = x[0], dy[0]
        return [pair, *(_moved(pair, gamma, rng) for _ in range(count - 1))]
    return [_moved(p, gamma, rng) if rng.random() < 0.3 else p for p in zip(x, dy)]


def climb(layer, target, D, start, rng, steps=STEPS):
    """Return the largest fraction found on one climb, and its dy, x, gamma and beta."""
    count = max(2, min(ROWS, VALUES // D))
    gamma, beta, pairs = _first_rows(start, D, count, rng)
    best, found = 0.0, None
    for _ in range(steps):
        x, dy = (np.array(a) for a in zip(*pairs))
        scores = _score(layer, (dy, x, gamma, beta), target)
        if scores.max() > best:
            best, k = scores.max(), scores.argmax()
            # y and dx of a row are its own, a sum is of many rows
            rows = slice(k, k + 1) if target in ("y", "dx") else slice(None)
            found = dy[rows], x[rows], gamma, beta
        if found is None:
            break
        dy, x, gamma, beta = found
        pairs = _next_rows(dy, x, gamma, count, rng)
        if rng.random() < 0.1:
            gamma = _change(gamma, rng)
    return best, found


def search(layer, seconds=np.inf, climbs=None, seed=0, lengths=LENGTHS, tell=None):
    """Climb again and again, and return the largest fraction of each result's scale.

    Parameters
    ----------
    layer : layers.Layer
    seconds : float
        After which no climb starts.
    climbs : int, optional
        How many there are.
    seed : int
    lengths : list of int
        From which D is drawn.
    tell : callable, optional
        Called with each climb's fraction, if it is the largest yet, and what was found how.

    Returns
    -------
    dict
        Of "y", "dx", "dgamma" and "dbeta": the fraction, and the arrays dy, x, gamma, beta.
    """
    worst = dict.fromkeys(Results._fields, (0.0, None))
    end = time.perf_counter() + seconds
    for k in itertools.count():
        if time.perf_counter() > end or k == climbs:
            return worst
        rng = np.random.default_rng([seed, k])
        target = str(rng.choice(Results._fields, p=[0.25, 0.5, 0.2, 0.05]))
        D, start = int(rng.choice(lengths)), STARTS[rng.integers(len(STARTS))]
        fraction, arrays = climb(layer, target, D, start, rng)
        if fraction > worst[target][0]:
            worst[target] = fraction, arrays
            if tell:
                how = f"D={D:5} {start.__name__} climb {k}"
                tell(f"{layer.name:9} {target:6} {fraction:.2e}  {how}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", choices=[*LAYERS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=10, help="for each layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], metavar="D")
    options = parser.parse_args()
    lengths = [D for D in LENGTHS if D <= options.longest]
    blocked.SMALL = blocked.FEW = 0  # it works in blocks, however small the input
    for layer in LAYERS.values() if options.layer == "all" else [LAYERS[options.layer]]:
        worst = search(layer, options.seconds, seed=options.seed, lengths=lengths, tell=print)
        found = {name: f"{fraction:.2e}" for name, (fraction, _) in worst.items()}
        print(layer.name, found, flush=True)


if __name__ == "__main__":
    main()
