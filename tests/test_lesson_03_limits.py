"""What gradcheck says where one of the three assumptions of lesson 03 does not hold."""

import numpy as np
import pytest

from lnlib import gradcheck, layer_norm_backward, layer_norm_forward

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
