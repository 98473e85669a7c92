"""Small tiles, so that a few tokens make several of them: the interpreter's time goes by programs, not by numbers."""

import pytest

from regard.backends.fused.additive import plan, tables
from regard.backends.fused.additive.tables import Tile


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Blocks of 16 tokens, and a lift however few there are."""
    monkeypatch.setattr(tables, "BLOCK", 16)
    monkeypatch.setattr(tables, "SCORE", Tile(16, 16, 4))
    for name in ("POOL", "GRADE"):
        monkeypatch.setattr(tables, name, (Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)))
    monkeypatch.setattr(tables, "PULL", Tile(16, 16, 4, 1))
    monkeypatch.setattr(tables, "PULL_UNITS", 4)
    monkeypatch.setattr(tables, "SPAN", 2)
    monkeypatch.setattr(plan, "LEAST_TOKENS", 1)
    monkeypatch.setattr(plan, "LEAST_WORK", 1)


@pytest.fixture
def small_slabs(monkeypatch):
    """Slabs of 16 queries, for 17 to 48 keys."""
    monkeypatch.setattr(tables, "SLAB", (16 * 48, 16 * 48))
