"""Widths by rule: Scott's and Silverman's, which look at X alone. They are starting points, not choices.

Both were made for the density of X and a Gaussian kernel: h = c n^(-1/(d + 4)) times the standard deviation of each
dimension, with c = 1 (Scott) or c = (4 / (d + 2))^(1/(d + 4)) (Silverman). For another kernel the width is multiplied
by the ratio of the canonical bandwidths of Marron and Nolan (1988), so that it smooths about as much as the Gaussian.
"""

import torch
from torch import Tensor

from regard.regression.sums import Observations
from regard.scores.kernels import KERNELS

RULES = ("scott", "silverman")


def canonical_bandwidth(kernel: str) -> float:
    """Return (R(K) / mu2(K)^2)^(1/5), where R(K) is the roughness and mu2(K) the variance of a kernel."""
    return (KERNELS[kernel].roughness / KERNELS[kernel].variance ** 2) ** 0.2


def relative_to_gaussian(kernel: str) -> float:
    """Return how much wider this kernel must be to smooth as much as a Gaussian of width 1."""
    return canonical_bandwidth(kernel) / canonical_bandwidth("gaussian")


def spread(data: Observations) -> Tensor:
    """(dim,): the standard deviation of each column, repetitions counted; 1 where a column is constant."""
    key = data.key.double()
    weight = torch.ones_like(key[:, 0]) if data.weight is None else data.weight.double()
    share = (weight / weight.sum()).unsqueeze(-1)
    # Relative to the first row, so that an offset of a constant column does not look like spread.
    away = key - key[0]
    deviation = (share * (away - (share * away).sum(0)).square()).sum(0).sqrt()
    return torch.where(deviation > 0, deviation, 1.0)


def width_by_rule(rule: str, data: Observations, kernel: str) -> Tensor:
    """(dim,): the width of each dimension."""
    dim = data.key.shape[-1]
    n = len(data.key) if data.weight is None else float(data.weight.double().sum())
    constant = 1.0 if rule == "scott" else (4 / (dim + 2)) ** (1 / (dim + 4))
    return spread(data) * constant * n ** (-1 / (dim + 4)) * relative_to_gaussian(kernel)
