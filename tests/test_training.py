"""The stored training runs: complete, small, and what the same code finds today."""

import inspect
import json

import numpy as np
import pytest
import train
from execute_notebooks import cells_of

from lnlib import layer_norm_backward
from lnlib.bugs import BUGS
from lnlib.exercises import load_exercises

STORED = json.loads(train.RECORD.read_text("utf-8"))


def test_each_factor_and_each_bug_was_trained():
    trained = {"right", *(bug.name for bug in BUGS)}
    assert set(train.MUSEUM) == trained and len(STORED["seeds"]) == 5
    for key, (settings, rates, _) in train.PARTS.items():
        part = STORED[key]
        assert set(part["runs"]) == set(settings), "run python tests/tools/train.py --missing"
        assert tuple(part["rates"]) == rates and len(rates) >= 6
        for run in part["runs"].values():
            if "raises" not in run:
                assert set(run) == {"accuracy", "loss"}
                assert np.shape(run["accuracy"]) == (len(rates), 5)


def test_the_runs_tell_their_versions():
    """Rounding decides the ends of some long runs, so all must come from one BLAS kernel."""
    assert set(STORED["versions"]) == {"python", "numpy", "BLAS"} and all(
        STORED["versions"].values()
    )
    long = STORED["factors, long"], STORED["no mean term, long"]
    one, other = (part["runs"][name] for part, name in zip(long, ("LayerNorm, default", "right")))
    for rate in (0.003, 0.01, 0.03, 0.1):  # two parts hold the same runs
        at = [part["rates"].index(rate) for part in long]
        assert all(one[what][at[0]] == other[what][at[1]] for what in ("accuracy", "loss"))


def test_only_bugs_that_are_not_stored_are_trained(monkeypatch):
    trained, new = [], {"accuracy": [[10], [30], [20]]}
    monkeypatch.setattr(
        train, "runs", lambda setting, rates: trained.append((setting, rates)) or new
    )
    stored = STORED["museum"]["runs"]
    kept = {name: run for name, run in stored.items() if name != "no gamma"}
    found = train.with_missing(STORED | {"museum": {"runs": kept | {"gone": {}}}})
    assert trained == [(train.MUSEUM["no gamma"] | {"epochs": 6}, train.MUSEUM_RATES)]
    assert found["museum"]["runs"] == stored | {"no gamma": new}
    assert train.written(STORED) == train.RECORD.read_text("utf-8")  # what is kept stays as it is


# Lesson 11 trains a sample of the short runs. Here are others, where the last bit of each weight
# moves the loss by less than 1e-9 of itself:
SAMPLE = (
    ("museum", "no gamma", 0.1),
    ("factors, long", "He", 0.1),
    ("factors, long", "LayerNorm, default", 0.003),
    ("factors, long", "LayerNorm frozen, He", 0.003),
    ("no mean term, long", "no mean term", 0.003),
    ("no mean term, long", "no mean term, no drift", 0.003),
)


@pytest.mark.parametrize("key, name, rate", SAMPLE)
def test_a_sample_trains_as_stored(key, name, rate):
    assert train.off(STORED, key, name, rate=rate) < 1e-5


def test_a_sample_can_differ():
    """The stored numbers of one network are not those of another."""
    runs = STORED["factors"]["runs"]
    part = STORED["factors"] | {"runs": runs | {"He": runs["default"]}}
    assert train.off(STORED | {"factors": part}, "factors", "He") > 1e-2


def test_lesson_11_shows_the_code_that_was_run():
    cells = cells_of(train.NOTEBOOKS / "11_training.ipynb")
    page = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    parts = "LayerNorm network run_forward run_backward score train without_drift"
    for part in parts.split():
        assert inspect.getsource(getattr(train, part)).strip() in page, part
    data = inspect.getsource(train.digits).replace("NOTEBOOKS / ", "").splitlines()[2:6]
    for line in data:
        assert line.strip().replace('"data" / "digits.npz"', '"data/digits.npz"') in page, line


def test_what_raises_raises_today():
    raising = {name for name, run in STORED["museum"]["runs"].items() if "raises" in run}
    assert raising == {"dgamma not summed"}
    with pytest.raises(ValueError):
        train.run(0, 0.1, **train.MUSEUM["dgamma not summed"])


@pytest.mark.parametrize("seed", range(5))
def test_what_exercise_11_1_finds_on_the_digits(seed):
    """Its solution tells it, where the digits cannot be read."""
    right = load_exercises("train_one_layer")["train_one_layer"].right
    start = train.network(seed)[0][0][:, :10]
    target = (np.eye(10)[train.train_y[:100]] - 0.1) / 0.3

    def layer(backward=layer_norm_backward):
        return train.LayerNorm(10, backward)

    last = []
    for rate in (10, 100):
        lengths, losses = right(train.train_x[:100], start, target, layer(), rate, 100)
        assert lengths[-1] < 1.01 * lengths[1] and losses[-1] > 1.8
    assert right(train.train_x[:100], start, target, layer(), 0.001, 100)[1][-1] > 2.5
    for rate in (0.01, 0.1, 1):
        found = [
            right(train.train_x[:100], start, target, layer(backward), rate, 100)
            for backward in (layer_norm_backward, train.MUSEUM["no projection term"]["backward"])
        ]
        (lengths, losses), (wrong_lengths, wrong_losses) = found
        assert np.all(np.diff(lengths) > 0) and np.any(np.diff(wrong_lengths) < 0)
        assert losses[-1] < 1.8 < 2.5 < wrong_losses[-1]
        last.append((lengths[-1], losses[-1]))
    last_lengths, last_losses = zip(*last)
    assert np.all(np.diff(last_lengths) > 0) and max(last_losses) < 1.1 * min(last_losses)
