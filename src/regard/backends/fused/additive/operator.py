"""Additive attention by fused kernels as an operator of torch.

Its tensors are query, key, weight, value, perhaps bias and seed, then the mask's; the seed alone has no axes but
those over which a call is mapped.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.custom_op import Directions, operator, wants_gradient
from regard.backends.fused.additive.call import Statics
from regard.backends.fused.additive.plan import plan
from regard.backends.fused.batches import in_two_groups, summed_to
from regard.checks import common_batch
from regard.masks.bound import flatten
from regard.scores.additive import AdditivePair


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of additive form and pool it."""
    pair, mask, bias, dropout = problem.pair, problem.mask, problem.bias, float(problem.dropout)
    assert isinstance(pair, AdditivePair)
    tensors = [pair.query, pair.key, pair.weight, problem.value]
    if isinstance(bias, Tensor):
        tensors.append(bias)
    if dropout:
        tensors.append(torch.randint(2**31, (), device=problem.value.device))
    text, numbers = "", []
    if mask is not None:
        text, parts, numbers = flatten(mask)
        tensors += parts
    chosen = plan(problem, gradient=wants_gradient(tensors))
    settings = text, numbers, dropout, chosen.rank, chosen.query_reach, chosen.key_reach
    statics = Statics(bias is not None, dropout > 0, *settings)
    output, log_mass = OPERATOR.run(tensors, statics)
    return output, log_mass


def _forward(
    tensors: Sequence[Tensor],
    has_bias: bool,
    has_seed: bool,
    mask: str,
    numbers: Sequence[int],
    dropout: float,
    rank: int,
    query_reach: float,
    key_reach: float,
) -> tuple[Tensor, Tensor]:
    """Output in value's dtype and log_mass in float32."""
    from regard.backends.fused.additive import forward

    statics = Statics(has_bias, has_seed, mask, numbers, dropout, rank, query_reach, key_reach)
    batch = _batch(tensors, statics)
    return forward.pool(_expanded(tensors, statics, batch), statics, batch)


def _fake(tensors, *statics):
    query, value = tensors[0], tensors[3]
    shape = (*_batch(tensors, Statics(*statics)), query.shape[-2])
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=torch.float32)


def _backward(
    results: Sequence[Tensor],
    tensors: Sequence[Tensor],
    has_bias: bool,
    has_seed: bool,
    mask: str,
    numbers: Sequence[int],
    dropout: float,
    rank: int,
    query_reach: float,
    key_reach: float,
    needs: Sequence[bool],
) -> list[Tensor]:
    """A gradient for each tensor, empty where `needs` is False.

    results: the gradients of output and log_mass, then output and log_mass.
    """
    from regard.backends.fused.additive import backward

    statics = Statics(has_bias, has_seed, mask, numbers, dropout, rank, query_reach, key_reach)
    batch = _batch(tensors, statics)
    found = backward.gradients(results, _expanded(tensors, statics, batch), statics, needs, batch)
    return summed_to(found, tensors, needs)


OPERATOR = operator(
    "fused_additive",
    Directions(_forward, _backward, _fake),
    backend="triton",
    refusal="the fused kernels have no others",
)


def _batch(tensors: Sequence[Tensor], statics: Statics) -> tuple[int, ...]:
    """The shape to which the leading axes broadcast."""
    return common_batch(*_without_seed(tensors, statics))


def _expanded(tensors: Sequence[Tensor], statics: Statics, batch: Sequence[int]) -> list[Tensor]:
    """The tensors with batch axes as the kernels can take them."""
    expanded = in_two_groups(batch, _without_seed(tensors, statics))
    if statics.has_seed:
        seed = 4 + statics.has_bias
        expanded.insert(seed, tensors[seed])
    return expanded


def _without_seed(tensors: Sequence[Tensor], statics: Statics) -> list[Tensor]:
    """All tensors but the seed of dropout, which has no axes for tokens."""
    seed = 4 + statics.has_bias
    return [x for at, x in enumerate(tensors) if not (statics.has_seed and at == seed)]
