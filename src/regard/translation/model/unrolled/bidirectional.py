"""Both directions of a gated recurrent layer at once, for a CPU: what nn.GRU computes, in fewer and larger steps.

A step moves both directions, and the gradients of the matrices are one product over all steps.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.translation.model.unrolled import equations


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
            kept.append(equations.gru(gates[:, step], None, recurrent, states[step], states[step + 1]))
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
            equations.gru_backward(d_state, ctx.kept[step], states[step], d_gates[step], d_recurrent[step], straight)
            if step:
                d_state = torch.baddbmm(straight, d_recurrent[step], weight) + d_states[:, step - 1]
        by_direction = d_recurrent.transpose(0, 1).reshape(2, source * batch, 3 * size)
        before = states[:-1].transpose(0, 1).reshape(2, source * batch, size)
        return d_gates.transpose(0, 1), torch.bmm(by_direction.mT, before), by_direction.sum(1)
