"""The blocked layer works in blocks, however small the input."""

import pytest

from lnlib import blocked


@pytest.fixture(autouse=True)
def everything_in_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "SMALL", 0)
    monkeypatch.setattr(blocked, "FEW", 0)
