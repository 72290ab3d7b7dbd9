"""Formulas of cost.py against what runs: counted operations, simulated caches, traced memory."""

import functools
import tracemalloc

import numpy as np
import pytest
from layers import LAYERS, Layer, data
from oracle import norm_wise, oracle

from lnlib import bench, blocked, cost, layernorm, textbook
from lnlib.trace import trace, traffic

VARIANTS = "textbook", "reference", "blocked"
SHAPES = [(4096, 256), (3000, 1024)]


def traced_passes(variant, N, D, dtype=np.float32, mean_of_dy=0, offset=0):
    dy, x, gamma, beta = bench.random_arrays((N, D), dtype)
    dy, x = dy + dtype(mean_of_dy), x + dtype(offset)
    layer = LAYERS[variant]
    (_, cache), first = trace(layer.forward, x, gamma, beta)
    _, second = trace(lambda dy: layer.backward(dy, cache), dy)
    return {"forward": first, "backward": second}


@pytest.mark.parametrize("N, D", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_flops_and_bytes_are_those_of_what_runs(variant, N, D):
    """Of the blocked layer, the bytes that a cache of 8 MiB lets through; else all operands."""
    for direction, steps in traced_passes(variant, N, D).items():
        flops, nbytes, _ = cost.cost(variant, direction, N, D)
        rest = sum(step.flops for step in steps) - flops
        assert 0 <= rest <= 30 * N + 10 * D * (N // 16 + 8)  # per row, and per column of a run
        if variant == "blocked":
            buffers = (1 if direction == "forward" else 2) * 4 * D * blocked.rows_per_block(N, D)
            assert nbytes < traffic(steps, 8 * 2**20) < 1.1 * (nbytes + buffers)
            assert traffic(steps, 2**19) > 3 * nbytes  # a cache that is too small
            continue
        operands = sum(size for step in steps for _, size in step.reads + step.writes)
        masks = 2 * N * D if (variant, direction) == ("reference", "forward") else 0
        assert masks <= operands - nbytes <= masks + 4 * (60 * N + 20 * D)
        assert traffic(steps, 2**20) == pytest.approx(operands, rel=0.01)


def test_the_reference_has_fewer_values_in_float64():
    """Where gamma * dy is no wider than the rest."""
    steps = traced_passes("reference", 2000, 768, np.float64)["backward"]
    operands = sum(size for step in steps for _, size in step.reads + step.writes)
    _, nbytes, _ = cost.cost("reference", "backward", 2000, 768, np.float64)
    assert operands == pytest.approx(nbytes, rel=0.01)


CENTRED = [(5, 0, (0, 4)), (0, 5, (5, 1)), (5, 5, (5, 5))]


@pytest.mark.parametrize("mean_of_dy, offset, more", CENTRED)
def test_flops_of_what_the_blocked_layer_centres(mean_of_dy, offset, more):
    N, D = 3000, 768
    passes = traced_passes("blocked", N, D, mean_of_dy=mean_of_dy, offset=offset)
    for (direction, steps), added in zip(passes.items(), more):
        flops = cost.cost("blocked", direction, N, D).flops / (N * D)
        assert sum(s.flops for s in steps) / (N * D) == pytest.approx(flops + added, abs=0.4)


def peak_of(function, *args, **kwargs):
    tracemalloc.start()
    result = function(*args, **kwargs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, peak


_, PEAK = peak_of(lambda a: (a + a) + a, np.ones(2**20))
ELIDES = PEAK < 12 * 2**20  # NumPy wrote over its temporary
# NumPy 2.0 takes its buffer also where it adds up rows of float64; 2.4 does not.
BUFFER = max(peak_of(np.sum, np.ones((64, 512)), axis=0)[1] - 2**13, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("N, D", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_peak_memory(variant, N, D, dtype):
    dy, x, gamma, beta = bench.random_arrays((N, D), dtype)
    for out in (False, True) if variant == "blocked" else (False,):
        options = {"out": np.empty_like(x)} if out else {}
        (_, cache), first = peak_of(LAYERS[variant].forward, x, gamma, beta, **options)
        _, second = peak_of(LAYERS[variant].backward, dy, cache, **options)
        for direction, peak in (("forward", first), ("backward", second)):
            predicted = cost.cost(variant, direction, N, D, dtype, out=out, elides=ELIDES).peak
            predicted += BUFFER if variant == "blocked" and D < blocked.LONG_ROW else 0
            assert peak == pytest.approx(predicted, rel=0.05, abs=0.02 * x.nbytes)


def test_a_plain_kernel_does_the_flops_of_the_fused_one():
    """The arithmetic of a kernel that adds up once, in NumPy, with mean and rstd known backward."""
    dy, x, gamma, beta = data((500, 400))
    kept = layernorm.layer_norm_forward(x, gamma, beta)
    mean, rstd, rest = x.mean(axis=-1, keepdims=True), kept[1].rstd, np.zeros((500, 1))

    def forward(x, gamma, beta):
        xc = x - np.add.reduce(x, axis=-1, keepdims=True) / 400
        xc = xc - np.add.reduce(xc, axis=-1, keepdims=True) / 400
        rstd = 1 / np.sqrt(np.vecdot(xc, xc) / 400 + 1e-5)
        return (xc * rstd[:, None] * gamma + beta,)

    def backward(dy, x, gamma):
        x_hat = (x - mean - rest) * rstd  # 3
        g = gamma * dy  # 1
        mean_g = np.add.reduce(g, axis=-1, keepdims=True) / 400  # 1
        along = np.vecdot(g, x_hat)[:, None] / 400  # 2
        dgamma = np.add.reduce(dy * x_hat, axis=0)  # 2
        dbeta = np.add.reduce(dy, axis=0)  # 1
        return (g - mean_g - x_hat * along) * rstd, dgamma, dbeta  # 4

    for function, arrays, right in (
        (forward, (x, gamma, beta), kept),
        (backward, (dy, x, gamma), layernorm.layer_norm_backward(dy, kept[1])),
    ):
        results, steps = trace(function, *arrays)
        assert all(map(np.allclose, results, right))
        flops, _, _ = cost.PER_ELEMENT["fused", function.__name__]
        assert sum(s.flops for s in steps) / x.size == pytest.approx(flops, abs=0.1)


def test_cost_of_integers_of_numpy():
    assert cost.cost("fused", "backward", np.int32(2**20), np.int32(2**12)).flops == 14 * 2**32


@pytest.mark.parametrize(
    "variant, N, D, out, message",
    [
        ("blocked", 0, 3, False, "N and D must be positive"),
        ("blocked", 3, 0, False, "N and D must be positive"),
        ("magic", 2, 3, False, "variant, direction must be in cost.PER_ELEMENT"),
        ("textbook", 2, 3, True, "out must be False for textbook"),
    ],
)
def test_cost_of_what_it_does_not_know(variant, N, D, out, message):
    with pytest.raises(ValueError, match=message):
        cost.cost(variant, "forward", N, D, out=out)


def test_intensity_and_roofline():
    small = cost.cost("fused", "forward", 10, 20, np.float64)
    assert small == (9 * 200, 16 * 200, 8 * 200)
    assert small.intensity == 9 / 16
    assert np.array_equal(cost.roofline(np.array([0.5, 4]), 10.0, 20.0), [5, 20])


@pytest.mark.parametrize("form", textbook.FORMS)
def test_textbook_forms_are_right(form):
    dy, x, gamma, beta = data((6, 9))
    layer = Layer(form, *textbook.FORMS[form])
    got = layer.both(dy.reshape(2, 3, 9), x.reshape(2, 3, 9), gamma, beta)
    right, _ = oracle(dy, x, gamma, beta)
    for a, b in zip(got, right):
        assert norm_wise(a.reshape(b.shape), b) < 1e-14


def test_settled_times_are_the_least_and_stop_when_a_round_lowers_none():
    found = iter([9, 5, 4, 3.9, 1])  # the fourth lowers by less than 5 %
    assert bench.settled(lambda: {"a": next(found), "b": 2}) == {"a": 3.9, "b": 2}
    assert next(found) == 1
    falling = iter(range(100, 0, -10))
    assert bench.settled(lambda: {"a": next(falling)}, rounds=3) == {"a": 80}


def test_times_of_a_slow_and_a_fast_function():
    calls = []
    slow = functools.partial(np.linalg.svd, np.ones((60, 60)))
    times = bench.least({"slow": slow, "fast": lambda: calls.append(1)}, seconds=0)
    assert 0 < times["fast"] < times["slow"] / 300 and len(calls) > 100
