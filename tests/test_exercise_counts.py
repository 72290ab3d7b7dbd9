"""Right answers of exercises that are numbers: what NumPy does, keeps and loads must agree."""

import numpy as np
import pytest
from answers import named, spoken
from execute_notebooks import NOTEBOOKS, cells_of

from lnlib import layernorm, textbook
from lnlib.exercises import EXERCISES, check
from lnlib.gpu import residency
from lnlib.trace import trace, traffic

LESSON = NOTEBOOKS / "06_complexity.ipynb"
rng = np.random.default_rng(50)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cost_of_one_pass_is_what_runs(dtype):
    N, D = 400, 500
    x, gamma, beta = (rng.standard_normal(s).astype(dtype) for s in ((N, D), D, D))
    (shown,) = (c.source for c in cells_of(LESSON) if "def one_pass_forward" in c.source)
    exec(shown, names := {"np": np})
    y, steps = trace(names["one_pass_forward"], x, gamma, beta)
    np.testing.assert_allclose(y, layernorm.layer_norm_forward(x, gamma, beta)[0], atol=1e-4)
    flops = sum(step.flops for step in steps)
    counted = sum(size for step in steps for _, size in step.reads + step.writes)
    moved = traffic(steps, x.nbytes // 4, write_allocate=True)
    formula = EXERCISES["cost_of_one_pass"].right(N, D, x.itemsize)
    np.testing.assert_allclose((flops, counted, moved), formula, rtol=0.03)
    values = [round(n / x.nbytes) for n in (counted, moved)]
    assert [round(flops / x.size), *values] == [7, 12, 17]


def test_bill_is_the_sum_over_the_blocks():
    bill = EXERCISES["bill_of"]
    for N, D, rows, sweeps, small, near, far, call in bill.cases().values():
        calls = times = 0.0
        for start in range(0, N, rows):
            prices = [far, far] + (sweeps - 2) * [near]
            times += (min(N, start + rows) - start) * D * sum(prices)
            calls += small * call
        expected = (times + calls) / (N * D), calls / (times + calls)
        right = bill.right(N, D, rows, sweeps, small, near, far, call)
        np.testing.assert_allclose(right, expected, rtol=1e-12)


def test_blocks_held_are_those_of_residency():
    held = EXERCISES["blocks_held"].right
    most = [1024, 128, 100_000]
    for threads, registers, shared in rng.integers([1, 16, 0], most, (2000, 3)).tolist():
        expected, _ = residency.resident_blocks("sm_80", threads, registers, shared)
        assert held(threads, registers, shared) == expected


def with_one_buffer(dy, x_hat, rstd, gamma, rows):
    dx, buffer = np.full_like(dy, 0), np.empty((rows, dy.shape[1]), dy.dtype)  # (N, D), (rows, D)
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


def into_empty(dy, x_hat, rstd, gamma, rows):
    dx = np.empty(dy.shape, dy.dtype)  # which check fills, and must not count
    sums = np.zeros((2, *gamma.shape), dy.dtype)
    for start in range(0, len(dy), rows):
        s = slice(start, start + rows)
        dx[s], *more = textbook.backward_means(dy[s], (x_hat[s], rstd[s], gamma))
        sums += more
    return dx, *sums


def collected(dy, x_hat, rstd, gamma, rows):
    strips = [slice(start, start + rows) for start in range(0, len(dy), rows)]
    done = [textbook.backward_means(dy[s], (x_hat[s], rstd[s], gamma)) for s in strips]
    dx, dgamma, dbeta = zip(*done)
    return np.concatenate(dx), sum(dgamma), sum(dbeta)


def rstd_first(x, gamma, eps, rows):
    y, rstd = np.empty_like(x), np.empty_like(x[:, :1])  # (N, D), (N, 1)
    for s in range(0, len(x), rows):
        rstd[s : s + rows, 0] = 1 / np.sqrt(np.mean(x[s : s + rows] ** 2, axis=1) + eps)
    for s in range(0, len(x), rows):
        y[s : s + rows] = gamma * (x[s : s + rows] * rstd[s : s + rows])
    return y, rstd


@pytest.mark.parametrize(
    "name, function, said",
    [
        ("backward_by_strips", with_one_buffer, "4 values per element go through memory; 3 must"),
        ("backward_by_strips", into_empty, "3 values per element go through memory; 3 must"),
        ("backward_by_strips", collected, "(concatenate) goes over 301 rows at once"),
        ("rms_forward_blocked", rstd_first, "x comes from memory 2 times"),
    ],
)
def test_other_ways_by_rows(name, function, said):
    assert said in spoken(check(named(name, "return function({given})", function=function)))


PRODUCTS = """products = dy * x_hat
    dgamma, along = products.sum(axis=0), (products @ gamma / len(gamma))[:, None]
    g = dy * gamma
    g -= (dy @ gamma / len(gamma))[:, None]
    g -= np.multiply(x_hat, along, out=products)
    g *= rstd
    return g, dgamma, dy.sum(axis=0)"""
AT_ONCE = """along = np.einsum("nd,nd,d->n", dy, x_hat, gamma)[:, None] * rstd / len(gamma)
    dx = np.einsum("nd,d,n->nd", dy, gamma, rstd[:, 0])
    dx -= (dy @ gamma)[:, None] * rstd / len(gamma)
    dx -= x_hat * along
    return dx, np.vecdot(dy.T, x_hat.T), dy.sum(axis=0)"""
INTO_BLOCKS = """dx, sums = np.empty_like(dy), np.zeros((2, len(gamma)), dy.dtype)
    for s in range(0, len(dy), 50):
        d, h, g = (a[s : s + 50] for a in (dy, x_hat, dx))
        sums += np.einsum("nd,nd->d", d, h), d.sum(axis=0)
        along = np.einsum("nd,nd->n", np.multiply(d, gamma, out=g), h)[:, None] / len(gamma)
        g -= g.mean(axis=-1, keepdims=True)
        g -= h * along
        g *= rstd[s : s + 50]
    return dx, *sums"""
UNSEEN = "return R(*(a.view(np.ndarray) for a in ({given})))"


@pytest.mark.parametrize(
    "body, said",
    [
        (PRODUCTS, "lean_backward: right"),
        (AT_ONCE, "15 values per element are counted, and the peak is 2.0 arrays"),
        (INTO_BLOCKS, "17 values per element are counted, and the peak is 1.1 arrays"),
        (UNSEEN, "not checked The gradients are right, but the tracer cannot see"),
        ("return B(dy, (x_hat, rstd, gamma))", "21 values per element are counted"),
    ],
)
def test_other_ways_to_fewer_bytes(body, said):
    tools = {"np": np, "R": EXERCISES["lean_backward"].right, "B": textbook.backward_means}
    assert said in spoken(check(named("lean_backward", body, **tools)))
