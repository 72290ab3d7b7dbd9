"""Every implementation of the layer, once for all tests; and arrays to try it on."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from oracle import Results

from lnlib import blocked, compiled, gpu, layernorm, textbook
from lnlib.emulator import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
KERNEL, COMPILED = (pytest.param(name, marks=needs_compiler) for name in ("kernel", "compiled"))
each_layer = pytest.mark.parametrize(
    "layer", ["reference", "staged", "blocked", KERNEL, COMPILED], indirect=True
)


class Layer(NamedTuple):
    """An implementation: forward(x, gamma, beta, eps) -> y, cache; backward(dy, cache)."""

    name: str
    forward: Callable
    backward: Callable

    def both(self, dy, x, gamma, beta, *eps):
        """Return the results of both passes; without eps for the layer's own."""
        y, cache = self.forward(x, gamma, beta, *eps)
        return Results(y, *self.backward(dy, cache))


def _staged_forward(x, gamma, beta, eps=1e-5):
    y, _ = layernorm.layer_norm_forward(x, gamma, beta, eps)
    return y, (x, gamma, eps)


def _staged_backward(dy, cache):
    return layernorm.layer_norm_backward_staged(dy, *cache)


def _compiled_forward(x, gamma, beta):
    x, y = x.reshape(-1, len(gamma)), compiled.empty(x.shape)
    y[...] = np.nan  # so that it shows what is not written
    rows = compiled.run_forward(compiled.load(), x, gamma, beta, y.reshape(x.shape))
    return y, (x, gamma, rows)


def _compiled_backward(dy, cache):
    x, gamma, rows = cache
    dx = compiled.empty(dy.shape)
    dx[...] = np.nan
    sums = compiled.run_backward(
        compiled.load(), dy.reshape(x.shape), x, gamma, rows, dx.reshape(x.shape)
    )
    return dx, *sums


_ALL = (
    Layer("reference", layernorm.layer_norm_forward, layernorm.layer_norm_backward),
    Layer("staged", _staged_forward, _staged_backward),
    Layer("blocked", blocked.layer_norm_forward, blocked.layer_norm_backward),
    Layer("kernel", gpu.emulate_forward, gpu.emulate_backward),
    Layer("compiled", _compiled_forward, _compiled_backward),
    Layer("textbook", *textbook.FORMS["means"]),
)
LAYERS = {layer.name: layer for layer in _ALL}


def data(shape, dtype=np.float64, seed=0, offset=0.0, sigma=1.0):
    """Random dy, x, gamma, beta; dy is biased, nothing is constant or symmetric."""
    rng = np.random.default_rng(seed)
    D = shape[-1]
    x = offset + sigma * rng.standard_normal(shape)
    dy = 0.5 + rng.standard_normal(shape)
    gamma, beta = rng.uniform(0.5, 2, D), rng.standard_normal(D)
    return [a.astype(dtype) for a in (dy, x, gamma, beta)]
