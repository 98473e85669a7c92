"""The fused kernels as torch.library operators, so that callers can be compiled, exported and vmapped.

An operator takes tensors, numbers and text only: query, key, width, value and perhaps a bias for each key, all of the
rank of the batch plus two; the link by its name; the band of the mask as four numbers. Conditions on keys have become
a bias of minus infinity before.

Differentiation is registered twice, because torch has two readers: torch.compile and torch.export want it on the
operator, and torch.func's transforms understand it on an autograd.Function only.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.fused.conditions import conditions_of
from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.scores.forms import DistanceForm


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of distances and pool it."""
    form, conditions = problem.form, conditions_of(problem.mask)
    assert isinstance(form, DistanceForm)
    assert conditions is not None
    bias = problem.bias
    assert bias is None or isinstance(bias, Tensor)
    for condition in conditions.keys:
        allowed = condition.tile(slice(0, 1), slice(0, problem.keys), problem.value.device)
        bias = torch.where(allowed, 0.0 if bias is None else bias, -math.inf)
    tensors = [form.query, form.key, form.width, problem.value]
    if bias is not None:
        tensors.append(bias if bias.shape[-1] == problem.keys else bias.expand(*bias.shape[:-1], problem.keys))
    statics = form.link.name, list(conditions.band)
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return forward_operator(tensors, *statics)[:2]
    return _Pooling.apply(*statics, *tensors)[:2]


class _Pooling(torch.autograd.Function):
    """First derivatives of the forward operator, by the backward operator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(link, band, *tensors):
        return forward_operator(list(tensors), link, band)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.link, ctx.band = inputs[:2]
        ctx.save_for_backward(*output, *inputs[2:])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, *grads):
        needs = list(ctx.needs_input_grad[2:])
        grads = _Gradient.apply(ctx.link, ctx.band, needs, *grads[:2], *ctx.saved_tensors)
        return None, None, *(grad if need else None for grad, need in zip(grads, needs, strict=True))


class _Gradient(torch.autograd.Function):
    """The backward operator, which has no derivative of its own and says so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(link, band, needs, *tensors):
        return tuple(backward_operator(list(tensors[:5]), list(tensors[5:]), link, band, needs))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RegardError(
            "backend",
            got="a second derivative through triton",
            needed="first derivatives: the fused kernels have no others",
            repair='Use backend="reference", or write the score as a callable.',
        )


@torch.library.custom_op("regard::fused", mutates_args=())
def forward_operator(tensors: Sequence[Tensor], link: str, band: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Output in value's dtype; log_mass; for the backward pass the (*batch, queries, 3) statistics of each row."""
    from regard.backends.fused import forward

    return forward.pool(tensors, link, band)


@forward_operator.register_fake
def _(tensors, link, band):
    query, value = tensors[0], tensors[3]
    shape = (*torch.broadcast_shapes(*(x.shape[:-2] for x in tensors)), query.shape[-2])
    single = torch.float32
    return (
        value.new_empty(*shape, value.shape[-1]),
        value.new_empty(shape, dtype=single),
        value.new_empty(*shape, 3, dtype=single),
    )


@torch.library.custom_op("regard::fused_backward", mutates_args=())
def backward_operator(
    results: Sequence[Tensor], tensors: Sequence[Tensor], link: str, band: Sequence[int], needs: Sequence[bool]
) -> list[Tensor]:
    """A gradient for each tensor, empty where `needs` is False.

    results: the gradients of output and log_mass, then output, log_mass and the statistics.
    """
    from regard.backends.fused import backward

    return backward.gradients(results, tensors, link, band, needs)


@backward_operator.register_fake
def _(results, tensors, link, band, needs):
    empty = tensors[0].new_empty
    return [x.new_empty(x.shape) if need else empty(0) for x, need in zip(tensors, needs, strict=True)]


def _setup(ctx, inputs, output) -> None:
    tensors, ctx.link, ctx.band = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad_output: Tensor, grad_log_mass: Tensor, _: Tensor):
    output, log_mass, statistics, *tensors = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[0])
    results = [grad_output, grad_log_mass, output, log_mass, statistics]
    grads = backward_operator(results, tensors, ctx.link, ctx.band, needs)
    return [grad if need else None for grad, need in zip(grads, needs, strict=True)], None, None


forward_operator.register_autograd(_backward, setup_context=_setup)


@forward_operator.register_vmap
def _(info, in_dims, tensors, *statics):
    """Every tensor has full rank: the mapped axis becomes one more batch axis, of size 1 where it is absent."""
    del info
    return forward_operator(_lead(tensors, in_dims[0], absent=1), *statics), (0, 0, 0)


@backward_operator.register_vmap
def _(info, in_dims, results, tensors, *statics_and_needs):
    """As forward, but a tensor without the mapped axis gets it at full size: each example has its own gradient."""
    results = _lead(results, in_dims[0], absent=info.batch_size)
    grads = backward_operator(results, _lead(tensors, in_dims[1], absent=info.batch_size), *statics_and_needs)
    return grads, [0 if need else None for need in statics_and_needs[-1]]


def _lead(tensors: Sequence[Tensor], dims: Sequence[int | None], absent: int) -> list[Tensor]:
    """Move each mapped axis to the front; tensors without one are expanded there to size `absent`."""
    return [
        x.expand(absent, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)
    ]


def batch_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """What the leading axes broadcast to; under vmap any tensor may be the one that has the mapped axis."""
    return tuple(max(sizes) for sizes in zip(*(x.shape[:-2] for x in tensors), strict=True))
