"""The fused kernels of distances as an operator of torch: query, key, width, value and perhaps a bias for each key.

Its statics are the link by its name and the band of the mask as four numbers. Conditions on keys have become a bias of
minus infinity before.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.custom_op import Directions, operator
from regard.backends.fused.batches import in_two_groups, summed_to
from regard.backends.fused.conditions import conditions_of
from regard.checks import common_batch
from regard.scores.distance import DistancePair


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of distances and pool it."""
    pair, conditions = problem.pair, conditions_of(problem.mask)
    assert isinstance(pair, DistancePair)
    assert conditions is not None
    bias = problem.bias
    assert bias is None or isinstance(bias, Tensor)
    for condition in conditions.keys:
        allowed = condition.tile(slice(0, 1), slice(0, problem.keys), problem.value.device)
        bias = torch.where(allowed, 0.0 if bias is None else bias, -math.inf)
    tensors = [pair.query, pair.key, pair.width, problem.value]
    if bias is not None:
        tensors.append(bias if bias.shape[-1] == problem.keys else bias.expand(*bias.shape[:-1], problem.keys))
    output, log_mass, _ = OPERATOR.run(tensors, (pair.kernel.name, list(conditions.band)))
    return output, log_mass


def _forward(tensors: Sequence[Tensor], link: str, band: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Output in value's dtype; log_mass; for the backward pass the (*batch, queries, 3) statistics of each row."""
    from regard.backends.fused import forward

    return forward.pool(in_two_groups(common_batch(*tensors), tensors), link, band)


def _fake(tensors, *_):
    query, value = tensors[0], tensors[3]
    shape = (*common_batch(*tensors), query.shape[-2])
    single = torch.float32
    return (
        value.new_empty(*shape, value.shape[-1]),
        value.new_empty(shape, dtype=single),
        value.new_empty(*shape, 3, dtype=single),
    )


def _backward(
    results: Sequence[Tensor], tensors: Sequence[Tensor], link: str, band: Sequence[int], needs: Sequence[bool]
) -> list[Tensor]:
    """A gradient for each tensor, empty where `needs` is False.

    results: the gradients of output and log_mass, then output, log_mass and the statistics.
    """
    from regard.backends.fused import backward

    expanded = in_two_groups(common_batch(*tensors), tensors)
    return summed_to(backward.gradients(results, expanded, link, band, needs), tensors, needs)


OPERATOR = operator(
    "fused",
    Directions(_forward, _backward, _fake),
    backend="triton",
    refusal="the fused kernels have no others",
)
