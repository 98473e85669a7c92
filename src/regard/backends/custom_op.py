"""A forward and a backward function over tensors as one differentiable operator of torch.

So callers can be compiled, exported and vmapped. An operator takes tensors, numbers and text only: all tensors of a
call travel in one list, the rest, its statics, after it. Every tensor that is mapped over has the rank of the batch
plus two, so that one vmap rule serves all.

Differentiation is registered twice, because torch has two readers: torch.compile and torch.export want it on the
operator, and torch.func's transforms understand it on an autograd.Function only. Where nobody watches, the functions
are called as they are: what an operator costs is noticed in a short call.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.torch_compat import (
    CustomOpDef,
    has_forward_gradients,
    in_functorch,
    is_legacy_batched,
    is_plain_tensor,
    is_traced,
)

Results = tuple[Tensor, ...]


class Directions(NamedTuple):
    """What an operator computes; statics are annotated one by one, since torch reads its schema from them.

    forward: (tensors, *statics) -> output, log_mass, and what else backward wants to keep. backward: (results, tensors,
    *statics, needs) -> a gradient for each tensor, empty where it is not needed; results are the gradients of output
    and log_mass, then all that forward returned. fake: as forward, for shapes and dtypes alone.
    """

    forward: Callable[..., Results]
    backward: Callable[..., list[Tensor]]
    fake: Callable[..., Results]


class Operator(NamedTuple):
    """run: of tensors and statics, differentiable, by whatever way is right. forward, backward: torch's operators."""

    run: Callable[[list[Tensor], Sequence[Any]], Results]
    forward: CustomOpDef
    backward: CustomOpDef


def operator(name: str, directions: Directions, *, backend: str, refusal: str) -> Operator:
    """The operator of that name; refusal: why the backend has no second derivative."""
    forward = torch.library.custom_op(f"regard::{name}", _contiguous(directions.forward), mutates_args=())
    backward = torch.library.custom_op(f"regard::{name}_backward", _contiguous(directions.backward), mutates_args=())

    def pool(tensors: list[Tensor], statics: Sequence[Any]) -> Results:
        """Call as an operator where somebody watches."""
        return (directions.forward if _is_plain(tensors) else forward)(tensors, *statics)

    class Pooling(torch.autograd.Function):
        """First derivatives of the forward function, by the backward function."""

        generate_vmap_rule = True

        @staticmethod
        def forward(statics, *tensors):
            return pool(list(tensors), statics)

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.statics, *tensors = inputs
            ctx.kept = len(output)
            ctx.save_for_backward(*output, *tensors)
            ctx.mark_non_differentiable(*output[2:])
            ctx.set_materialize_grads(False)  # zeros for what has no gradient would be as large as what is kept

        @staticmethod
        def jvp(ctx, *tangents):
            raise _refused(backend, "a forward-mode derivative", "derivatives by a backward pass")

        @staticmethod
        def backward(ctx, *grads):
            needs, saved = list(ctx.needs_input_grad[1:]), list(ctx.saved_tensors)
            grads = [torch.zeros_like(x) if grad is None else grad for grad, x in zip(grads[:2], saved, strict=False)]
            if any(is_legacy_batched(grad) for grad in grads):
                raise RegardError(
                    "backend",
                    got=f"gradients in batches (is_grads_batched or vectorize) through {backend}",
                    needed="one gradient at a time, or torch.func's transforms",
                    repair='Use torch.func.jacrev, or backend="reference".',
                )
            results, tensors = [*grads, *saved[: ctx.kept]], saved[ctx.kept :]
            if torch.is_grad_enabled() or not _is_plain([*results, *tensors]):
                found = Gradient.apply(ctx.statics, needs, len(results), *results, *tensors)
            else:
                found = directions.backward(results, tensors, *ctx.statics, needs)
            return None, *_needed(found, needs)

    class Gradient(torch.autograd.Function):
        """The backward operator, which has no derivative of its own and says so."""

        generate_vmap_rule = True

        @staticmethod
        def forward(statics, needs, count, *tensors):
            return tuple(backward(list(tensors[:count]), list(tensors[count:]), *statics, needs))

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            pass

        @staticmethod
        def backward(ctx, *grads):
            raise _refused(backend, "a second derivative", f"first derivatives: {refusal}")

    def setup(ctx, inputs, output) -> None:
        tensors, *ctx.statics = inputs
        ctx.kept = len(output)
        ctx.save_for_backward(*output, *tensors)

    def gradients(ctx, *grads):
        needs, saved = list(ctx.needs_input_grad[0]), list(ctx.saved_tensors)
        found = backward([*grads[:2], *saved[: ctx.kept]], saved[ctx.kept :], *ctx.statics, needs)
        # An empty list of numbers is one of tensors to torch, which wants a list back for it.
        return _needed(found, needs), *([] if isinstance(x, list) and not x else None for x in ctx.statics)

    def fake_gradients(results, tensors, *statics_and_needs):
        return [x.new_empty(x.shape if need else 0) for x, need in zip(tensors, statics_and_needs[-1], strict=True)]

    def mapped_forward(info, in_dims, tensors, *statics):
        """The mapped axis becomes one more batch axis, of size 1 where it is absent."""
        del info
        found = forward(_lead(tensors, in_dims[0], absent=1), *statics)
        return found, tuple(0 for _ in found)

    def mapped_backward(info, in_dims, results, tensors, *statics_and_needs):
        """As forward, but a tensor without the mapped axis gets it at full size: each example has its own gradient."""
        results = _lead(results, in_dims[0], absent=info.batch_size)
        found = backward(results, _lead(tensors, in_dims[1], absent=info.batch_size), *statics_and_needs)
        return found, [0 if need else None for need in statics_and_needs[-1]]

    forward.register_fake(directions.fake)
    forward.register_autograd(gradients, setup_context=setup)
    forward.register_vmap(mapped_forward)
    backward.register_fake(fake_gradients)
    backward.register_vmap(mapped_backward)

    def run(tensors: list[Tensor], statics: Sequence[Any]) -> Results:
        if torch.compiler.is_compiling():
            return forward(tensors, *statics)
        differentiated = wants_gradient(tensors) or has_forward_gradients()
        if differentiated or in_functorch():
            return Pooling.apply(tuple(statics), *tensors)
        return pool(tensors, statics)

    return Operator(run, forward, backward)


def _contiguous(function: Callable[..., Sequence[Tensor]]) -> Callable[..., Sequence[Tensor]]:
    """The same function with contiguous results, which the fake functions promise and compiled programs rely on."""

    @wraps(function)
    def contiguous(*arguments):
        results = function(*arguments)
        laid_out = [x.contiguous() for x in results]
        return laid_out if isinstance(results, list) else tuple(laid_out)

    return contiguous


def wants_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether a backward pass through a call of these tensors may follow."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nobody watches the call."""
    return not is_traced() and all(is_plain_tensor(x) for x in tensors)


def _refused(backend: str, got: str, needed: str) -> RegardError:
    return RegardError(
        "backend",
        got=f"{got} through {backend}",
        needed=needed,
        repair='Use backend="reference", or write the score as a callable.',
    )


def _needed(grads: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    return [grad if need else None for grad, need in zip(grads, needs, strict=True)]


def _lead(tensors: Sequence[Tensor], dims: Sequence[int | None], absent: int) -> list[Tensor]:
    """Move each mapped axis to the front; tensors without one are expanded there to size `absent`."""
    return [
        x.expand(absent, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)
    ]
