"""Masks: who may attend to whom, in words that cannot be read backwards."""

from regard.masks.mask import Mask

__all__ = ["Mask"]
