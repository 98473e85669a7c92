"""All decoder steps of known targets as one autograd function: the additive score, one head, gated units (eq. 13).

`Decoder.unroll` uses it in training. It is faster than a loop over `Decoder.step` for two reasons. The gradient of each
matrix is one product over all steps instead of a sum of small products. And on a GPU each operation of a step is one
Triton kernel (`unrolled_triton`). The loop over `Decoder.step` is the specification that the tests compare with.

Shapes: rows are sentences, keys are source words, hidden is the size of the additive score, dim that of the
annotations, and size that of the state.
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
MAX_KEYS = 512  # source words of a sentence that one program of the Triton kernels holds
OPS = {"torch": __name__, "triton": "regard.translation.unrolled_triton"}


class StepWeights(NamedTuple):
    """The matrices that act on states and contexts; of the conditional cell, the last three are the second unit's.

    Attributes:
        query: W_q of eq. 12, (hidden, size).
        score: w of eq. 12, (hidden).
        context: The context's share of the gates, (3 size, dim).
        recurrent: The state's share of the gates, (3 size, size).
        recurrent_bias: Its bias, (3 size).
    """

    query: Tensor
    score: Tensor
    context: Tensor
    recurrent: Tensor
    recurrent_bias: Tensor


class ConditionalWeights(NamedTuple):
    """The further weights of the conditional cell.

    Attributes:
        context_bias: The bias of the second unit's gates, whose only input is the context, (3 size).
        first: The state's share of the first unit's gates, (3 size, size).
        first_bias: Its bias, (3 size).
    """

    context_bias: Tensor
    first: Tensor
    first_bias: Tensor


def unroll(
    input_gates: Tensor,
    initial: Tensor,
    key: Tensor,
    value: Tensor,
    is_token: Tensor,
    weights: StepWeights,
    conditional: ConditionalWeights | None = None,
    ops: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute the states s_i and the contexts c_i of all steps.

    Args:
        input_gates: The previous words' share of the gates, bias included, (batch, target, 3 size).
        initial: s_0, (batch, size).
        key: The projected annotations, (batch, source, hidden).
        value: The annotations, (batch, source, dim).
        is_token: bool (batch, source), False at padding.
        weights: The matrices of a step.
        conditional: The further matrices of the conditional cell; None for eq. 13.
        ops: What computes a step: "torch", "triton", or "auto" for Triton on a GPU in float32.

    Returns:
        The states (batch, target, size) and the contexts (batch, target, dim).
    """
    dtype = accumulation_dtype(initial.dtype)
    input_gates, initial, key, value = (tensor.to(dtype) for tensor in (input_gates, initial, key, value))
    module = _choose_ops(ops, key)
    bias = torch.zeros(is_token.shape, dtype=value.dtype, device=value.device).masked_fill_(~is_token, float("-inf"))
    with full_precision(value.device):
        states, contexts = _Unrolled.apply(
            module, bias, input_gates, initial, key, value, *weights, *(conditional or ())
        )
    return states.transpose(0, 1), contexts.transpose(0, 1)


def _choose_ops(ops: str, key: Tensor) -> ModuleType:
    """Return the module with the four operations of a step."""
    if ops == "auto":
        fits = key.device.type == "cuda" and key.dtype == torch.float32 and key.shape[1] <= MAX_KEYS
        ops = "triton" if fits and HAS_TRITON else "torch"
    return import_module(OPS[ops])


class _Unrolled(torch.autograd.Function):
    """The loop over the steps. Buffers are (target, batch, ...), so that each step has contiguous rows.

    queries: the previous states (eq. 13) or, for the conditional cell, the intermediate states.
    """

    @staticmethod
    def forward(ctx, ops, bias, input_gates, initial, key, value, *matrices):
        w, cell = _named(matrices)
        target, (batch, size), hidden, dim = input_gates.shape[1], initial.shape, key.shape[-1], value.shape[-1]
        states = input_gates.new_empty(target + 1, batch, size)
        between = input_gates.new_empty(target, batch, size)
        contexts = input_gates.new_empty(target, batch, dim)
        alphas = input_gates.new_empty(target, *bias.shape)
        states[0] = initial
        # The query also enters the gates: W_q q and the recurrent share are one product.
        query_and_recurrent = torch.cat((w.query, w.recurrent)).t()
        projection_bias = torch.cat((w.recurrent_bias.new_zeros(hidden), w.recurrent_bias))
        projections, saved, saved_first = [], [], []
        for step in range(target):
            query, gates = states[step], input_gates[:, step]
            if cell is not None:
                recurrent = torch.addmm(cell.first_bias, query, cell.first.t())
                saved_first.append(ops.gru(gates, None, recurrent, query, between[step]))
                query = between[step]
            projected = torch.addmm(projection_bias, query, query_and_recurrent)
            ops.attend(projected[:, :hidden], key, w.score, bias, value, alphas[step], contexts[step])
            if cell is None:
                context_gates = torch.mm(contexts[step], w.context.t())
            else:
                gates, context_gates = torch.addmm(cell.context_bias, contexts[step], w.context.t()), None
            saved.append(ops.gru(gates, context_gates, projected[:, hidden:], query, states[step + 1]))
            projections.append(projected)
        ctx.ops, ctx.projections, ctx.saved, ctx.saved_first = ops, projections, saved, saved_first
        ctx.save_for_backward(states, between, contexts, alphas, key, value, *matrices)
        return states[1:], contexts

    @staticmethod
    @once_differentiable
    def backward(ctx, d_states, d_contexts):  # pyrefly: ignore
        states, between, contexts, alphas, key, value, *matrices = ctx.saved_tensors
        w, cell = _named(matrices)
        (target, batch, dim), size, hidden = contexts.shape, states.shape[-1], key.shape[-1]
        ops, query_and_recurrent = ctx.ops, torch.cat((w.query, w.recurrent))
        queries = states[:-1] if cell is None else between
        d_gates = states.new_empty(target, batch, 3 * size)
        d_projected = states.new_empty(target, batch, hidden + 3 * size)
        d_context = states.new_empty(target, batch, dim)
        d_key, d_score = torch.zeros_like(key), states.new_zeros(batch, hidden)
        d_state, d_direct = states.new_zeros(batch, size), states.new_empty(batch, size)
        d_input_gates = d_gates if cell is None else torch.empty_like(d_gates)
        d_recurrent = torch.empty_like(d_gates)
        for step in reversed(range(target)):
            d_state = d_state + d_states[step]
            ops.gru_backward(
                d_state, ctx.saved[step], queries[step], d_gates[step], d_projected[step, :, hidden:], d_direct
            )
            torch.addmm(d_contexts[step], d_gates[step], w.context, out=d_context[step])
            ops.attend_backward(
                *(d_context[step], alphas[step], ctx.projections[step][:, :hidden], key, w.score, value),
                *(d_projected[step, :, :hidden], d_key, d_score),
            )
            d_state = torch.addmm(d_direct, d_projected[step], query_and_recurrent)
            if cell is not None:
                ops.gru_backward(
                    d_state, ctx.saved_first[step], states[step], d_input_gates[step], d_recurrent[step], d_direct
                )
                d_state = torch.addmm(d_direct, d_recurrent[step], cell.first)
        flat, flat_gates = d_projected.flatten(0, 1), d_gates.flatten(0, 1)
        d_query_and_recurrent = flat.t() @ queries.flatten(0, 1)
        d_value = torch.einsum("tbs,tbd->bsd", alphas, d_context)
        d_w = StepWeights(
            query=d_query_and_recurrent[:hidden],
            score=d_score.sum(0),
            context=flat_gates.t() @ contexts.flatten(0, 1),
            recurrent=d_query_and_recurrent[hidden:],
            recurrent_bias=flat[:, hidden:].sum(0),
        )
        d_cell = ()
        if cell is not None:
            flat_first = d_recurrent.flatten(0, 1)
            d_cell = ConditionalWeights(
                flat_gates.sum(0), flat_first.t() @ states[:-1].flatten(0, 1), flat_first.sum(0)
            )
        return None, None, d_input_gates.transpose(0, 1), d_state, d_key, d_value, *d_w, *d_cell


def _named(matrices: Sequence[Tensor]) -> tuple[StepWeights, ConditionalWeights | None]:
    count = len(StepWeights._fields)
    return StepWeights(*matrices[:count]), ConditionalWeights(*matrices[count:]) if matrices[count:] else None


def attend(
    query: Tensor, key: Tensor, weight: Tensor, bias: Tensor, value: Tensor, alpha: Tensor, context: Tensor
) -> None:
    """alpha = softmax_j(w' tanh(q + k_j) + bias_j), c = sum_j alpha_j v_j (eq. 12 and 13).

    Args:
        query: W_q s_{i-1}, (rows, hidden).
        key: W_k h_j, (rows, keys, hidden).
        weight: w, (hidden).
        bias: 0, or minus infinity at padding, (rows, keys).
        value: h_j, (rows, keys, dim).
        alpha: Filled with the attention weights, (rows, keys).
        context: Filled with the contexts, (rows, dim).
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
    """Write the gradient of the query, and add the gradients of the keys and of w.

    The values' gradient, the sum over steps of alpha times d_context, is one product after all steps.

    Args:
        d_context: The gradient of the contexts, (rows, dim).
        alpha: The attention weights, (rows, keys).
        query: As in `attend`.
        key: As in `attend`.
        weight: As in `attend`.
        value: As in `attend`.
        d_query: Filled with the gradient of the query, (rows, hidden).
        d_key: Increased by the gradient of the keys, (rows, keys, hidden).
        d_weight: Increased by the gradient of w, separately for each row, (rows, hidden).
    """
    d_alpha = torch.bmm(value, d_context[..., None]).squeeze(-1)
    d_scores = alpha * (d_alpha - (alpha * d_alpha).sum(-1, keepdim=True))
    hidden = torch.tanh(query[:, None] + key)
    d_weight += torch.bmm(d_scores[:, None], hidden).squeeze(1)
    # d tanh = 1 - tanh^2
    inner = torch.addcmul(weight, hidden.mul_(hidden), weight, value=-1).mul_(d_scores[..., None])
    torch.sum(inner, 1, out=d_query)
    d_key += inner


def gru(input_gates: Tensor, context_gates: Tensor | None, recurrent: Tensor, state: Tensor, out: Tensor) -> Tensor:
    """The gated unit (arXiv 1409.0473, appendix A.1.1): writes s_i to `out`, returns what its gradient needs.

    Args:
        input_gates: The input's share of the gates, (..., 3 size).
        context_gates: The context's share, if it is not part of the input's.
        recurrent: The state's share, (..., 3 size).
        state: s_{i-1}, (..., size).
        out: Filled with s_i, (..., size).

    Returns:
        Reset gate, update gate, candidate and the candidate's share of the state, (4, ..., size).
    """
    gates = input_gates if context_gates is None else input_gates + context_gates
    reset_in, update_in, new_in = gates.chunk(3, -1)
    reset_h, update_h, new_h = recurrent.chunk(3, -1)
    reset = torch.sigmoid(reset_in + reset_h)
    update = torch.sigmoid(update_in + update_h)
    new = torch.tanh(torch.addcmul(new_in, reset, new_h))
    torch.lerp(new, state, update, out=out)
    return torch.stack((reset, update, new, new_h))


def gru_backward(
    d_out: Tensor, saved: Tensor, state: Tensor, d_gates: Tensor, d_recurrent: Tensor, d_direct: Tensor
) -> None:
    """Write the gradients of `gru`.

    Args:
        d_out: The gradient of s_i, (..., size).
        saved: The result of `gru`.
        state: s_{i-1}, (..., size).
        d_gates: Filled with the gradient of the input's share of the gates, (..., 3 size).
        d_recurrent: Filled with the gradient of the state's share, (..., 3 size).
        d_direct: Filled with the part of the gradient of s_{i-1} that does not pass the gates, (..., size).
    """
    reset, update, new, new_h = saved
    size = state.shape[-1]
    d_new = d_out * (1 - update) * (1 - new * new)
    d_reset = d_new * new_h * reset * (1 - reset)
    d_update = d_out * (state - new) * update * (1 - update)
    torch.cat((d_reset, d_update, d_new), -1, out=d_gates)
    d_recurrent[..., : 2 * size] = d_gates[..., : 2 * size]
    torch.mul(d_new, reset, out=d_recurrent[..., 2 * size :])
    torch.mul(d_out, update, out=d_direct)


def run_both_directions(gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Run both directions of an encoder layer of gated units in the same steps, which is faster on a CPU.

    Each direction reads its own input from the first word on and starts from 0. The gradients of the matrices are one
    product over all steps.

    Args:
        gates: The words' share of the gates, bias included, (2, source, batch, 3 size).
        weight: The state's share of the gates, (2, 3 size, size).
        bias: Its bias, (2, 3 size).

    Returns:
        The states, (2, source, batch, size).
    """
    return _BothDirections.apply(gates, weight, bias)


class _BothDirections(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gates, weight, bias):
        _, source, batch, width = gates.shape
        states = gates.new_zeros(source + 1, 2, batch, width // 3)
        saved = []
        for step in range(source):
            recurrent = torch.baddbmm(bias[:, None], states[step], weight.mT)
            saved.append(gru(gates[:, step], None, recurrent, states[step], states[step + 1]))
        ctx.saved = saved
        ctx.save_for_backward(states, weight)
        return states[1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_states):  # pyrefly: ignore
        states, weight = ctx.saved_tensors
        source, _, batch, size = d_states.transpose(0, 1).shape
        d_gates = states.new_empty(source, 2, batch, 3 * size)
        d_recurrent = torch.empty_like(d_gates)
        d_direct = states.new_empty(2, batch, size)
        d_state = d_states[:, -1]
        for step in reversed(range(source)):
            gru_backward(d_state, ctx.saved[step], states[step], d_gates[step], d_recurrent[step], d_direct)
            if step:
                d_state = torch.baddbmm(d_direct, d_recurrent[step], weight) + d_states[:, step - 1]
        by_direction = d_recurrent.transpose(0, 1).reshape(2, source * batch, 3 * size)
        before = states[:-1].transpose(0, 1).reshape(2, source * batch, size)
        return d_gates.transpose(0, 1), torch.bmm(by_direction.mT, before), by_direction.sum(1)
