"""All steps of a decoder with an additive score, one head and gated units as one differentiable function (eq. 13).

Two things make it faster than a loop over `attend`. What does not depend on the step before is taken out of the loop:
the gradient of each matrix is one product over all steps, not a sum of small ones. And on a GPU each step is a few
kernels in either direction: the products, attention, the gated unit. The loop in `Decoder.unroll` is the
specification, and tests judge this by it.
"""

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
    modules = {"equations": "regard.translation.unrolled", "kernels": "regard.translation.unrolled_triton"}
    return import_module(modules[parts])


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


def attend(
    query: Tensor, key: Tensor, weight: Tensor, bias: Tensor, value: Tensor, alpha: Tensor, context: Tensor
) -> None:
    """alpha = softmax_j(w' tanh(q + k_j) + bias_j), c = sum_j alpha_j v_j (eq. 12 and 13).

    query: (rows, hidden); key: (rows, keys, hidden); weight: (hidden); bias: (rows, keys), 0 or minus infinity;
    value: (rows, keys, dim). Writes alpha (rows, keys) and context (rows, dim).
    """
    scores = torch.tanh(query[:, None] + key) @ weight
    torch.softmax(scores + bias, -1, out=alpha)
    torch.bmm(alpha[:, None], value, out=context[:, None])


def attend_backward(
    d_context: Tensor,
    alpha: Tensor,
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    value: Tensor,
    d_query: Tensor,
    d_key: Tensor,
    d_weight: Tensor,
) -> None:
    """Write the gradient of the query; add those of the keys (rows, keys, hidden) and of w, row by row (rows, hidden).

    The values' gradient, sum over steps of alpha times d_context, is one product after all steps.
    """
    d_alpha = torch.bmm(value, d_context[..., None]).squeeze(-1)
    d_scores = alpha * (d_alpha - (alpha * d_alpha).sum(-1, keepdim=True))
    hidden = torch.tanh(query[:, None] + key)
    d_weight += torch.bmm(d_scores[:, None], hidden).squeeze(1)
    # d tanh = 1 - tanh^2
    inner = torch.addcmul(weight, hidden.mul_(hidden), weight, value=-1).mul_(d_scores[..., None])
    torch.sum(inner, 1, out=d_query)
    d_key += inner


def gru(given: Tensor, more: Tensor | None, recurrent: Tensor, state: Tensor, out: Tensor) -> Tensor:
    """The gated unit (arXiv 1409.0473, A.1.1): writes s_i to `out`, returns what its gradient needs, (4, …, size).

    given, more, recurrent: (…, 3 size), the shares of the gates: of the input, of more input, and of the state;
    state, out: (…, size).
    """
    reset_in, update_in, new_in = (given if more is None else given + more).chunk(3, -1)
    reset_h, update_h, new_h = recurrent.chunk(3, -1)
    reset = torch.sigmoid(reset_in + reset_h)
    update = torch.sigmoid(update_in + update_h)
    new = torch.tanh(torch.addcmul(new_in, reset, new_h))
    torch.lerp(new, state, update, out=out)
    return torch.stack((reset, update, new, new_h))


def gru_backward(
    d_out: Tensor, kept: Tensor, state: Tensor, d_gates: Tensor, d_recurrent: Tensor, d_state: Tensor
) -> None:
    """Write the gradients of the input's and the state's share of the gates, and what passes straight to the state.

    d_out, d_state: (…, size); d_gates, d_recurrent: (…, 3 size).
    """
    reset, update, new, new_h = kept
    size = state.shape[-1]
    d_new = d_out * (1 - update) * (1 - new * new)
    d_reset = d_new * new_h * reset * (1 - reset)
    d_update = d_out * (state - new) * update * (1 - update)
    torch.cat((d_reset, d_update, d_new), -1, out=d_gates)
    d_recurrent[..., : 2 * size] = d_gates[..., : 2 * size]
    torch.mul(d_new, reset, out=d_recurrent[..., 2 * size :])
    torch.mul(d_out, update, out=d_state)


def run_both(gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The states of two layers that each read its own input from its first word on, starting from 0.

    gates: (2, source, batch, 3 size), the words' share of the gates, with its bias. weight: (2, 3 size, size) and
    bias: (2, 3 size), the state's share. Returns (2, source, batch, size).
    """
    return _Both.apply(gates, weight, bias)


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gates, weight, bias):
        _, source, batch, width = gates.shape
        states = gates.new_zeros(source + 1, 2, batch, width // 3)
        kept = []
        for step in range(source):
            recurrent = torch.baddbmm(bias[:, None], states[step], weight.mT)
            kept.append(gru(gates[:, step], None, recurrent, states[step], states[step + 1]))
        ctx.kept = kept
        ctx.save_for_backward(states, weight)
        return states[1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_states):  # pyrefly: ignore
        states, weight = ctx.saved_tensors
        source, _, batch, size = d_states.transpose(0, 1).shape
        d_gates = states.new_empty(source, 2, batch, 3 * size)
        d_recurrent = torch.empty_like(d_gates)
        straight = states.new_empty(2, batch, size)
        d_state = d_states[:, -1]
        for step in reversed(range(source)):
            gru_backward(d_state, ctx.kept[step], states[step], d_gates[step], d_recurrent[step], straight)
            if step:
                d_state = torch.baddbmm(straight, d_recurrent[step], weight) + d_states[:, step - 1]
        by_direction = d_recurrent.transpose(0, 1).reshape(2, source * batch, 3 * size)
        before = states[:-1].transpose(0, 1).reshape(2, source * batch, size)
        return d_gates.transpose(0, 1), torch.bmm(by_direction.mT, before), by_direction.sum(1)
