"""Sequences whose tokens live on several processes: the operator over all of them, no rank holding all keys."""

from regard.sharding.attend import attend
from regard.sharding.order import join, split

__all__ = ["attend", "join", "split"]
