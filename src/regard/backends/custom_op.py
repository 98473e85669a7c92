"""Make a differentiable custom operator of torch from functions that compute a problem forward and backward.

Callers of a custom operator can be compiled, exported, traced and vmapped. `encoding.flatten` turns a problem into what
such an operator accepts. Every tensor but a dropout seed has one axis for each batch axis and two more; that is why one
vmap rule serves all operators. Derivatives other than the first backward pass come from `higher_order`.

The derivative is registered twice: on the custom operator for torch.compile and torch.export, and on an
autograd.Function for the transforms of torch.func, which fail on operators with `register_autograd` (torch 2.13). When
nothing traces the call, the functions are called directly, because calling a custom operator costs a tenth of a short
additive call on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.backends import higher_order
from regard.backends.base import Problem, Result
from regard.backends.encoding import Constants, Options, batch_of, flatten, unflatten
from regard.checks import accumulation_dtype, needs_grad
from regard.errors import RegardError
from regard.torch_compat import (
    has_forward_gradients,
    in_functorch,
    is_legacy_batched,
    is_plain_tensor,
    is_traced,
)

MAX_SEED = 2**62
"""Dropout seeds are below this number, so that sums of a seed and a position fit into 64 bits."""

Saved = Sequence[Tensor]
"""What a forward function returns and a backward function gets: output, log_mass, and the tensors that it keeps."""
Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class BackwardCall:
    """The arguments of a backward pass that are not tensors.

    Attributes:
        constants: of the problem.
        needs: for each tensor of the problem, whether it needs a gradient.
        num_results: number of results of the forward function.
    """

    constants: Constants
    needs: list[bool]
    num_results: int


class Needs(NamedTuple):
    """Which gradients a backward pass must compute.

    Attributes:
        pair: one entry for the query, the key and each parameter of the score.
        value: for the values.
        bias: for the bias.
    """

    pair: Sequence[bool]
    value: bool
    bias: bool


class Gradients(NamedTuple):
    """The gradients of a problem; None where a gradient is not needed.

    Attributes:
        pair: one entry for the query, the key and each parameter of the score.
        value: of the values.
        bias: of the bias.
    """

    pair: Sequence[Tensor | None]
    value: Tensor | None
    bias: Tensor | None


class Kernels(NamedTuple):
    """The functions of one operator.

    Attributes:
        forward: takes a problem and options, and returns output (*batch, queries, value_dim) in the dtype of value,
            log_mass (*batch, queries) in the accumulation dtype, and tensors that the backward pass uses again.
        backward: takes a problem, options, what `forward` returned, the gradients of output and log_mass, and what it
            needs to compute; returns gradients with the shapes of the tensors of the problem.
        choose: returns the options of a problem. It runs where the operator is called, so it knows whether the caller
            is compiled and whether a gradient is needed.
        kept_shapes: the shapes of the kept tensors, which have the accumulation dtype.
        num_kept: number of kept tensors.
    """

    forward: Callable[[Problem, Options], Saved]
    backward: Callable[[Problem, Options, Saved, Tensor, Tensor, Needs], Gradients]
    choose: Callable[[Problem], Options] = lambda problem: ()
    kept_shapes: Callable[[Problem, Options], Shapes] = lambda problem, options: ()
    num_kept: int = 0


class Operator:
    """A custom operator of torch, `regard::<name>`, and its backward operator, `regard::<name>_backward`.

    Attributes:
        kernels: its functions.
        forward: the custom operator; takes what `flatten` returns.
        backward: its backward operator; takes what `forward` takes, the results of `forward`, their gradients and a
            list of booleans.
    """

    def __init__(self, name: str, kernels: Kernels, *, backend: str) -> None:
        """Register both operators.

        Args:
            name: name of the operator.
            kernels: its functions.
            backend: name of the backend, for error messages.
        """
        self.kernels, self._backend = kernels, backend
        results = ", ".join(["Tensor"] * (2 + kernels.num_kept))
        arguments = "Tensor[] tensors, str text, float[] numbers, SymInt[] sizes"
        self.forward = torch.library.custom_op(
            f"regard::{name}", self._forward, mutates_args=(), schema=f"({arguments}) -> ({results})"
        )
        self.backward = torch.library.custom_op(
            f"regard::{name}_backward",
            self._backward,
            mutates_args=(),
            schema=f"({arguments}, Tensor[] saved, Tensor[] d_results, bool[] needs) -> Tensor[]",
        )
        self.forward.register_fake(self._fake_forward)
        self.forward.register_autograd(self._autograd_backward, setup_context=_save_for_autograd)
        self.forward.register_vmap(self._vmap_forward)
        self.backward.register_fake(_fake_backward)
        self.backward.register_vmap(self._vmap_backward)
        self._function = _autograd_function(self)

    def run(self, problem: Problem) -> Result:
        """Return output and log_mass of a problem, differentiable.

        Args:
            problem: its pair score is a dot product, a distance or an additive score, and its bias is a tensor or None.

        Returns:
            The result.
        """
        if problem.dropout:
            problem = problem._replace(seed=torch.randint(MAX_SEED, (), device=problem.value.device))
        options = self.kernels.choose(problem)
        is_compiling = torch.compiler.is_compiling()
        is_differentiated = needs_grad(*problem.operands()) or has_forward_gradients() or in_functorch()
        if not is_compiling and not is_differentiated and _is_plain(_all_tensors(problem)):
            found = self.kernels.forward(problem, options)
        else:
            tensors, constants = flatten(problem, options)
            if is_differentiated and not is_compiling:
                found = self._function.apply(constants, *tensors)
            else:
                found = self.forward(tensors, *constants)
        return Result(found[0], found[1])

    def call_forward(self, tensors: Sequence[Tensor], constants: Constants) -> Saved:
        """Run the forward function, through the custom operator if the call is traced."""
        return (self._forward if _is_plain(tensors) else self.forward)(list(tensors), *constants)

    def call_backward(
        self,
        tensors: Sequence[Tensor],
        constants: Constants,
        saved: Saved,
        d_results: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor]:
        """Run the backward function, through the custom operator if the call is traced."""
        is_plain = _is_plain([*tensors, *saved, *d_results])
        function = self._backward if is_plain else self.backward
        text, numbers, sizes = constants
        return function(list(tensors), text, numbers, sizes, list(saved), list(d_results), list(needs))

    def equations(
        self, tensors: Sequence[Tensor], constants: Constants
    ) -> tuple[higher_order.Equations, Sequence[Tensor], Sequence[Tensor]]:
        """Return the plain equations of a problem, its operands and its other tensors."""
        problem, _ = unflatten(tensors, constants)
        if problem.dropout:
            raise self.refuse("a derivative of second order or in forward mode with dropout", "dropout=0.0")
        num_operands = len(problem.operands())
        function = higher_order.Equations(lambda tensors: unflatten(tensors, constants)[0])
        return function, tensors[:num_operands], tensors[num_operands:]

    def gradient_equations(self, ctx):
        """The plain equations of the backward pass, its inputs, its other tensors and how many inputs are operands."""
        saved = ctx.saved_tensors
        count = ctx.call.num_results
        d_results, tensors = saved[count:][:2], saved[count + 2 :]
        function, operands, constants = self.equations(tensors, ctx.call.constants)
        pullback = higher_order.Pullback(function, len(operands))
        return pullback, [*operands, *d_results], constants, len(operands)

    def refuse(self, got: str, needed: str) -> RegardError:
        """Return the error for a derivative that the operator does not have."""
        return RegardError(
            "backend",
            got=f"{got} through {self._backend}",
            needed=needed,
            repair='Use backend="reference", or write the score as a callable.',
        )

    def refuse_batched_gradients(self) -> RegardError:
        """Return the error for gradients that autograd's older batching passes all at once."""
        return RegardError(
            "backend",
            got=f"gradients in batches (is_grads_batched or vectorize) through {self._backend}",
            needed="one gradient at a time, or the transforms of torch.func",
            repair='Use torch.func.jacrev, or backend="reference".',
        )

    def _forward(
        self, tensors: list[Tensor], text: str, numbers: Sequence[float], sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        # Contiguous, because compiled programs rely on the strides of the fake results.
        return tuple(x.contiguous() for x in self.kernels.forward(*unflatten(tensors, Constants(text, numbers, sizes))))

    def _backward(
        self,
        tensors: list[Tensor],
        text: str,
        numbers: Sequence[float],
        sizes: Sequence[int],
        saved: Saved,
        d_results: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor]:
        problem, options = unflatten(tensors, Constants(text, numbers, sizes))
        num_pair = 2 + len(problem.pair.parameters())
        has_bias = problem.bias is not None
        needed = Needs(needs[:num_pair], needs[num_pair], has_bias and needs[num_pair + 1])
        d_output, d_log_mass = d_results
        found = self.kernels.backward(problem, options, saved, d_output, d_log_mass, needed)
        grads = [*found.pair, found.value, *([found.bias] if has_bias else [])]
        grads += [None] * (len(tensors) - len(grads))
        return [
            tensor.new_empty(0) if grad is None or not need else grad.to(tensor.dtype).contiguous()
            for grad, tensor, need in zip(grads, tensors, needs, strict=True)
        ]

    def _fake_forward(self, tensors, text, numbers, sizes):
        problem, options = unflatten(tensors, Constants(text, numbers, sizes))
        value, batch, dtype = problem.value, batch_of(problem), accumulation_dtype(problem.value.dtype)
        output = value.new_empty(*batch, problem.queries, value.shape[-1])
        shapes = [(*batch, problem.queries), *self.kernels.kept_shapes(problem, options)]
        return output, *(value.new_empty(shape, dtype=dtype) for shape in shapes)

    def _autograd_backward(self, ctx, *d_results):
        results, tensors = _split_saved(ctx)
        needs = list(ctx.needs_input_grad[0])
        found = self.backward(tensors, *ctx.constants, results, list(d_results[:2]), needs)
        # torch takes an empty list of numbers for a list of tensors, so its gradient must be a list, too.
        constants = ctx.constants
        return _only_needed(found, needs), None, None if constants.numbers else [], None if constants.sizes else []

    def _vmap_forward(self, info, in_dims, tensors, *constants):
        del info
        found = self.forward(_move_to_front(tensors, in_dims[0], size=1), *constants)
        return found, tuple(0 for _ in found)

    def _vmap_backward(self, info, in_dims, tensors, text, numbers, sizes, saved, d_results, needs):
        # Tensors without the mapped axis are expanded, because each example has its own gradient.
        tensors, saved, d_results = (
            _move_to_front(given, in_dims[at], size=info.batch_size)
            for at, given in ((0, tensors), (4, saved), (5, d_results))
        )
        found = self.backward(tensors, text, numbers, sizes, saved, d_results, needs)
        return found, [0 if need else None for need in needs]


def _autograd_function(operator: Operator) -> type[torch.autograd.Function]:
    """Return the autograd.Function of an operator. Its arguments are the constants and the tensors of a problem."""

    class Forward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(constants, *tensors):
            return tuple(operator.call_forward(tensors, constants))

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.constants, *tensors = inputs
            ctx.num_results = len(output)
            ctx.save_for_backward(*output, *tensors)
            ctx.save_for_forward(*output, *tensors)
            ctx.mark_non_differentiable(*output[2:])
            ctx.set_materialize_grads(False)  # zeros for the kept tensors would be as large as those tensors

        @staticmethod
        def jvp(ctx, *tangents):
            results, tensors = _split_saved(ctx)
            function, operands, constants = operator.equations(tensors, ctx.constants)
            tangents = _zeros_for_none(tangents[1 : 1 + len(operands)], operands)
            found = higher_order.differentiable(higher_order.Pushforward(function), [*operands, *tangents], constants)
            return *found, *(None for _ in results[2:])

        @staticmethod
        def backward(ctx, *grads):
            needs = list(ctx.needs_input_grad[1:])
            results, tensors = _split_saved(ctx)
            d_results = [
                torch.zeros_like(x) if grad is None else grad for grad, x in zip(grads[:2], results[:2], strict=True)
            ]
            if any(is_legacy_batched(grad) for grad in d_results):
                raise operator.refuse_batched_gradients()
            if torch.is_grad_enabled() or not _is_plain([*results, *tensors, *d_results]):
                call = BackwardCall(ctx.constants, needs, len(results))
                found = Backward.apply(call, *results, *d_results, *tensors)
            else:
                found = operator.call_backward(tensors, ctx.constants, results, d_results, needs)
            return None, *_only_needed(found, needs)

    class Backward(torch.autograd.Function):
        """The backward pass as a function of its own, which has no derivative."""

        generate_vmap_rule = True

        @staticmethod
        def forward(call, *given):
            count = call.num_results
            saved, d_results, tensors = given[:count], given[count:][:2], given[count + 2 :]
            return tuple(operator.call_backward(tensors, call.constants, saved, d_results, call.needs))

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.call, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, *grads):
            function, inputs, constants, num_operands = operator.gradient_equations(ctx)
            grads = _zeros_for_none(grads[:num_operands], inputs)
            pullback = higher_order.Pullback(function, len(inputs))
            found = higher_order.differentiable(pullback, [*inputs, *grads], constants)
            of_tensors = [*found[:num_operands], *(None for _ in constants)]
            of_saved = [None] * ctx.call.num_results
            return None, *of_saved, *found[num_operands : len(inputs)], *of_tensors

        @staticmethod
        def jvp(ctx, *tangents):
            function, inputs, constants, num_operands = operator.gradient_equations(ctx)
            rest = tangents[1 + ctx.call.num_results :]
            of_results, of_tensors = rest[:2], rest[2:]
            directions = _zeros_for_none([*of_tensors[:num_operands], *of_results], inputs)
            found = higher_order.differentiable(higher_order.Pushforward(function), [*inputs, *directions], constants)
            found = [x if need else x.new_empty(0) for x, need in zip(found, ctx.call.needs, strict=False)]
            return *found, *(None for _ in constants)

    return Forward


def _save_for_autograd(ctx, inputs, output) -> None:
    tensors, *constants = inputs
    ctx.constants = Constants(*constants)
    ctx.num_results = len(output)
    ctx.save_for_backward(*output, *tensors)


def _split_saved(ctx: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the saved results and tensors. They are read once, because activation checkpointing allows no more."""
    saved = ctx.saved_tensors
    return list(saved[: ctx.num_results]), list(saved[ctx.num_results :])


def _zeros_for_none(given: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if tensor is None else tensor for tensor, x in zip(given, like, strict=False)]


def _fake_backward(tensors, text, numbers, sizes, saved, d_results, needs):
    del text, numbers, sizes, saved, d_results
    return [tensor.new_empty(tensor.shape if need else 0) for tensor, need in zip(tensors, needs, strict=True)]


def _all_tensors(problem: Problem) -> list[Tensor]:
    seed = [] if problem.seed is None else [problem.seed]
    return [*problem.operands(), *seed, *([] if problem.mask is None else problem.mask.tensors())]


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Return whether nothing traces, transforms or intercepts a call with these tensors."""
    return not is_traced() and all(is_plain_tensor(tensor) for tensor in tensors)


def _only_needed(grads: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    return [grad if need else None for grad, need in zip(grads, needs, strict=True)]


def _move_to_front(tensors: Sequence[Tensor], dims: Sequence[int | None], size: int) -> list[Tensor]:
    """Move the mapped axis of each tensor to the front; give a tensor without one an axis of this size there."""
    return [
        x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)
    ]
