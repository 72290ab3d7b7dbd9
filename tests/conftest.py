"""What several tests share: the layers, all with one promise."""

import pytest
from layers import LAYERS

from lnlib import blocked


@pytest.fixture(params=["reference", "staged", "blocked"])
def layer(request):
    """A layer of `layers.LAYERS`; without other parameters each of those in NumPy."""
    return LAYERS[request.param]


@pytest.fixture(autouse=True)
def everything_in_blocks(monkeypatch):
    """The blocked layer works in blocks, however small the input."""
    monkeypatch.setattr(blocked, "SMALL", 0)
    monkeypatch.setattr(blocked, "FEW", 0)
