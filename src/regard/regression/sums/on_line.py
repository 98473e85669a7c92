"""Kernel sums over data of one dimension: which of them have a near-linear way, and that way."""

import torch
from torch import Tensor

from regard.regression.sums import compact, gaussian, laplacian
from regard.regression.sums.expansions import EXPANSIONS
from regard.regression.sums.line import SortedData
from regard.regression.sums.observations import Kernel, Observations, Pool

NAMES = {"gaussian", "laplacian", *EXPANSIONS}


def can_sort(data: Observations) -> bool:
    """Whether the data are numbers on a line; gradients take the way through `attend`."""
    return (
        data.key.shape[-1] == 1
        and data.key.dtype in (torch.float32, torch.float64)
        and not any(part is not None and part.requires_grad for part in data)
    )


def can_pool(query: Tensor, kernel: Kernel, exclude: int | None) -> bool:
    """Whether there is a near-linear way: one width for all queries, and no more left out than a query itself."""
    width = kernel.width
    one = not isinstance(width, Tensor) or (width.numel() == 1 and width.ndim < 2 and not width.requires_grad)
    return kernel.name in NAMES and one and exclude in (None, 0) and not query.requires_grad


def pool(
    query: Tensor, line: SortedData, kernel: Kernel, *, exclude: int | None, moments: bool, tolerance: float | None
) -> Pool:
    """Pool every query (queries, 1) over the line (eq. 4)."""
    width = width_of(kernel, line)
    leaves_itself = exclude is not None
    if kernel.name == "laplacian":
        return laplacian.pool(query, line, width, leaves_itself=leaves_itself, moments=moments)
    if kernel.name == "gaussian":
        return gaussian.pool(query, line, width, leaves_itself=leaves_itself, moments=moments, tolerance=tolerance)
    return compact.pool(
        query, line, kernel.name, width, leaves_itself=leaves_itself, moments=moments, tolerance=tolerance
    )


def width_of(kernel: Kernel, line: SortedData) -> float:
    """As in `attend`, a width is a number in the dtype of the data."""
    return torch.as_tensor(kernel.width, dtype=line.data.key.dtype, device="cpu").item()
