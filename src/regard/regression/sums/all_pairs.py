"""Kernel sums of every pair by `attend`: any kernel, any dimension, and gradients. It judges the other methods."""

import torch
from torch import Tensor

from regard import Attended, Mask, inspect, merge
from regard.regression.sums.observations import Moments, Observations, Pool, PoolTask
from regard.scores.base import Score
from regard.scores.distance import DistancePair
from regard.scores.kernels import Kernel
from regard.scores.names import KERNEL_SCORES

# Weights that exist at once where moments are computed: 2^22 float64 numbers are 32 MiB.
WEIGHTS_PER_BLOCK = 2**22


def pool(task: PoolTask) -> Pool:
    """Pool every query over all keys."""
    query, data = task.query, task.data
    mask = None if task.leave_out is None else ~Mask.window(task.leave_out, task.leave_out)
    record = attended(query, data, as_score(task.kernel, task.width), mask)
    moments = key_moments(query, data, record) if task.moments else None
    if task.leave_out == 0 and data.weight is not None:
        assert moments is None, "moments are computed over all keys"
        record = add_remaining_copies(record, data.value, data.weight)
    return Pool(record.output, record.log_mass, moments)


def attended(query: Tensor, data: Observations, score: Score, mask: Mask | None = None) -> Attended:
    """Attend from the queries to the keys that the mask allows."""
    return inspect(query, data.key, data.value, score=score, mask=mask, bias=data.bias)


def as_score(kernel: Kernel, width: float | Tensor) -> Score:
    """Return the kernel as a score. width: one number, (dim,) or one per query (*batch, queries, 1)."""
    if isinstance(width, Tensor) and width.ndim >= 2:
        return _WidthPerQuery(kernel, width)
    return KERNEL_SCORES[kernel.name](width)


class _WidthPerQuery(Score):
    """log f(|q - k| / width of q)."""

    def __init__(self, kernel: Kernel, width: Tensor) -> None:
        super().__init__()
        self.kernel = kernel
        self.width = width

    def pair(self, query: Tensor, key: Tensor) -> DistancePair:
        return DistancePair(query, key, self.width.to(query.dtype), self.kernel)


def add_remaining_copies(record: Attended, value: Tensor, weight: Tensor) -> Attended:
    """Add what remains of each row when one copy of it is left out; f(0) = 1, so its mass is its weight.

    Args:
        record: of queries that leave out themselves.
        value: (queries, outputs), their own values.
        weight: (queries,), their own weights.
    """
    remaining = weight - weight.clamp(max=1)
    return merge([record, Attended(value.masked_fill((remaining == 0).unsqueeze(-1), 0.0), remaining.log())])


def key_moments(query: Tensor, data: Observations, record: Attended) -> Moments:
    """Return the moments of the keys about each query, computed from differences, so an offset costs no digits."""
    height = max(WEIGHTS_PER_BLOCK // max(len(data.key), 1), 1)
    parts = []
    for start in range(0, len(query), height):
        rows = slice(start, min(start + height, len(query)))
        weights = record.weights(rows)
        differences = [data.key[:, dim] - query[rows, dim : dim + 1] for dim in range(query.shape[-1])]
        weighted = [weights * difference for difference in differences]
        first = torch.stack([one.sum(-1) for one in weighted], -1)
        second = torch.stack(
            [torch.stack([(one * other).sum(-1) for other in differences], -1) for one in weighted], -2
        )
        cross = torch.stack([one @ data.value for one in weighted], -2)
        parts.append((first, second, cross))
    if not parts:
        dim, outputs = query.shape[-1], data.value.shape[-1]
        return Moments(query.new_zeros(0, dim), query.new_zeros(0, dim, dim), query.new_zeros(0, dim, outputs))
    return Moments(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))
