"""Attention as one operator: any scoring function, any mask, weights on demand, memory linear in tokens."""

from regard import scores
from regard.errors import RegardError
from regard.masks import Mask
from regard.pooling import Attended, attend, inspect, merge, why

__version__ = "0.1.0"

__all__ = ["Attended", "Mask", "RegardError", "attend", "inspect", "merge", "scores", "why"]
