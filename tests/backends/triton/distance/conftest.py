"""Calls of any size run the kernels of long calls, unless a test asks for short ones."""

import pytest

from regard.backends.triton import distance


@pytest.fixture(autouse=True)
def _long_calls(monkeypatch):
    monkeypatch.setattr(distance, "MAX_SHORT_PAIRS", 0)


@pytest.fixture
def short_calls(monkeypatch):
    """Calls of any size are short."""
    monkeypatch.setattr(distance, "MAX_SHORT_PAIRS", 2**30)
