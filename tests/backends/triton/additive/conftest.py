"""Small tiles, so that a few tokens fill several of them: the interpreter takes time for each program, not element."""

import pytest

from regard.backends.triton import additive
from regard.backends.triton.additive import exact, lifted, short, softmax
from regard.backends.triton.launch import Tile

SMALL = Tile(16, 16, 4, 1)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Blocks of 16 tokens, a lift for any number of tokens, and no short calls."""
    monkeypatch.setattr(exact, "BLOCK", 16)
    monkeypatch.setattr(exact, "SCORE_TILE", Tile(16, 16, 4))
    monkeypatch.setattr(exact, "GRADIENT_TILE", SMALL)
    monkeypatch.setattr(exact, "GRADIENT_UNITS", 4)
    monkeypatch.setattr(softmax, "POOL_TILES", additive.PerForm(SMALL, SMALL))
    monkeypatch.setattr(softmax, "GRADIENT_TILES", additive.PerForm(SMALL, SMALL))
    monkeypatch.setattr(softmax, "DELTA_ROWS", 16)
    monkeypatch.setattr(lifted, "PATCH_BLOCKS", 2)
    monkeypatch.setattr(additive, "MAX_SHORT_KEYS", 0)
    monkeypatch.setattr(additive, "MIN_LIFT_TOKENS", 1)
    monkeypatch.setattr(additive, "MIN_LIFT_WORK", 1)


@pytest.fixture
def small_slabs(monkeypatch):
    """Slabs of 16 queries, for 17 to 48 keys."""
    monkeypatch.setattr(additive, "SLAB_PAIRS", additive.PerForm(16 * 48, 16 * 48))


@pytest.fixture
def short_calls(monkeypatch):
    """Calls of up to 256 keys are short."""
    monkeypatch.setattr(additive, "MAX_SHORT_KEYS", 256)
    monkeypatch.setattr(short, "TILES", (SMALL,))
    monkeypatch.setattr(short, "TILES_OF_FEW_KEYS", (SMALL,))
