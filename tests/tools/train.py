"""Train lesson 11's network many times and store the results: python tests/tools/train.py

Writes notebooks/recorded/training.json, in minutes on one core. It holds these experiments:
"factors", the network with and without LayerNorm, with default and with He weights, gamma and beta
learned or frozen, over rates and seeds; "factors, long", the same for 30 epochs; "museum", the
network with LayerNorm and each wrong backward pass of lnlib.bugs, from smaller rates on; and "no
mean term, long", for 30 epochs: the right backward pass, the one without the mean term of dx, and
this one with the row means of each dW subtracted. Lesson 11 shows the functions from LayerNorm to
train, and without_drift, word for word. It reads the experiments from the file, and trains a sample
of them again.

Rounding decides how a long training with a wrong gradient ends, so all runs of the file are made
with one kernel of the BLAS, whose name it holds. OPENBLAS_CORETYPE=Haswell, say, asks OpenBLAS for
another: the claims of the lesson must hold there, too. With --missing only what the file lacks is
trained, and only where the kernel is the same. What is gone is dropped.
"""

import argparse
import ctypes
import json
import math
import platform
import re
from datetime import date
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
    "LayerNorm, default": {"scale": 1},
    "LayerNorm, He": {"scale": HE},
    "LayerNorm frozen, default": {"scale": 1, "frozen": True},
    "LayerNorm frozen, He": {"scale": HE, "frozen": True},
}
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
MUSEUM = {"right": {}} | {bug.name: {"backward": bug.backward} for bug in BUGS}
MUSEUM_RATES = (0.00003, 0.0001, 0.0003, *RATES[:8])  # a wrong factor asks for another rate
SEEDS = range(5)


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


def network(seed, scale=1, backward=layer_norm_backward):
    rng, widths = np.random.default_rng(seed), [64] + 8 * [48] + [10]
    weights = [rng.uniform(-1, 1, (n, n_out)) / np.sqrt(n) for n, n_out in zip(widths, widths[1:])]
    for W in weights[:-1]:  # those before a ReLU
        W *= scale
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


def without_drift(*network_and_batch):
    *early, last = run_backward(*network_and_batch)
    return [dW - dW.mean(axis=1, keepdims=True) for dW in early] + [last]


TRIO = {name: MUSEUM[name] for name in ("right", "no mean term")}
TRIO["no mean term, no drift"] = TRIO["no mean term"] | {"gradients": without_drift}
TRIO_RATES = (0.003, 0.01, 0.03, 0.05, 0.1, 0.2)
PARTS = {
    "factors": (FACTORS, RATES, 6),
    "factors, long": (FACTORS, RATES, 30),
    "museum": (MUSEUM, MUSEUM_RATES, 6),
    "no mean term, long": (TRIO, TRIO_RATES, 30),
}


def run(seed, rate, frozen=False, epochs=6, gradients=run_backward, **setting):
    """Train one network; return its accuracy on the test images, and its loss on the others."""
    net = network(seed, **setting)
    with np.errstate(all="ignore"):  # some rates are too large
        train(net, rate, seed, frozen, epochs, gradients)
        loss, accuracy = score(*net)
    return {"accuracy": accuracy, "loss": loss}


def runs(setting, rates):
    """Return each quantity of `run` for all rates and seeds, (rates, seeds), or the error."""
    try:
        found = [[run(seed, rate, **setting) for seed in SEEDS] for rate in rates]
    except ValueError as error:
        return {"raises": str(error)}
    return {key: [[each[key] for each in row] for row in found] for key in found[0][0]}


def blas_kernel():
    """Return the name of the kernel that NumPy's OpenBLAS has chosen, or "unknown"."""
    for path in (Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*"):
        for suffix in ("", "64_"):
            name = getattr(ctypes.CDLL(str(path)), f"scipy_openblas_get_corename{suffix}", None)
            if name:
                name.restype = ctypes.c_char_p
                return name().decode()
    return "unknown"


def empty():
    """Return a record without runs."""
    return {
        "made by": "python tests/tools/train.py",
        "date": "",
        "versions": {},
        "seeds": list(SEEDS),
        **{key: {"runs": {}} for key in PARTS},
    }


def with_missing(stored):
    """Return what is stored, with the runs that it lacks, and without those that are gone."""
    stored = empty() | {key: value for key, value in stored.items() if key in empty()}
    found = dict(stored)
    for key, (settings, rates, epochs) in PARTS.items():
        kept = stored[key]["runs"]
        found[key] = {
            "rates": rates,
            "runs": {
                name: kept.get(name) or runs(each | {"epochs": epochs}, rates)
                for name, each in settings.items()
            },
        }
    return found


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


def off(stored, key, name, seed=0, rate=0.1):
    """Repeat one run; return by which share its last loss differs from the stored one."""
    settings, rates, epochs = PARTS[key]
    was = stored[key]["runs"][name]["loss"][rates.index(rate)][stored["seeds"].index(seed)]
    return abs(run(seed, rate, epochs=epochs, **settings[name])["loss"] / was - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="train only what the file lacks")
    missing = parser.parse_args().missing
    stored = json.loads(RECORD.read_text("utf-8")) if missing else empty()
    versions = {"python": platform.python_version(), "numpy": np.__version__, "BLAS": blas_kernel()}
    if missing and stored["versions"]["BLAS"] != versions["BLAS"]:
        parser.error(f"the file is made with {stored['versions']['BLAS']}: leave --missing out")
    last = {"date": str(date.today()), "versions": versions}  # of the last runs
    RECORD.write_text(written(with_missing(stored) | last), "utf-8")


if __name__ == "__main__":
    main()
