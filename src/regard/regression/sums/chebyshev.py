"""The Gaussian between two cells of a line as a short sum of products of Chebyshev polynomials, with its error."""

import math

import torch
from torch import Tensor

TERMS = 18
# The error of the expansion as a share of the largest value of the kernel between two cells of at most one width, up to
# a distance between their centres in widths. By measurement with 18 terms: rounding first, truncation further away.
ERRORS = ((5.0, 1e-14), (9.0, 1e-12), (14.0, 1e-8), (math.inf, 1.0))


def polynomials(place: Tensor) -> Tensor:
    """T_0 to T_17 at places in [-1, 1]: (...) -> (18, ...)."""
    result = place.new_empty(TERMS, *place.shape)
    result[0], result[1] = 1.0, place
    twice, degrees = 2 * place, result.unbind(0)
    for before, last, degree in zip(degrees, degrees[1:], degrees[2:], strict=False):
        torch.mul(twice, last, out=degree).sub_(before)
    return result


def nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """The 18 nodes in [-1, 1], and the matrix that takes values there to the coefficients of T_0 to T_17."""
    index = torch.arange(TERMS, dtype=torch.float64, device=like.device)
    angle = (index + 0.5) * (math.pi / TERMS)
    matrix = (index.unsqueeze(-1) * angle).cos() * (2 / TERMS)
    matrix[0] /= 2
    return angle.cos(), matrix


def interactions(cell: float, reach: int, power: int, like: Tensor) -> Tensor:
    """The coefficients of u^power exp(-u^2 / 2), u = key - query in widths.

    Between cells of the size cell, for the query's cell at -reach to reach cells from the key's: (2 reach + 1, 18 of
    the key, 18 of the query).
    """
    node, values_to_coefficients = nodes(like)
    node = node * (cell / 2)
    apart = torch.arange(-reach, reach + 1, dtype=torch.float64, device=like.device) * cell
    u = node.unsqueeze(-1) - node - apart[:, None, None]
    values = u**power * (-0.5 * u.square()).exp()
    return values_to_coefficients @ values @ values_to_coefficients.T


def errors(cell: float, reach: int, like: Tensor) -> Tensor:
    """The error of each interaction for a unit of weight, (2 reach + 1,)."""
    apart = torch.arange(-reach, reach + 1, dtype=torch.float64, device=like.device).abs() * cell
    largest = (-0.5 * (apart - cell).clamp(min=0).square()).exp()
    limit, share = (apart.new_tensor(column) for column in zip(*ERRORS, strict=True))
    return largest * share[torch.searchsorted(limit, apart)]
