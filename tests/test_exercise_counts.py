"""Right answers of exercises that are numbers: what NumPy does, keeps and loads must agree."""

import numpy as np
import pytest

from lnlib import blocked, layernorm, textbook
from lnlib.exercises import EXERCISES, check
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


def with_one_buffer(dy, x_hat, rstd, gamma, rows):
    dx, buffer = np.empty_like(dy), np.empty((rows, dy.shape[1]), dy.dtype)  # (N, D), (rows, D)
    dgamma, dbeta = np.zeros((2, dy.shape[1]), dy.dtype)  # (D,) each
    for start in range(0, len(dy), rows):
        end = min(start + rows, len(dy))
        d, h, g, terms = dy[start:end], x_hat[start:end], dx[start:end], buffer[: end - start]
        np.multiply(d, h, out=terms)
        dgamma += terms.sum(axis=0)
        dbeta += d.sum(axis=0)
        np.multiply(d, gamma, out=g)
        np.multiply(g, h, out=terms)
        along = terms.mean(axis=-1, keepdims=True)
        g -= g.mean(axis=-1, keepdims=True)
        np.multiply(h, along, out=terms)
        g -= terms
        g *= rstd[start:end]
    return dx, dgamma, dbeta


def collected(dy, x_hat, rstd, gamma, rows):
    parts = [
        textbook.backward_means(dy[s : s + rows], (x_hat[s : s + rows], rstd[s : s + rows], gamma))
        for s in range(0, len(dy), rows)
    ]
    dx, dgamma, dbeta = zip(*parts)
    return np.concatenate(dx), sum(dgamma), sum(dbeta)


def on_all_rows_in_place(dy, x_hat, rstd, gamma, rows):
    dx = dy * gamma  # (N, D)
    dx -= dx.mean(axis=-1, keepdims=True)
    along = np.vecdot(dx, x_hat)[:, None] / dy.shape[1]  # (N, 1)
    for column in range(dy.shape[1]):
        dx[:, column] -= x_hat[:, column] * along[:, 0]
    dx *= rstd
    return dx, np.vecdot(dy, x_hat, axis=0), dy.sum(axis=0)


@pytest.mark.parametrize(
    "function, said",
    [
        (with_one_buffer, ": right "),
        (collected, "arrays of the size of dy exist at the worst moment"),
        (on_all_rows_in_place, "values per element, where 3 must. Are the strips"),
    ],
)
def test_other_backward_passes_in_strips(function, said):
    function.__name__ = "backward_by_strips"
    assert said in " ".join(repr(check(function)).split())
