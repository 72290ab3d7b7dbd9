"""The stored training runs: complete, small, and what the same code finds today."""

import inspect
import json

import numpy as np
import pytest
import train
from execute_notebooks import cells_of

from lnlib.bugs import BUGS

STORED = json.loads(train.RECORD.read_text("utf-8"))


def test_each_factor_and_each_bug_was_trained():
    factors, adam, museum = STORED["factors"], STORED["adam"], STORED["museum"]
    assert set(factors["runs"]) == set(train.FACTORS)
    assert set(adam["runs"]) == set(train.ADAM)
    trained = {"right", *(bug.name for bug in BUGS)}
    assert set(museum["runs"]) == trained, "run python tests/tools/train.py --missing"
    assert min(len(factors["rates"]), len(adam["rates"])) >= 7 and len(STORED["seeds"]) == 5
    for part in (factors, adam, museum):
        for run in part["runs"].values():
            if "raises" not in run:
                assert set(run) == {"accuracy", "loss"}
                assert {len(row) for row in run["accuracy"]} == {5}
                assert len(run["accuracy"]) == len(part["rates"])
    assert train.RECORD.stat().st_size < 100_000


def test_only_bugs_that_are_not_stored_are_trained(monkeypatch):
    trained, museum = [], STORED["museum"]
    monkeypatch.setattr(train, "runs", lambda setting, rates: trained.append(setting) or {"new": 1})
    runs = {name: run for name, run in museum["runs"].items() if name != "no gamma"} | {"gone": {}}
    found = train.with_missing(STORED | {"museum": museum | {"runs": runs}})
    assert trained == [train.MUSEUM["no gamma"]]
    assert found["museum"]["runs"] == museum["runs"] | {"no gamma": {"new": 1}}
    assert train.written(STORED) == train.RECORD.read_text("utf-8")  # what is kept stays as it is


# Where the last bit of each weight moves the loss by less than 1e-9 of itself.
SAMPLE = dict.fromkeys(["He", "LayerNorm, He", "LayerNorm frozen, default", "no gamma"], 0.1)
SAMPLE |= dict.fromkeys(train.ADAM, 0.001)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_trains_as_stored(name):
    assert train.sample(STORED, [name], rate=SAMPLE[name])[name] < 1e-5


@pytest.mark.parametrize("name", ["no mean term", "no mean term, no drift"])
def test_a_long_run_trains_as_stored(name):
    """The first epochs repeat exactly; later, only which side of the gap the loss is on."""
    stored = STORED["long"]["losses"]
    assert set(stored) == set(train.LONG)
    assert all(np.shape(runs) == (5, train.EPOCHS + 1) for runs in stored.values())
    found = train.long_run(0, rate=STORED["long"]["rate"], **train.LONG[name])
    assert np.allclose(found[:4], stored[name][0][:4], rtol=1e-4)
    assert len(found) == train.EPOCHS + 1
    assert (found[-1] > 0.3) == (stored[name][0][-1] > 0.3) == (name == "no mean term")


def test_a_sample_can_differ():
    """The stored numbers of one network are not those of another."""
    runs = STORED["factors"]["runs"]
    swapped = {"LayerNorm, He": runs["LayerNorm, default"]}
    part = STORED["factors"] | {"runs": runs | swapped}
    assert train.sample(STORED | {"factors": part}, ["LayerNorm, He"])["LayerNorm, He"] > 1e-2


def test_lesson_11_shows_the_code_that_was_run():
    cells = cells_of(train.NOTEBOOKS / "11_training.ipynb")
    page = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for part in "LayerNorm network run_forward run_backward score train without_drift".split():
        assert inspect.getsource(getattr(train, part)).strip() in page, part
    data = inspect.getsource(train.digits).replace("NOTEBOOKS / ", "").splitlines()[2:6]
    for line in data:
        assert line.strip().replace('"data" / "digits.npz"', '"data/digits.npz"') in page, line


def test_what_raises_raises_today():
    raising = {name for name, run in STORED["museum"]["runs"].items() if "raises" in run}
    assert raising == {"dgamma not summed"}
    with pytest.raises(ValueError):
        train.run(0, 0.1, **train.MUSEUM["dgamma not summed"])
