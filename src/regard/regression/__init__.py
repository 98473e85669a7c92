"""Kernel regression as attention pooling (eq. 4)."""
