"""The parts of a step in plain operations, forward and backward: what runs on a CPU, and what the kernels equal.

Alphabet: rows are sentences, keys are source words, hidden is the additive score's width, dim the annotations', and
size the state's.
"""

import torch
from torch import Tensor


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
