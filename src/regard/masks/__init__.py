"""Masks: which keys each query may attend to."""

from regard.masks.mask import Mask

__all__ = ["Mask"]
