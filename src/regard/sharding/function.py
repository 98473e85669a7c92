"""Both exchanges as one differentiable function.

For the backward pass a rank keeps its own tokens, output and log_mass, and nothing of the others.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.backends.problem import parameters_of
from regard.pooling import Attended
from regard.sharding import exchange
from regard.sharding.blocks import Arriving, Blocks
from regard.sharding.exchange import Route
from regard.sharding.gradients import differentiate

TOKENS = ("query", "key", "value")


def run(blocks: Blocks, route: Route, code: tuple[Tensor, ...]) -> Attended:
    """The record of this rank's queries; code: the parameters of a score or bias that is code."""
    problem = blocks.problem
    bias = problem.bias if isinstance(problem.bias, Tensor) else None
    parameters = parameters_of(problem.form)
    tokens = (problem.form.query, problem.form.key, problem.value)
    detached = blocks.learning(None if bias is None else bias.detach(), [x.detach() for x in parameters])
    return Attended(*_Sharded.apply(detached.without_tokens(), route, code, *tokens, bias, *parameters, *code))


class _Sharded(torch.autograd.Function):
    """Output in value's dtype and log_mass, for this rank's query, key and value; all of them prepared."""

    @staticmethod
    def forward(ctx, blocks, route, code, query, key, value, bias, *parameters):
        found = exchange.pool(blocks, route, query, key, value)
        output = found.output.to(value.dtype)
        ctx.blocks, ctx.route, ctx.code = blocks, route, code
        own = parameters[: len(parameters) - len(code)]
        ctx.save_for_backward(query, key, value, bias, output, found.log_mass, *own)
        return output, found.log_mass

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyrefly: ignore
        grad_output, grad_log_mass = grads
        query, key, value, bias, output, log_mass, *parameters = ctx.saved_tensors
        needs, dtype = ctx.needs_input_grad[3:], log_mass.dtype
        names = [*TOKENS, "bias", *(f"parameter {i}" for i in range(len(needs) - 4))]
        tensors = [query, key, value, bias, *parameters]
        leaves = {
            name: tensor.detach().requires_grad_(need)
            for name, tensor, need in zip(names, tensors, needs, strict=False)
            if tensor is not None
        }
        blocks = ctx.blocks.learning(leaves.get("bias"), [leaves[name] for name in names[4 : 4 + len(parameters)]])
        # Code calls its own parameters, which are leaves already: no copy can stand in for them.
        leaves |= dict(zip(names[4 + len(parameters) :], ctx.code, strict=True))
        mean = (grad_output.to(dtype) * output.to(dtype)).sum(-1, keepdim=True) - grad_log_mass.unsqueeze(-1)
        found = differentiate(blocks, ctx.route, leaves, Arriving(grad_output, log_mass.unsqueeze(-1), mean))
        return (None, None, None, *(found[name].to(leaves[name].dtype) if name in found else None for name in names))
