"""Kernel sums by the operator itself: any kernel, any dimension, every pair. It judges the near-linear ways."""

import torch
from torch import Tensor

from regard import Attended, Mask, inspect, merge
from regard.regression.sums.observations import Kernel, Moments, Observations, Pool
from regard.scores.base import Score
from regard.scores.distance import DistancePair
from regard.scores.kernels import KERNELS
from regard.scores.names import KERNEL_SCORES

# Pairs whose weights exist at once where moments are asked for: 2^22 float64 numbers are 32 MiB.
WEIGHTS_AT_ONCE = 2**22


def pool(
    query: Tensor, data: Observations, kernel: Kernel, *, exclude: int | None = None, moments: bool = False
) -> Pool:
    """Pool every query over all keys.

    query: (queries, dim). exclude: None; or the queries are the keys in the same order, and each leaves out itself
    and that many rows on each side. With exclude 0 a row of weight w leaves out min(w, 1) of itself: weights count
    repetitions, and of a row that stands there twice one copy stays.
    """
    mask = None if exclude is None else ~Mask.window(exclude, exclude)
    record = attended(query, data, as_score(kernel), mask)
    found = key_moments(query, data, record) if moments else None
    if exclude == 0 and data.weight is not None:
        assert found is None, "moments are asked for of all keys"
        record = add_remaining_copies(record, data.value, data.weight)
    return Pool(record.output, record.log_mass, found)


def attended(query: Tensor, data: Observations, score: Score, mask: Mask | None = None) -> Attended:
    """The pooling of the queries over the keys that the mask leaves to each."""
    return inspect(query, data.key, data.value, score=score, mask=mask, bias=data.bias)


def as_score(kernel: Kernel) -> Score:
    """The kernel as a score."""
    if isinstance(kernel.width, Tensor) and kernel.width.ndim == 2:
        return _WidthPerQuery(kernel.name, kernel.width)
    return KERNEL_SCORES[kernel.name](kernel.width)


class _WidthPerQuery(Score):
    """log f(|q - k| / width of q): the width is wide where data are sparse."""

    def __init__(self, kernel: str, width: Tensor) -> None:
        super().__init__()
        self.kernel = KERNELS[kernel]
        self.width = width

    def pair(self, query: Tensor, key: Tensor) -> DistancePair:
        return DistancePair(query, key, self.width.to(query.dtype), self.kernel)


def add_remaining_copies(record: Attended, value: Tensor, weight: Tensor) -> Attended:
    """Add what each row leaves of itself when one copy of it goes: f(0) = 1, so its mass is its weight.

    record: of queries that left themselves out; value (queries, outputs) and weight (queries,): their own.
    """
    left = weight - weight.clamp(max=1)
    return merge([record, Attended(value.masked_fill((left == 0).unsqueeze(-1), 0.0), left.log())])


def key_moments(query: Tensor, data: Observations, record: Attended) -> Moments:
    """By blocks of queries; differences are formed pair by pair, so that an offset of the data costs no digit."""
    height = max(WEIGHTS_AT_ONCE // max(len(data.key), 1), 1)
    parts = []
    for start in range(0, len(query), height):
        rows = slice(start, min(start + height, len(query)))
        weights = record.weights(rows)
        away = [data.key[:, dim] - query[rows, dim : dim + 1] for dim in range(query.shape[-1])]
        pulls = [weights * difference for difference in away]
        shift = torch.stack([pull.sum(-1) for pull in pulls], -1)
        spread = torch.stack([torch.stack([(pull * other).sum(-1) for other in away], -1) for pull in pulls], -2)
        cross = torch.stack([pull @ data.value for pull in pulls], -2)
        parts.append((shift, spread, cross))
    if not parts:
        dim, outputs = query.shape[-1], data.value.shape[-1]
        return Moments(query.new_zeros(0, dim), query.new_zeros(0, dim, dim), query.new_zeros(0, dim, outputs))
    return Moments(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))
