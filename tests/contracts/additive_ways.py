"""The ways of additive blocks, each taken by every call: loops, without waiting for a compiler, and unit by unit."""

import pytest

from regard.backends.blocked import chunks, loops, operator


def in_plain_operations(patch: pytest.MonkeyPatch) -> None:
    """Run loops as torch's own operations, which hold a number for each pair and unit."""
    patch.setattr(loops, "_compiled", lambda loop, *_: loop)


def take_loops(patch: pytest.MonkeyPatch) -> None:
    """Let every call take them, as a compiled one does."""
    in_plain_operations(patch)
    patch.setattr(operator, "ChunkTiles", loops.LoopTiles)


def take_units(patch: pytest.MonkeyPatch) -> None:
    """Let every tile count as wide, and a sum be full after a few units."""
    patch.setattr(chunks, "LONG_ROW", 1)
    patch.setattr(chunks, "MANY_PAIRS", 1)
    patch.setattr(chunks, "SUMMED", 2)
