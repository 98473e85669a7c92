"""Sums of squared kernels: the variance of an estimate is sum_j f(q, k_j)^2 sigma_j^2 over the square of its mass."""

from torch import Tensor

from regard.regression.sums import compact, expansions
from regard.regression.sums.choice import Prepared, pool
from regard.regression.sums.line import SortedData
from regard.regression.sums.observations import Kernel, Pool
from regard.regression.sums.on_line import can_pool, width_of
from regard.scores.kernels import KERNELS

# Squared polynomials cancel more: a variance, and no mean, may be off by this share.
TOLERANCE = 1e-9


def can_square(query: Tensor, data: Prepared, kernel: Kernel) -> bool:
    """Whether the sums cost no more than those of the kernel itself."""
    on_line = isinstance(data, SortedData) and kernel.name in expansions.SQUARES and can_pool(query, kernel, None)
    return KERNELS[kernel.name].square is not None or on_line


def pool_squares(
    query: Tensor, data: Prepared, kernel: Kernel, tolerance: float | None, *, moments: bool = False
) -> Pool:
    """Pool every query over the data with the square of the kernel, where `can_square` says so.

    moments: also those of the keys about each query; only where the square is a kernel of its own.
    """
    square = KERNELS[kernel.name].square
    if square is not None:
        name, ratio = square
        return pool(query, data, Kernel(name, kernel.width * ratio), moments=moments, tolerance=tolerance)
    assert isinstance(data, SortedData)
    assert not moments
    loose = max(tolerance or 0.0, TOLERANCE)
    return compact.pool(query, data, kernel.name, width_of(kernel, data), squared=True, tolerance=loose)
