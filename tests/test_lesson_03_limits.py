"""Where the three assumptions of lesson 03 end: its note for experts, claim by claim."""

import math

import numpy as np
import pytest

from lnlib import directional_check, gradcheck, layer_norm_backward, layer_norm_forward
from lnlib.bugs import eps_outside_root

LAYER = layer_norm_forward, layer_norm_backward
D = 8


@pytest.fixture
def rng():
    return np.random.default_rng(seed=3)


@pytest.fixture
def point(rng):
    x = 5 + 3 * rng.standard_normal((2, 3, D))
    return x[:1], rng.uniform(0.5, 2, D), rng.standard_normal(D)


def followed_by(f):
    """Return the layer with f behind it; f(y) is the value and the slope."""

    def forward(x, gamma, beta):
        y, cache = layer_norm_forward(x, gamma, beta)
        value, slope = f(y)
        return value, (slope, cache)

    return forward, lambda dy, cache: layer_norm_backward(dy * cache[0], cache[1])


def gelu(half):
    """Return the layer with GELU behind it; half(z) is (1 + erf(z)) / 2."""

    def of(y):
        right = np.vectorize(lambda z: math.erfc(-z) / 2)(y / math.sqrt(2))
        bell = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
        return y * half(y / math.sqrt(2)), right + y * bell

    return followed_by(of)


def verdict(forward, backward, point, beta=None, **options):
    x, gamma, own = point
    return gradcheck(forward, backward, x, gamma, own if beta is None else beta, **options).verdict


def test_kink(point):
    x, gamma, beta = point
    relu = followed_by(lambda y: (y * (y > 0), y > 0))
    x_hat = layer_norm_forward(*point)[1].x_hat
    kink = np.where(np.arange(D) == 0, -gamma * x_hat[0, 0], beta)  # the first y is 0
    assert verdict(*relu, point, kink) == "cannot judge"
    assert verdict(*relu, point, kink + 1e-6) == "FAILED"
    assert verdict(*relu, point, np.where(np.arange(D) % 2, 9.0, -9.0)) == "passed"


def test_what_is_recognised(point, rng):
    def in_float32(x, gamma, beta):
        y, _ = layer_norm_forward(*(a.astype(np.float32) for a in (x, gamma, beta)))
        return y.astype(np.float64), layer_norm_forward(x, gamma, beta)[1]

    def with_var(x, gamma, beta):
        xc = x - x.mean(axis=-1, keepdims=True)
        y = gamma * xc / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) + beta
        return y, layer_norm_forward(x.real, gamma.real, beta.real)[1]

    dropout = followed_by(lambda y: (y * (kept := rng.random(y.shape) < 0.5), kept))
    assert verdict(*dropout, point) == "cannot judge"
    assert verdict(in_float32, layer_norm_backward, point) == "cannot judge"
    assert verdict(with_var, layer_norm_backward, point, method="complex") == "cannot judge"


def test_what_is_not_recognised(point):
    def x_hat_in_float32(x, gamma, beta):
        _, cache = layer_norm_forward(x, gamma, beta)
        return gamma * cache.x_hat.astype(np.float32) + beta, cache

    rippled = followed_by(lambda y: (y + np.sin(1e8 * y) / 1e9, 1 + np.cos(1e8 * y) / 10))
    assert verdict(*rippled, point) == "FAILED"
    assert verdict(x_hat_in_float32, layer_norm_backward, point) == "FAILED"


def test_gelu_far_below_zero(point):
    beta = point[2] - 4
    assert verdict(*gelu(np.vectorize(lambda z: (1 + math.erf(z)) / 2)), point, beta) == "FAILED"
    assert verdict(*gelu(np.vectorize(lambda z: math.erfc(-z) / 2)), point, beta) == "passed"


def test_smooth_but_steep(rng):
    steep = followed_by(lambda y: (np.tanh(30 * y), 30 / np.cosh(30 * y) ** 2))
    gamma, beta = rng.uniform(0.5, 2, 6), rng.standard_normal(6)
    rows = 5 + 3 * rng.standard_normal((24, 1, 1, 6))
    assert {verdict(*steep, (x, gamma, beta)) for x in rows} == {"passed", "cannot judge"}


def test_rows_of_hardly_any_spread(point):
    def wavy(x, gamma, beta):  # not linear in gamma
        y, cache = layer_norm_forward(x, gamma + 1e-4 * np.sin(gamma), beta)
        return y, (cache, 1 + 1e-4 * np.cos(gamma))

    def wavy_backward(dy, cache):
        dx, dgamma, dbeta = layer_norm_backward(dy, cache[0])
        return dx, dgamma * cache[1], dbeta

    x, *rest = point
    flat = 5 + 1e-12 * (x - 5), *rest
    assert verdict(wavy, wavy_backward, point) == "passed"
    assert verdict(wavy, wavy_backward, flat) == "FAILED"
    assert verdict(*LAYER, flat) == "passed"


def test_large_beta(point):
    x, gamma, beta = point
    bug = layer_norm_forward, eps_outside_root, x, gamma, beta + 1e6
    assert directional_check(*bug).passed
    assert directional_check(*bug, method="complex").verdict == "FAILED"
