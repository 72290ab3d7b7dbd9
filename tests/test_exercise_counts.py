"""Right answers of exercises that are numbers: what NumPy does, keeps and loads must agree."""

import numpy as np
import pytest

from lnlib import blocked, layernorm
from lnlib.exercises import EXERCISES
from lnlib.exercises.lesson_05 import one_pass_forward
from lnlib.trace import trace

rng = np.random.default_rng(50)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cost_of_one_pass_is_what_runs(dtype):
    N, D = 400, 500
    x, gamma, beta = (rng.standard_normal(s).astype(dtype) for s in ((N, D), D, D))
    y, steps = trace(one_pass_forward, x, gamma, beta)
    np.testing.assert_allclose(y, layernorm.layer_norm_forward(x, gamma, beta)[0], atol=1e-4)
    flops = sum(step.flops for step in steps)
    moved = sum(size for step in steps for _, size in step.reads + step.writes)
    formula = EXERCISES["cost_of_one_pass"].right(N, D, x.itemsize)
    np.testing.assert_allclose((flops, moved), formula, rtol=0.03)
    assert [round(n / x.size) for n in (flops, moved / x.itemsize)] == [7, 12]


def test_tokens_that_fit_are_those_whose_caches_fit():
    layers, D, memory = 6, 30, 40_000
    counts = EXERCISES["tokens_that_fit"].right(memory, layers, D, 4)
    for layer, kept, count in (
        (layernorm, slice(None), counts[0]),
        (blocked, slice(1, 5), counts[1]),  # x itself is kept by somebody else
    ):
        held = []
        for tokens in (count, count + 1):
            x, (gamma, beta) = rng.random((tokens, D), np.float32), np.ones((2, D), np.float32)
            cache = layer.layer_norm_forward(x, gamma, beta)[1]
            held.append(layers * sum(a.nbytes for a in cache[kept]))
        assert held[0] <= memory < held[1]
