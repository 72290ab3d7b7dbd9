"""Train lesson 11's network many times and store the results: python tests/tools/train.py

Writes notebooks/recorded/training.json, in less than half an hour on one core. It holds these
experiments: "factors", the network with and without LayerNorm, with default and with He weights,
gamma and beta learned or frozen, over rates and seeds; "adam", those that are not frozen, with
Adam; "museum", the network with LayerNorm and each wrong backward pass of lnlib.bugs, from smaller
rates on; "factors, long", "adam, long" and "museum, long", these again for 30 epochs, at the rates
near the best one; "dx", how far the dx of each bug is off, after 30 epochs with the right gradient;
and "long", the loss and the drift after each of 30 epochs, with and without the mean term of dx,
and with the bug without its drift, or with its drift and the right dx.
Lesson 11 shows the functions from LayerNorm to adams, word for word, reads the experiments from the
file, and trains a sample of them again.

With --missing only what the file lacks is trained: networks, bugs, long runs, the errors of dx.
What is gone is dropped.
"""

import argparse
import itertools
import json
import math
import platform
import re
from collections import defaultdict
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

from lnlib import layer_norm_backward, layer_norm_forward
from lnlib.bugs import BUGS

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
RECORD = NOTEBOOKS / "recorded" / "training.json"

HE = 6**0.5  # makes the variance of the weights 2 / n_in; by default it is 1 / (3 n_in)
FACTORS = {
    "default": {"scale": 1, "backward": None},
    "He": {"scale": HE, "backward": None},
    "default, times 1296": {"backward": None, "last": 1296},
    "LayerNorm, default": {"scale": 1},
    "LayerNorm, He": {"scale": HE},
    "LayerNorm frozen, default": {"scale": 1, "frozen": True},
    "LayerNorm frozen, He": {"scale": HE, "frozen": True},
}
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
ADAM = {
    f"Adam, {name}": {**FACTORS[name], "adam": True}
    for name in FACTORS
    if "frozen" not in FACTORS[name]
}
ADAM_RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
MUSEUM = {"right": {}} | {bug.name: {"backward": bug.backward} for bug in BUGS}
MUSEUM_RATES = (0.00003, 0.0001, 0.0003, *RATES[:8])  # a wrong factor asks for another rate
PARTS = {
    "factors": (FACTORS, RATES),
    "adam": (ADAM, ADAM_RATES),
    "museum": (MUSEUM, MUSEUM_RATES),
}
SEEDS = range(5)
DRIFT_RATES = (0.01, 0.03, 0.1, 0.3)
EPOCHS = 30  # of the long runs


def digits():
    """Return the images of lesson 11, (N, 64), and their labels, (N,), to train and to test."""
    data = np.load(NOTEBOOKS / "data" / "digits.npz")
    order = np.random.default_rng(seed=0).permutation(len(data["labels"]))
    train_x, test_x = np.split(data["images"].reshape(-1, 64)[order] / 16, [1297])  # (N, 64)
    train_y, test_y = np.split(data["labels"][order].astype(int), [1297])  # (N,)
    return train_x, train_y, test_x, test_y


train_x, train_y, test_x, test_y = digits()


class LayerNorm:
    eps = 1e-5

    def __init__(self, D, backward):
        self.gamma, self.beta = np.ones(D), np.zeros(D)  # (D,), (D,)
        self.backward_pass = backward

    def forward(self, x):
        y, self.cache = layer_norm_forward(x, self.gamma, self.beta, self.eps)
        return y

    def backward(self, dy):
        dx, self.dgamma, self.dbeta = self.backward_pass(dy, self.cache)
        return dx


def network(seed, scale=1, backward=layer_norm_backward, last=1):
    rng, widths = np.random.default_rng(seed), [64] + 8 * [48] + [10]
    weights = [rng.uniform(-1, 1, (n, n_out)) / np.sqrt(n) for n, n_out in zip(widths, widths[1:])]
    for W in weights[:-1]:  # those before a ReLU
        W *= scale
    weights[-1] *= last
    return weights, [LayerNorm(48, backward) if backward else None for _ in range(8)]


def run_forward(weights, norms, x):
    rows = [x]  # what enters each product, (N, n_in); in the end the scores, (N, 10)
    for W, norm in zip(weights, norms):
        z = rows[-1] @ W
        rows.append(np.maximum(norm.forward(z) if norm else z, 0))  # ReLU
    return rows + [rows[-1] @ weights[-1]]


def run_backward(weights, norms, rows, labels):
    p = np.exp(rows[-1] - rows[-1].max(axis=1, keepdims=True))  # (N, 10)
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    dz, dW = p / len(labels), []  # the gradient of the scores under cross-entropy
    for i in reversed(range(9)):
        dW.append(rows[i].T @ dz)  # (n_in, n_out)
        if i > 0:
            dz = (dz @ weights[i].T) * (rows[i] > 0)
            dz = norms[i - 1].backward(dz) if norms[i - 1] else dz
    return dW[::-1]  # each norm holds its own dgamma and dbeta


def score(weights, norms):
    """Return the loss on the training images, and the accuracy on the test images in percent."""
    scores = run_forward(weights, norms, train_x)[-1]  # (N, 10)
    scores = scores - scores.max(axis=1, keepdims=True)
    loss = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(train_y)), train_y]  # (N,)
    right = run_forward(weights, norms, test_x)[-1].argmax(axis=1) == test_y  # (N,)
    return loss.mean(), 100 * right.mean()


def train(net, rate, seed, frozen=False, epochs=6, gradients=run_backward):
    """Train a network in place; if it is frozen, gamma and beta stay as they are."""
    (weights, norms), shuffle, batches = net, np.random.default_rng(seed), 13
    for epoch in range(epochs):
        order = shuffle.permutation(len(train_x))
        for i, picked in enumerate(np.array_split(order, batches)):  # (99 or 100,)
            rows = run_forward(weights, norms, train_x[picked])
            dW = gradients(weights, norms, rows, train_y[picked])
            step = rate * (1 - epoch / epochs - i / batches / epochs)  # falls to 0
            for W, each in zip(weights, dW):
                W -= step * each
            for norm in filter(None, [] if frozen else norms):
                norm.gamma -= step * norm.dgamma
                norm.beta -= step * norm.dbeta


def walk_back(weights, norms, images, labels):
    """Return the rows, and for each Linear layer, per image, the gradients dy and dz behind it."""
    rows = run_forward(weights, norms, images)
    p = np.exp(rows[-1]) / np.exp(rows[-1]).sum(axis=1, keepdims=True)  # (N, 10)
    dy, dz = [None], [p - np.eye(10)[labels]]  # the ninth has no LayerNorm behind it
    for i in range(8, 0, -1):
        dy.insert(0, (dz[0] @ weights[i].T) * (rows[i] > 0))
        dz.insert(0, norms[i - 1].backward(dy[0]) if norms[i - 1] else dy[0])
    return rows, dy, dz


def dx_errors(weights, norms):
    """Return {bug: the error of its dx in each LayerNorm, (8,), in percent}."""
    _, dys, dzs = walk_back(weights, norms, train_x[:100], train_y[:100])  # (100, 48) each
    errors = {bug.name: [] for bug in BUGS}
    for bug in BUGS:
        for norm, dy, dz in zip(norms, dys, dzs):  # dz is the right dx
            wrong, _, _ = bug.backward(dy, norm.cache)
            errors[bug.name].append(100 * np.linalg.norm(wrong - dz) / np.linalg.norm(dz))
    return errors


def without_drift(*network_and_batch, gradients=run_backward):
    *early, last = gradients(*network_and_batch)
    return [dW - dW.mean(axis=1, keepdims=True) for dW in early] + [last]


def with_right_dx(weights, norms, rows, labels):
    """Return each dW as the norms' own backward pass gives it, but send the right dx back."""
    own = norms[0].backward_pass
    for norm in norms:
        norm.backward_pass = layer_norm_backward
    rows, dys, dzs = walk_back(weights, norms, rows[0], labels)
    for i, norm in enumerate(norms):
        norm.backward_pass = own
        dzs[i] = norm.backward(dys[i])  # enters dW, and no layer before
        norm.dgamma, norm.dbeta = norm.dgamma / len(labels), norm.dbeta / len(labels)
    return [x.T @ dz / len(labels) for x, dz in zip(rows, dzs)]


class Adam:
    """One array's step of Adam in place of its gradient (Kingma and Ba, 2015)."""

    k = m = v = 0  # the steps so far, and running means of the gradient and of its square
    eps = 1e-8

    def step(self, gradient):
        self.k += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        mean, square = self.m / (1 - 0.9**self.k), self.v / (1 - 0.999**self.k)
        return mean / (np.sqrt(square) + self.eps)


def adams():
    """Return run_backward with Adam's step in place of each gradient."""
    arrays = defaultdict(Adam)

    def gradients(weights, norms, rows, labels):
        dW = run_backward(weights, norms, rows, labels)
        for i, norm in enumerate(norms):
            if norm:
                norm.dgamma = arrays["gamma", i].step(norm.dgamma)
                norm.dbeta = arrays["beta", i].step(norm.dbeta)
        return [arrays["W", i].step(each) for i, each in enumerate(dW)]

    return gradients


NO_MEAN_TERM = MUSEUM["no mean term"]
KINDS = {
    "right": {},
    "no mean term": NO_MEAN_TERM,
    "no drift": NO_MEAN_TERM | {"gradients": without_drift},
    "right dx": NO_MEAN_TERM | {"gradients": with_right_dx},
}
LONG = {
    f"{kind}, {weights}, {rate}": KINDS[kind] | {"scale": scale, "rate": rate}
    for kind in KINDS
    for weights, scale in (("default", 1), ("He", HE))
    for rate in DRIFT_RATES
} | {
    f"{kind}, Adam": KINDS[kind] | {"adam": True, "rate": 0.003}
    for kind in ("right", "no mean term", "no drift")
}


def run(seed, rate, frozen=False, adam=False, epochs=6, **setting):
    """Train one network; return its accuracy on the test images, and its loss on the others."""
    net = network(seed, **setting)
    with np.errstate(all="ignore"):  # some rates are too large
        train(net, rate, seed, frozen, epochs, gradients=adams() if adam else run_backward)
        loss, accuracy = score(*net)
    return {"accuracy": accuracy, "loss": loss}


def long_run(seed, rate=0.1, gradients=run_backward, adam=False, stop=None, **setting):
    """Train one network for 30 epochs; return its loss and its drift, (31,) each.

    They are measured before the training and after each epoch; after `stop` measurements, if it is
    given, the training ends. The drift says how far the means of the rows of W have moved since
    the start, as a share of the spread around these means: the root mean square over the second to
    eighth W.
    """
    net, batches, losses, drifts = network(seed, **setting), itertools.count(), [], []
    first = [W.mean(axis=1, keepdims=True) for W in net[0]]
    if adam:
        steps = adams()
        gradients = partial(gradients, gradients=steps) if gradients is without_drift else steps

    def measure():
        inner = [(W - W.mean(axis=1, keepdims=True), W) for W in net[0][1:-1]]
        moved = [W - rest - mean for (rest, W), mean in zip(inner, first[1:-1])]
        drift = np.linalg.norm(moved) / np.linalg.norm([rest for rest, _ in inner])
        drifts.append(round(float(drift), 12))  # without the bug, only rounding errors drift
        losses.append(score(*net)[0])

    def watched(*network_and_batch):
        dW = gradients(*network_and_batch)
        if next(batches) % 13 == 0:  # the first batch of an epoch
            measure()
            if len(losses) == stop:
                raise StopIteration
        return dW

    with suppress(StopIteration):
        train(net, rate, seed, epochs=EPOCHS, gradients=watched)
        measure()
    return {"loss": losses, "drift": drifts}


def dx_runs():
    """Train with the right gradient for 30 epochs; return {bug: the worst error of dx, (5,)}."""
    nets = [network(seed) for seed in SEEDS]
    for seed, net in zip(SEEDS, nets):
        train(net, 0.1, seed, epochs=EPOCHS)
    errors = [dx_errors(*net) for net in nets]
    return {bug.name: [max(each[bug.name]) for each in errors] for bug in BUGS}


def runs(setting, rates):
    """Return each quantity of `run` for all rates and seeds, (rates, seeds), or the error."""
    try:
        found = [[run(seed, rate, **setting) for seed in SEEDS] for rate in rates]
    except ValueError as error:
        return {"raises": str(error)}
    return {key: [[each[key] for each in row] for row in found] for key in found[0][0]}


def near_the_best(run, rates):
    """Return the best rate of a stored run, and the one or two rates beside it."""
    best = np.median(run["accuracy"], axis=1).argmax()
    return tuple(rates[max(best - 1, 0) : best + 2])


def longer(setting, run, rates):
    """Train the network of a stored run for 30 epochs, at the rates near its best one."""
    if "raises" in run:
        return run
    rates = near_the_best(run, rates)
    return {"rates": rates} | runs(setting | {"epochs": EPOCHS}, rates)


def empty():
    """Return a record without runs."""
    return {
        "made by": "python tests/tools/train.py",
        "date": "",
        "versions": {},
        "seeds": list(SEEDS),
        **{f"{key}{long}": {"runs": {}} for key in PARTS for long in ("", ", long")},
        "long": {},
        "dx": {},
    }


def with_missing(stored):
    """Return what is stored, with the runs that it lacks, and without those that are gone."""
    found = dict(stored)
    for key, (settings, rates) in PARTS.items():
        short, long = stored[key]["runs"], stored[f"{key}, long"]["runs"]
        short = {name: short.get(name) or runs(each, rates) for name, each in settings.items()}
        found[key] = {"rates": rates, "runs": short}
        found[f"{key}, long"] = {
            "runs": {
                name: long.get(name) or longer(each, short[name], rates)
                for name, each in settings.items()
                if "frozen" not in each
            }
        }
    found["long"] = {
        name: stored["long"].get(name) or [long_run(seed, **each) for seed in SEEDS]
        for name, each in LONG.items()
    }
    complete = set(stored["dx"]) == {bug.name for bug in BUGS}
    return found | {"dx": stored["dx"] if complete else dx_runs()}


def written(stored):
    """Return the text of the file, with a line for each innermost list."""
    text = json.dumps(rounded(stored), indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda inner: " ".join(inner[0].split()), text) + "\n"


def rounded(value):
    """Return numbers with six digits, in lists and dicts as they came; None if not finite."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def sample(stored, names=None, seed=0, rate=0.1):
    """Repeat one run of each kind, or of those named; return how far its last loss is off."""
    off = {}
    for key, (settings, _) in PARTS.items():
        part = stored[key]
        place = part["rates"].index(rate), stored["seeds"].index(seed)
        for name, setting in settings.items():
            found = part["runs"].get(name, {})  # a new bug has not been trained yet
            if "loss" in found and name in (names or settings):
                was = found["loss"][place[0]][place[1]]
                off[name] = abs(run(seed, rate, **setting)["loss"] / was - 1)
    return off


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="train only what the file lacks")
    missing = parser.parse_args().missing
    stored = json.loads(RECORD.read_text("utf-8")) if missing else empty()
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    last = {"date": str(date.today()), "versions": versions}  # of the last runs
    RECORD.write_text(written(with_missing(stored) | last), "utf-8")


if __name__ == "__main__":
    main()
