"""Local linear regression: the line through the data around each query, from the moments of the kernel sums.

At a query q, with the weights p of eq. 4, the weighted least squares line through (k_j - q, y_j) has the slope
C^-1 c, where C is the covariance of the keys and c that of keys and values under p, and the value
mean - shift' slope at q itself. In a direction in which the keys do not vary the slope is 0: with one key in the
window the estimate is that of degree 0.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums import Pool
from regard.regression.sums.observations import Moments


class Line(NamedTuple):
    """The local line of each query.

    mean: (queries, outputs), its value at the query. slope: (queries, dim, outputs). inflation: (queries,), by how
    much the weight of a key at the query itself is larger than at degree 0. lost: (queries,), True where the line is
    not to be trusted: the moments about the query have cancelled too many digits, or no key is left.
    """

    mean: Tensor
    slope: Tensor
    inflation: Tensor
    lost: Tensor


def solve(pooled: Pool) -> Line:
    """Lines from moments about each query."""
    assert pooled.moments is not None
    shift, _, cross = pooled.moments
    inverse, trusted = inverse_about(pooled.moments)
    slope = inverse @ (cross - shift.unsqueeze(-1) * pooled.mean.unsqueeze(-2))
    pull = (inverse @ shift.unsqueeze(-1)).squeeze(-1)
    mean = pooled.mean - torch.einsum("qd,qdo->qo", shift, slope)
    inflation = 1 + (shift * pull).sum(-1)
    return Line(mean, slope, inflation, ~trusted & pooled.log_mass.isfinite())


def inverse_about(moments: Moments) -> tuple[Tensor, Tensor]:
    """C^-1 of each query, (queries, dim, dim), and whether it is to be trusted, (queries,)."""
    shift, spread, _ = moments
    # C = spread - shift shift' loses the digits in which the two agree: at most this share of them is given away.
    trusted = torch.finfo(shift.dtype).eps ** 0.2
    covariance = spread - shift.unsqueeze(-1) * shift.unsqueeze(-2)
    inverse, smallest = inverse_of_covariance(covariance, spread.diagonal(dim1=-2, dim2=-1))
    return inverse, smallest >= trusted


def inverse_of_covariance(covariance: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of each covariance (queries, dim, dim), 0 in directions without spread, and its smallest eigenvalue.

    unit: (queries, dim), squared units in which the coordinates become comparable; a coordinate whose unit is 0, or so
    small that its inverse overflows, does not vary, gets no slope, and does not count for the smallest eigenvalue,
    which is 1 where no coordinate varies.
    """
    varies = unit >= 4 * torch.finfo(unit.dtype).tiny
    root = torch.where(varies, unit, 1.0).sqrt()
    scaled = covariance / root.unsqueeze(-1) / root.unsqueeze(-2)
    if covariance.shape[-1] == 1:
        found = scaled[..., 0, 0]
        kept = varies[..., 0] & (found > 0)
        inverse = torch.where(kept, 1 / torch.where(kept, found, 1.0), 0.0)[..., None, None]
        smallest = torch.where(varies[..., 0], found, 1.0)
    else:
        eigenvalues, vectors = torch.linalg.eigh(scaled)
        kept = eigenvalues > 16 * torch.finfo(unit.dtype).eps * scaled.shape[-1]
        inverted = torch.where(kept, 1 / torch.where(kept, eigenvalues, 1.0), 0.0)
        inverse = (vectors * inverted.unsqueeze(-2)) @ vectors.mT
        # A coordinate that does not vary adds an eigenvalue of exactly 0: skip as many as there are.
        ordered = torch.cat([eigenvalues, torch.ones_like(eigenvalues[..., :1])], -1)
        smallest = ordered.gather(-1, (~varies).sum(-1, keepdim=True)).squeeze(-1)
    return inverse / root.unsqueeze(-1) / root.unsqueeze(-2), smallest
