"""Kernel sums: by `attend`, or in near-linear time where the kernel and the dimension allow it."""

import torch
from torch import Tensor

from regard.regression.sums import all_pairs, boxes, gaussian, running_sums
from regard.regression.sums.line import SortedData
from regard.regression.sums.observations import Kernel, Moments, Observations, Pool
from regard.regression.sums.running_sums import EXPANSIONS
from regard.scores.kernels import KERNELS

__all__ = ["Kernel", "Moments", "Observations", "Pool", "Prepared", "can_square", "pool", "pool_squared", "prepare"]

LINE_KERNELS = {"gaussian", "laplacian", *EXPANSIONS}


def can_sort(data: Observations) -> bool:
    """Whether the data are numbers on a line; gradients take the way through `attend`."""
    return (
        data.key.shape[-1] == 1
        and data.key.dtype in (torch.float32, torch.float64)
        and not any(part is not None and part.requires_grad for part in data)
    )


def can_pool_on_line(query: Tensor, kernel: Kernel, exclude: int | None) -> bool:
    """Whether there is a near-linear way: one width for all queries, and no more left out than a query itself."""
    width = kernel.width
    one = not isinstance(width, Tensor) or (width.numel() == 1 and width.ndim < 2 and not width.requires_grad)
    return kernel.name in LINE_KERNELS and one and exclude in (None, 0) and not query.requires_grad


def pool_on_line(
    query: Tensor, line: SortedData, kernel: Kernel, *, exclude: int | None, moments: bool, tolerance: float | None
) -> Pool:
    """Pool every query (queries, 1) over the line (eq. 4)."""
    width = width_of(kernel, line)
    leaves_itself = exclude is not None
    if kernel.name == "laplacian":
        return running_sums.pool_laplacian(query, line, width, leaves_itself=leaves_itself, moments=moments)
    if kernel.name == "gaussian":
        return gaussian.pool_gaussian(
            query, line, width, leaves_itself=leaves_itself, moments=moments, tolerance=tolerance
        )
    return running_sums.pool_compact(
        query, line, kernel.name, width, leaves_itself=leaves_itself, moments=moments, tolerance=tolerance
    )


def width_of(kernel: Kernel, line: SortedData) -> float:
    """As in `attend`, a width is a number in the dtype of the data."""
    return torch.as_tensor(kernel.width, dtype=line.data.key.dtype, device="cpu").item()


Prepared = Observations | SortedData
# Up to here all pairs at once are faster than sorting and cells. Not with weights: far away their logarithms drown in
# the scores, while the sums on a line are taken relative to the nearest key.
FEW_PAIRS = 2**16


def prepare(data: Observations) -> Prepared:
    """Do once what does not depend on the queries or the kernel: numbers on a line are sorted."""
    return SortedData.of(data) if can_sort(data) else data


def pool(
    query: Tensor,
    data: Prepared,
    kernel: Kernel,
    *,
    exclude: int | None = None,
    moments: bool = False,
    tolerance: float | None = None,
) -> Pool:
    """Pool every query over the data (eq. 4).

    Args:
        query: (queries, dim).
        data: keys, values and weights, or what `prepare` made of them: for many calls on the same data.
        kernel: its name and width.
        exclude: None; or the queries are the keys in the same order, and each leaves out itself and that many rows
            on each side; with 0, a row of weight w leaves out min(w, 1) of itself.
        moments: also the moments of the keys about each query, for local linear regression; not with `exclude`.
        tolerance: bounds |mean - exact| / (max value - min value) at every query; None is the rounding of the dtype.
    """
    line = data if isinstance(data, SortedData) else None
    data = data.data if isinstance(data, SortedData) else data
    few = data.weight is None and len(query) * len(data.key) <= FEW_PAIRS
    if not few and can_pool_on_line(query, kernel, exclude) and (line is not None or can_sort(data)):
        line = SortedData.of(data) if line is None else line
        return pool_on_line(query, line, kernel, exclude=exclude, moments=moments, tolerance=tolerance)
    if exclude in (None, 0) and boxes.suits(query, data, kernel):
        return boxes.pool(query, data, kernel, exclude=exclude, moments=moments)
    return all_pairs.pool(query, data, kernel, exclude=exclude, moments=moments)


# Squared polynomials cancel more: a variance, and no mean, may be off by this share.
SQUARE_TOLERANCE = 1e-9


def can_square(query: Tensor, data: Prepared, kernel: Kernel) -> bool:
    """Whether the sums cost no more than those of the kernel itself."""
    on_line = (
        isinstance(data, SortedData) and kernel.name in running_sums.SQUARES and can_pool_on_line(query, kernel, None)
    )
    return KERNELS[kernel.name].square is not None or on_line


def pool_squared(
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
    loose = max(tolerance or 0.0, SQUARE_TOLERANCE)
    return running_sums.pool_compact(query, data, kernel.name, width_of(kernel, data), squared=True, tolerance=loose)
