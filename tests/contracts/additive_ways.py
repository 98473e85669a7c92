"""The ways of additive tiles, each forced on every call: loops without compiling them, and unit by unit."""

import pytest

from regard.backends import blocked
from regard.backends.blocked import additive


def in_plain_operations(patch: pytest.MonkeyPatch) -> None:
    """Run loops as operations of torch, which store a number for each pair and unit."""
    patch.setattr(additive, "_compiled", lambda loop, *_: loop)


def take_loops(patch: pytest.MonkeyPatch) -> None:
    """Let every call use loops, as a compiled one does."""
    in_plain_operations(patch)
    patch.setattr(blocked, "ChunkedAdditive", additive.CompiledAdditive)


def take_units(patch: pytest.MonkeyPatch) -> None:
    """Treat every tile as wide, and let a sum be full after a few units."""
    patch.setattr(additive, "MIN_WIDE_KEYS", 1)
    patch.setattr(additive, "MIN_WIDE_PAIRS", 1)
    patch.setattr(additive, "SUM_LENGTH", 2)
