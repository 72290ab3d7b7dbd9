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
    factors, adam, museum = STORED["factors"], STORED["adam"], STORED["museum"]
    assert set(factors["runs"]) == set(train.FACTORS)
    assert set(adam["runs"]) == set(STORED["adam, long"]["runs"]) == set(train.ADAM)
    assert set(STORED["factors, long"]["runs"]) == {n for n in train.FACTORS if "frozen" not in n}
    trained = {"right", *(bug.name for bug in BUGS)}
    assert set(STORED["museum, long"]["runs"]) == trained
    assert set(museum["runs"]) == trained, "run python tests/tools/train.py --missing"
    assert min(len(factors["rates"]), len(adam["rates"])) >= 7 and len(STORED["seeds"]) == 5
    for part in (factors, adam, museum):
        for run in part["runs"].values():
            if "raises" not in run:
                assert set(run) == {"accuracy", "loss"}
                assert {len(row) for row in run["accuracy"]} == {5}
                assert len(run["accuracy"]) == len(part["rates"])


def test_the_long_runs_stand_near_the_best_rate():
    for key, (_, rates) in train.PARTS.items():
        assert tuple(STORED[key]["rates"]) == rates
        for name, run in STORED[f"{key}, long"]["runs"].items():
            if "raises" not in run:
                near = train.near_the_best(STORED[key]["runs"][name], rates)
                assert tuple(run["rates"]) == near and len(near) in (2, 3)
                assert np.shape(run["accuracy"]) == (len(near), 5)


def test_only_bugs_that_are_not_stored_are_trained(monkeypatch):
    trained, new = [], {"accuracy": [[10], [30], [20]]}
    monkeypatch.setattr(
        train, "runs", lambda setting, rates: trained.append((setting, rates)) or new
    )
    lacking = {
        key: {
            "runs": {n: r for n, r in STORED[key]["runs"].items() if n != "no gamma"} | {"gone": {}}
        }
        for key in ("museum", "museum, long")
    }
    monkeypatch.setattr(train, "dx_runs", lambda: "measured again")
    lacking["dx"] = {"gone": []}
    found = train.with_missing(STORED | lacking)
    assert found["dx"] == "measured again"
    bug, near = train.MUSEUM["no gamma"], train.MUSEUM_RATES[:3]
    assert trained == [(bug, train.MUSEUM_RATES), (bug | {"epochs": train.EPOCHS}, near)]
    for key, added in (("museum", new), ("museum, long", {"rates": near} | new)):
        assert found[key]["runs"] == STORED[key]["runs"] | {"no gamma": added}
    assert train.written(STORED) == train.RECORD.read_text("utf-8")  # what is kept stays as it is


# Lesson 11 trains a sample of the factors. Where the last bit of each weight moves the loss by less
# than 1e-9 of itself:
SAMPLE = {"no gamma": 0.1} | dict.fromkeys(train.ADAM, 0.001)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_trains_as_stored(name):
    assert train.sample(STORED, [name], rate=SAMPLE[name])[name] < 1e-5


@pytest.mark.parametrize(
    "name", ["no mean term, default, 0.1", "no drift, He, 0.1", "right dx, default, 0.1"]
)
def test_a_long_run_trains_as_stored(name):
    """The first epochs repeat exactly; lesson 11 trains to the end, and sees if the loss is low."""
    assert set(STORED["long"]) == set(train.LONG) and len(STORED["long"][name]) == 5
    found, stored = train.long_run(0, stop=4, **train.LONG[name]), STORED["long"][name][0]
    for key in ("loss", "drift"):
        assert len(found[key]) == 4 and len(stored[key]) == train.EPOCHS + 1
        assert np.allclose(found[key], stored[key][:4], rtol=1e-4, atol=1e-12)


def test_a_factor_trains_as_stored_for_30_epochs():
    """Where rounding errors do not grow: they move this accuracy by less than a point."""
    name, seed = "Adam, default, times 1296", 0
    stored = STORED["adam, long"]["runs"][name]
    found = train.run(seed, 0.001, epochs=train.EPOCHS, **train.ADAM[name])["accuracy"]
    assert abs(found - stored["accuracy"][stored["rates"].index(0.001)][seed]) < 1


def test_the_errors_of_dx_belong_to_todays_bugs():
    assert set(STORED["dx"]) == {bug.name for bug in BUGS}
    assert {len(errors) for errors in STORED["dx"].values()} == {5}


def test_a_sample_can_differ():
    """The stored numbers of one network are not those of another."""
    runs = STORED["factors"]["runs"]
    part = STORED["factors"] | {"runs": runs | {"He": runs["default"]}}
    assert train.sample(STORED | {"factors": part}, ["He"])["He"] > 1e-2


def test_lesson_11_shows_the_code_that_was_run():
    cells = cells_of(train.NOTEBOOKS / "11_training.ipynb")
    page = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    parts = "LayerNorm network run_forward run_backward score train walk_back dx_errors"
    for part in f"{parts} without_drift with_right_dx Adam adams".split():
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
