"""Additive attention (eq. 12) on a GPU: exact fused scores, and the lift to wide dot products."""
