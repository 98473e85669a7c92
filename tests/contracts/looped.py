"""Additive blocks by loops, without waiting for a compiler: the same arithmetic in plain operations."""

import pytest

from regard.backends.blocked import loops, operator


def in_plain_operations(patch: pytest.MonkeyPatch) -> None:
    """Run loops as torch's own operations, which hold a number for each pair and unit."""
    patch.setattr(loops, "_compiled", lambda loop, *_: loop)


def take_loops(patch: pytest.MonkeyPatch) -> None:
    """Let every call take them, as a compiled one does."""
    in_plain_operations(patch)
    patch.setattr(operator, "ChunkTiles", loops.LoopTiles)
