"""Attention pooling: the one operator that everything else calls."""

from regard.pooling.attend import attend, inspect
from regard.pooling.attended import Attended, Top
from regard.pooling.merge import merge
from regard.pooling.why import Why, why

__all__ = ["Attended", "Top", "Why", "attend", "inspect", "merge", "why"]
