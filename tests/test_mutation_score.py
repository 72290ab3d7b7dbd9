"""The stored score of lesson 03's checks: made from today's sources, and repeatable."""

import ast
import inspect
import json

import mutate
import numpy as np
import pytest

from lnlib import layer_norm_backward, layer_norm_forward

STORED = json.loads(mutate.RECORD.read_text("utf-8"))


@pytest.fixture(scope="module")
def found():
    return mutate.classes()


def test_stored_mutants_are_those_of_today(found):
    distinct, counts = found
    assert STORED["counts"] == {"made": sum(counts.values())} | counts
    assert [row[:4] for row in STORED["mutants"]] == [[*mutant[:4]] for mutant in distinct]
    for form, lines in STORED["sources"].items():
        assert lines == ast.unparse(ast.parse(inspect.getsource(mutate.FORMS[form]))).splitlines()


def test_stored_scores_are_the_sums_of_the_verdicts():
    columns = ["".join(column) for column in zip(*(row[4] for row in STORED["mutants"]))]
    assert STORED["caught"][0] == [column.count("1") for column in columns]
    assert len(STORED["caught"]) == len(STORED["seeds"]) == len(mutate.SEEDS)
    assert len(STORED["checks"]) == len(STORED["passes"]) == len(columns)


def test_none_is_right_and_no_two_are_the_same(found):
    """In floats, at another point than those that sorted them out."""
    rng = np.random.default_rng(8)
    x, dy = 3 * rng.standard_normal((2, 5, 3, 7))  # (5, 3, 7) each
    gamma = rng.uniform(0.5, 2, 7)  # (7,)
    _, cache = layer_norm_forward(x, gamma, gamma)

    def flat(backward):
        with np.errstate(all="ignore"):
            joined = np.concatenate([np.ravel(d) for d in backward(dy, tuple(cache))])
        return np.nan_to_num(joined, nan=1e9, posinf=1e9, neginf=-1e9)

    right = np.concatenate([np.ravel(d) for d in layer_norm_backward(dy, cache)])
    for form in mutate.FORMS.values():
        np.testing.assert_allclose(flat(form), right, rtol=1e-12)
    wrong = np.array([flat(mutate.function(mutant.source)) for mutant in found[0]])
    for k, one in enumerate(wrong):
        others = np.vstack([wrong[:k], right])
        assert np.abs(others - one).max(axis=1).min() > 1e-11, found[0][k].new
