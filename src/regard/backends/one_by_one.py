"""Dot products of padded batches on a CPU: examples one by one, each over its real keys, so that no padding is read."""

import math
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.problem import FEW_NUMBERS, Problem, evaluated, may_be_differentiated
from regard.keeping import find
from regard.masks.placed import Dense, condition_on_keys
from regard.scores.forms import DotForm
from regard.watched import is_readable

# So many pairs of tokens in an example are worth a call of their own, without a gradient and with one.
ENOUGH_PAIRS = (2**17, 2**18)


class Run(NamedTuple):
    """Examples that follow each other and have the same real keys, which all their queries see, causally or not.

    query: (examples, *batch, queries, dim); key, value: (examples, *batch, real keys, dim).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool


class Stretch(NamedTuple):
    """How many examples in a row have their real keys where."""

    examples: int
    start: int
    stop: int


def runs_of(problem: Problem) -> list[Run] | None:
    """The problem cut into runs; None where its mask says something else, or one call is the better way."""
    form, value, mask = problem.form, problem.value, problem.mask
    if mask is None or problem.bias is not None or not isinstance(form, DotForm) or form.scale <= 0:
        return None
    condition, causal = condition_on_keys(mask)
    if condition is None or not is_readable(value) or value.numel() < FEW_NUMBERS:
        return None
    real = evaluated(condition, value)
    if math.prod(real.allowed.shape[1:-1]) != 1 or real.allowed.shape[-1] != problem.keys:
        return None
    stretches = find(real.kept, "stretches", value.device, partial(_stretches, real))
    # A causal mask counts from the first key: keys may be cut off behind it alone.
    if not stretches or (causal and any(start for _, start, _ in stretches)):
        return None
    if len(stretches) == 1:  # for all of the batch, whatever is shared in it
        _, start, stop = stretches[0]
        return [Run(form.query, form.key[..., start:stop, :], value[..., start:stop, :], causal)]
    if not _are_enough(form, value):
        return None
    parts = (x.split_with_sizes([examples for examples, _, _ in stretches]) for x in (form.query, form.key, value))
    return [
        Run(query, key[..., start:stop, :], value[..., start:stop, :], causal)
        for (_, start, stop), query, key, value in zip(stretches, *parts, strict=True)
    ]


def joined(outputs: list[Tensor]) -> Tensor:
    """Outputs of runs, (examples, *batch, queries, dim) each, as one; heads stay where torch's kernel has put them."""
    if len(outputs) == 1:
        return outputs[0]
    if outputs[0].ndim < 4:
        return torch.cat(outputs)
    return torch.cat([output.transpose(-3, -2) for output in outputs]).transpose(-3, -2)


def _are_enough(form: DotForm, value: Tensor) -> bool:
    """Whether every example has queries and keys of its own, and enough of them."""
    query, key = form.query, form.key
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    learns = may_be_differentiated(query, key, value)
    return math.prod(query.shape[1:-1]) * key.shape[-2] >= ENOUGH_PAIRS[learns]


def _stretches(mask: Dense) -> list[Stretch]:
    """Empty where the keys of an example have gaps, or it has none: nothing would be left, not even its gradient."""
    real = mask.allowed.flatten(1).byte()  # (examples, keys)
    starts, stops = real.argmax(1), real.shape[1] - real.flip(1).argmax(1)
    if not torch.equal(stops - starts, real.sum(1)):
        return []
    ends = zip(starts.tolist(), stops.tolist(), strict=True)
    return [Stretch(len(list(group)), *end) for end, group in groupby(ends)]
