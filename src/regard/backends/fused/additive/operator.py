"""Additive attention by fused kernels as torch.library operators, so that callers can be compiled and vmapped.

An operator takes tensors, numbers and text only: query, key, weight, value, perhaps bias and seed, then the mask's
tensors; every one but the seed has the rank of the batch plus two. The rest are `Statics`.

Differentiation is registered twice, because torch has two readers: torch.compile and torch.export want it on the
operator, and torch.func's transforms understand it on an autograd.Function only.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.fused.additive.call import Statics, batch_of
from regard.backends.fused.additive.plan import plan
from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.scores.forms import AdditiveForm


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    """Encode a problem of additive form and pool it."""
    form, mask, bias, dropout = problem.form, problem.mask, problem.bias, float(problem.dropout)
    assert isinstance(form, AdditiveForm)
    tensors = [form.query, form.key, form.weight, problem.value]
    if isinstance(bias, Tensor):
        tensors.append(bias)
    if dropout:
        tensors.append(torch.randint(2**31, (), device=problem.value.device))
    text = ""
    if mask is not None:
        tensors += mask.tensors()
        text = mask.encode()
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    chosen = plan(problem, gradient=gradient)
    statics = Statics(bias is not None, dropout > 0, text, dropout, chosen.rank, chosen.query_reach, chosen.key_reach)
    if torch.compiler.is_compiling():
        return forward_operator(tensors, *statics)
    if gradient or torch._C._are_functorch_transforms_active():
        return _Pooling.apply(*statics, *tensors)
    return _forward(tensors, statics)


def _forward(tensors: list[Tensor], statics: Statics) -> tuple[Tensor, Tensor]:
    """The operator, or where nobody transforms the call what it does: its own cost is noticed in a short one."""
    if torch._C._are_functorch_transforms_active():
        return forward_operator(tensors, *statics)
    from regard.backends.fused.additive import forward

    return forward.pool(tensors, statics, _batch(tensors, statics))


class _Pooling(torch.autograd.Function):
    """First derivatives of the forward operator, by the backward operator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments):
        count = len(Statics._fields)
        return _forward(list(arguments[count:]), Statics(*arguments[:count]))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        count = len(Statics._fields)
        ctx.statics = inputs[:count]
        ctx.save_for_backward(*output, *inputs[count:])

    @staticmethod
    def backward(ctx, *grads):
        needs = list(ctx.needs_input_grad[len(ctx.statics) :])
        if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            grads = _Gradient.apply(ctx.statics, needs, *grads, *ctx.saved_tensors)
        else:
            grads = _backward_of(ctx, list(grads), needs)
        found = [grad if need else None for grad, need in zip(grads, needs, strict=True)]
        return (*(None for _ in ctx.statics), *found)


def _backward_of(ctx, grads: list[Tensor], needs: list[bool]) -> list[Tensor]:
    """What the backward operator does, without its cost."""
    from regard.backends.fused.additive import backward

    statics, (output, log_mass, *tensors) = Statics(*ctx.statics), ctx.saved_tensors
    return backward.gradients([*grads, output, log_mass], tensors, statics, needs, _batch(tensors, statics))


class _Gradient(torch.autograd.Function):
    """The backward operator, which has no derivative of its own and says so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(statics, needs, *tensors):
        return tuple(backward_operator(list(tensors[:4]), list(tensors[4:]), *statics, needs))

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


@torch.library.custom_op("regard::fused_additive", mutates_args=())
def forward_operator(
    tensors: Sequence[Tensor],
    has_bias: bool,
    has_seed: bool,
    mask: str,
    dropout: float,
    rank: int,
    query_reach: float,
    key_reach: float,
) -> tuple[Tensor, Tensor]:
    """Output in value's dtype and log_mass in float32."""
    from regard.backends.fused.additive import forward

    statics = Statics(has_bias, has_seed, mask, dropout, rank, query_reach, key_reach)
    return forward.pool(tensors, statics, _batch(tensors, statics))


@forward_operator.register_fake
def _(tensors, *statics):
    query, value = tensors[0], tensors[3]
    shape = (*_batch(tensors, Statics(*statics)), query.shape[-2])
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("regard::fused_additive_backward", mutates_args=())
def backward_operator(
    results: Sequence[Tensor],
    tensors: Sequence[Tensor],
    has_bias: bool,
    has_seed: bool,
    mask: str,
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

    statics = Statics(has_bias, has_seed, mask, dropout, rank, query_reach, key_reach)
    return backward.gradients(results, tensors, statics, needs, _batch(tensors, statics))


@backward_operator.register_fake
def _(results, tensors, *statics_and_needs):
    return [x.new_empty(x.shape if need else 0) for x, need in zip(tensors, statics_and_needs[-1], strict=True)]


def _setup(ctx, inputs, output) -> None:
    tensors, *ctx.statics = inputs
    ctx.save_for_backward(*output, *tensors)


def _backward(ctx, grad_output: Tensor, grad_log_mass: Tensor):
    output, log_mass, *tensors = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[0])
    grads = backward_operator([grad_output, grad_log_mass, output, log_mass], tensors, *ctx.statics, needs)
    found = [grad if need else None for grad, need in zip(grads, needs, strict=True)]
    return (found, *(None for _ in ctx.statics))


forward_operator.register_autograd(_backward, setup_context=_setup)


@forward_operator.register_vmap
def _(info, in_dims, tensors, *statics):
    """Every tensor has full rank: the mapped axis becomes one more batch axis, of size 1 where it is absent."""
    del info
    return forward_operator(_lead(tensors, in_dims[0], absent=1), *statics), (0, 0)


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


def _batch(tensors: Sequence[Tensor], statics: Statics) -> tuple[int, ...]:
    """What the leading axes broadcast to; the seed, if there is one, has none."""
    seed = 4 + statics.has_bias
    return batch_of([x for at, x in enumerate(tensors) if not (statics.has_seed and at == seed)])
