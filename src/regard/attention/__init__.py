"""Attention: the one operator that everything else calls."""

from regard.attention.api import attend, inspect, why
from regard.attention.attended import Attended, Top, merge
from regard.backends.dispatch import Why

__all__ = ["Attended", "Top", "Why", "attend", "inspect", "merge", "why"]
