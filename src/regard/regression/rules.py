"""Widths by rule: Scott's and Silverman's, which look at X alone. They are starting points, not choices.

Both were made for the density of X and a Gaussian kernel: h = c n^(-1/(d + 4)) times the standard deviation of each
dimension, with c = 1 (Scott) or c = (4 / (d + 2))^(1/(d + 4)) (Silverman). For another kernel the width is multiplied
by the ratio of the canonical bandwidths of Marron and Nolan (1988), so that it smooths about as much as the Gaussian.
"""

import math

import torch
from torch import Tensor

from regard.regression.sums import Data

# (R(K) / mu2(K)^2)^(1/5), K scaled to a density in one dimension: R is the integral of K^2, mu2 its variance.
CANONICAL = {
    name: (roughness / variance**2) ** 0.2
    for name, roughness, variance in (
        ("gaussian", 1 / (2 * math.sqrt(math.pi)), 1.0),
        ("laplacian", 1 / 4, 2.0),
        ("boxcar", 1 / 2, 1 / 3),
        ("triangular", 2 / 3, 1 / 6),
        ("epanechnikov", 3 / 5, 1 / 5),
        ("tricube", 175 / 247, 35 / 243),
        ("biweight", 5 / 7, 1 / 7),
        ("cosine_kernel", math.pi**2 / 16, 1 - 8 / math.pi**2),
    )
}

RULES = ("scott", "silverman")


def relative_to_gaussian(kernel: str) -> float:
    """How much wider this kernel must be to smooth as much as a Gaussian of width 1."""
    return CANONICAL[kernel] / CANONICAL["gaussian"]


def spread(data: Data) -> Tensor:
    """(dim,): the standard deviation of each column, repetitions counted; 1 where a column is constant."""
    key = data.key.double()
    weight = torch.ones_like(key[:, 0]) if data.weight is None else data.weight.double()
    share = (weight / weight.sum()).unsqueeze(-1)
    # Relative to the first row, so that an offset of a constant column does not look like spread.
    away = key - key[0]
    deviation = (share * (away - (share * away).sum(0)).square()).sum(0).sqrt()
    return torch.where(deviation > 0, deviation, 1.0)


def width_by_rule(rule: str, data: Data, kernel: str) -> Tensor:
    """(dim,): the width of each dimension."""
    dim = data.key.shape[-1]
    n = len(data.key) if data.weight is None else float(data.weight.double().sum())
    constant = 1.0 if rule == "scott" else (4 / (dim + 2)) ** (1 / (dim + 4))
    return spread(data) * constant * n ** (-1 / (dim + 4)) * relative_to_gaussian(kernel)
