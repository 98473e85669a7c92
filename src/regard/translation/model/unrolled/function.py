"""The steps in a row, and their gradient: the products between the parts of a step, and those taken out of the loop."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.backends.base import full_precision
from regard.checks import accumulation_dtype

HAS_TRITON = find_spec("triton") is not None
LONGEST = 512  # source words whose scores a program of the kernels holds


class Weights(NamedTuple):
    """The matrices that act inside the loop.

    query: W_q of eq. 12, (hidden, size). score: w of eq. 12, (hidden). context: the context's share of the gates,
    (3 size, dim). recurrent: the state's share of the gates, (3 size, size), and its bias, (3 size).

    Of the conditional cell, context and recurrent are the second unit's.
    """

    query: Tensor
    score: Tensor
    context: Tensor
    recurrent: Tensor
    recurrent_bias: Tensor


class Conditional(NamedTuple):
    """What the conditional cell has beyond that.

    context_bias: of the second unit's gates, whose only input is the context, (3 size). first, first_bias: the state's
    share of the first unit's gates, (3 size, size) and (3 size).
    """

    context_bias: Tensor
    first: Tensor
    first_bias: Tensor


def unroll(
    words: Tensor,
    first: Tensor,
    key: Tensor,
    value: Tensor,
    real: Tensor,
    weights: Weights,
    conditional: Conditional | None = None,
    parts: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The states s_i (batch, target, size) and the contexts c_i (batch, target, dim) of all steps.

    Args:
        words: (batch, target, 3 size), the previous words' share of the gates, with its bias.
        first: s_0, (batch, size).
        key: the projected annotations, (batch, source, hidden).
        value: the annotations, (batch, source, dim).
        real: bool (batch, source), False at padding.
        weights: the matrices.
        conditional: those of the conditional cell; without them it is eq. 13.
        parts: what computes the parts of a step: "equations", "kernels", or "auto": kernels on a GPU.
    """
    dtype = accumulation_dtype(first.dtype)
    words, first, key, value = (tensor.to(dtype) for tensor in (words, first, key, value))
    chosen = _choose(parts, key)
    bias = torch.zeros(real.shape, dtype=value.dtype, device=value.device).masked_fill_(~real, float("-inf"))
    with full_precision(value.device):
        states, contexts = _Unrolled.apply(chosen, bias, words, first, key, value, *weights, *(conditional or ()))
    return states.transpose(0, 1), contexts.transpose(0, 1)


def _choose(parts: str, key: Tensor) -> ModuleType:
    """The module whose functions are the parts of a step."""
    if parts == "auto":
        fits = key.device.type == "cuda" and key.dtype == torch.float32 and key.shape[1] <= LONGEST
        parts = "kernels" if fits and HAS_TRITON else "equations"
    return import_module(f"regard.translation.model.unrolled.{parts}")


class _Unrolled(torch.autograd.Function):
    """Buffers are (target, batch, …): a step reads and writes rows that lie together.

    asking: the states that ask. They are those before each step (eq. 13), or the conditional cell's in between.
    """

    @staticmethod
    def forward(ctx, parts, bias, words, first, key, value, *matrices):
        w, cell = _named(matrices)
        target, (batch, size), hidden, dim = words.shape[1], first.shape, key.shape[-1], value.shape[-1]
        states = words.new_empty(target + 1, batch, size)
        between = words.new_empty(target, batch, size)
        contexts = words.new_empty(target, batch, dim)
        alphas = words.new_empty(target, *bias.shape)
        states[0] = first
        # The state that asks also moves the gates: both are products with it, taken at once.
        both = torch.cat((w.query, w.recurrent)).t()
        both_bias = torch.cat((w.recurrent_bias.new_zeros(hidden), w.recurrent_bias))
        queries, kept, kept_first = [], [], []
        for step in range(target):
            asking, given = states[step], words[:, step]
            if cell is not None:
                recurrent = torch.addmm(cell.first_bias, asking, cell.first.t())
                kept_first.append(parts.gru(given, None, recurrent, asking, between[step]))
                asking = between[step]
            asked = torch.addmm(both_bias, asking, both)
            parts.attend(asked[:, :hidden], key, w.score, bias, value, alphas[step], contexts[step])
            if cell is None:
                share = torch.mm(contexts[step], w.context.t())
            else:
                given, share = torch.addmm(cell.context_bias, contexts[step], w.context.t()), None
            kept.append(parts.gru(given, share, asked[:, hidden:], asking, states[step + 1]))
            queries.append(asked)
        ctx.parts, ctx.queries, ctx.kept, ctx.kept_first = parts, queries, kept, kept_first
        ctx.save_for_backward(states, between, contexts, alphas, key, value, *matrices)
        return states[1:], contexts

    @staticmethod
    @once_differentiable
    def backward(ctx, d_states, d_contexts):  # pyrefly: ignore
        states, between, contexts, alphas, key, value, *matrices = ctx.saved_tensors
        w, cell = _named(matrices)
        (target, batch, dim), size, hidden = contexts.shape, states.shape[-1], key.shape[-1]
        parts, both = ctx.parts, torch.cat((w.query, w.recurrent))
        asking = states[:-1] if cell is None else between
        d_gates = states.new_empty(target, batch, 3 * size)
        d_asked = states.new_empty(target, batch, hidden + 3 * size)
        d_context = states.new_empty(target, batch, dim)
        d_key, d_score = torch.zeros_like(key), states.new_zeros(batch, hidden)
        d_state, straight = states.new_zeros(batch, size), states.new_empty(batch, size)
        d_words = d_gates if cell is None else torch.empty_like(d_gates)
        d_recurrent = torch.empty_like(d_gates)
        for step in reversed(range(target)):
            d_state = d_state + d_states[step]
            parts.gru_backward(
                d_state, ctx.kept[step], asking[step], d_gates[step], d_asked[step, :, hidden:], straight
            )
            torch.addmm(d_contexts[step], d_gates[step], w.context, out=d_context[step])
            parts.attend_backward(
                *(d_context[step], alphas[step], ctx.queries[step][:, :hidden], key, w.score, value),
                *(d_asked[step, :, :hidden], d_key, d_score),
            )
            d_state = torch.addmm(straight, d_asked[step], both)
            if cell is not None:
                parts.gru_backward(
                    d_state, ctx.kept_first[step], states[step], d_words[step], d_recurrent[step], straight
                )
                d_state = torch.addmm(straight, d_recurrent[step], cell.first)
        flat, flat_gates = d_asked.flatten(0, 1), d_gates.flatten(0, 1)
        d_both = flat.t() @ asking.flatten(0, 1)
        d_value = torch.einsum("tbs,tbd->bsd", alphas, d_context)
        d_w = Weights(
            query=d_both[:hidden],
            score=d_score.sum(0),
            context=flat_gates.t() @ contexts.flatten(0, 1),
            recurrent=d_both[hidden:],
            recurrent_bias=flat[:, hidden:].sum(0),
        )
        d_cell = ()
        if cell is not None:
            flat_first = d_recurrent.flatten(0, 1)
            d_cell = Conditional(flat_gates.sum(0), flat_first.t() @ states[:-1].flatten(0, 1), flat_first.sum(0))
        return None, None, d_words.transpose(0, 1), d_state, d_key, d_value, *d_w, *d_cell


def _named(matrices: Sequence[Tensor]) -> tuple[Weights, Conditional | None]:
    count = len(Weights._fields)
    return Weights(*matrices[:count]), Conditional(*matrices[count:]) if matrices[count:] else None
