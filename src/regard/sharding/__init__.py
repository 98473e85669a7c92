"""Attention over a sequence whose tokens are distributed over several processes (ring attention)."""

from regard.sharding.api import attend
from regard.sharding.layout import join, split

__all__ = ["attend", "join", "split"]
