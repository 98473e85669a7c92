"""Attention: the operator `attend`, which everything else is built on, and the records of its calls."""

from regard.attention.api import attend, inspect, why
from regard.attention.attended import Attended, Top, merge
from regard.backends.dispatch import Why

__all__ = ["Attended", "Top", "Why", "attend", "inspect", "merge", "why"]
