"""Additive attention by fused kernels as an operator of torch.

Its tensors are query, key, weight, value, perhaps bias and seed, then the mask's; the seed alone has no axes but
those over which a call is mapped.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.fused.additive.call import Statics
from regard.backends.fused.additive.plan import plan
from regard.backends.operator import Directions, operator, wants_gradient
from regard.backends.problem import Problem
from regard.scores.forms import AdditiveForm
from regard.shapes import common_batch


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of additive form and pool it."""
    form, mask, bias, dropout = problem.form, problem.mask, problem.bias, float(problem.dropout)
    assert isinstance(form, AdditiveForm)
    tensors = [form.query, form.key, form.weight, problem.value]
    if isinstance(bias, Tensor):
        tensors.append(bias)
    if dropout:
        tensors.append(torch.randint(2**31, (), device=problem.value.device))
    text, numbers = "", []
    if mask is not None:
        tensors += mask.tensors()
        text, numbers = mask.encode(), mask.numbers()
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
    return forward.pool(tensors, statics, _batch(tensors, statics))


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
    return backward.gradients(results, tensors, statics, needs, _batch(tensors, statics))


OPERATOR = operator(
    "fused_additive",
    Directions(_forward, _backward, _fake),
    backend="triton",
    refusal="the fused kernels have no others",
)


def _batch(tensors: Sequence[Tensor], statics: Statics) -> tuple[int, ...]:
    """What the leading axes broadcast to; the seed, if there is one, has none."""
    seed = 4 + statics.has_bias
    return common_batch(*(x for at, x in enumerate(tensors) if not (statics.has_seed and at == seed)))
