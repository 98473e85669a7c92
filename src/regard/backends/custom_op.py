"""Make a differentiable custom operator of torch from functions that compute a problem forward and backward.

Callers of a custom operator can be compiled, exported, traced and vmapped. `encoding.flatten` turns a problem into what
such an operator accepts. Every tensor but a dropout seed has one axis for each batch axis and two more; that is why one
vmap rule serves all operators.

The derivative is registered twice: on the custom operator for torch.compile and torch.export, and on an
autograd.Function for the transforms of torch.func, which fail on operators with `register_autograd` (torch 2.13). When
nothing traces the call, the functions are called directly, because calling a custom operator costs a tenth of a short
additive call on a GPU.

Derivatives other than the first backward pass come from `higher_order`, which only the autograd.Function uses. So the
gradients of compiled and exported callers have no derivatives, and torch raises a RuntimeError in a second backward
pass. In forward mode, torch would ignore the tangents of an operator's arguments without an error. Therefore a compiled
caller runs the plain equations, and an exported program raises a RegardError.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.backends import higher_order, row_blocks
from regard.backends.base import Problem, Result
from regard.backends.encoding import Constants, Options, flatten, unflatten
from regard.checks import accumulation_dtype, needs_grad
from regard.errors import RegardError
from regard.torch_compat import (
    computes_forward_gradients,
    has_forward_gradients,
    in_functorch,
    is_legacy_batched,
    is_plain_tensor,
    is_traced,
)

# Dropout seeds are below this number, so that sums of a seed and a position fit into 64 bits.
MAX_SEED = 2**62

ForwardResults = Sequence[Tensor]
"""The results of a forward function, which its backward function gets: output, log_mass and the kept tensors."""
Shapes = Sequence[Sequence[int]]
"""The shapes of several tensors."""


@dataclass(frozen=True)
class BackwardCall:
    """The arguments of a backward pass that are not tensors.

    Attributes:
        constants: the constants of the problem.
        needs: for each tensor of the problem, whether it needs a gradient.
        num_results: number of results of the forward function.
    """

    constants: Constants
    needs: list[bool]
    num_results: int

    def split(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Return the results of the forward function, the gradients of output and log_mass, and the problem's tensors.

        Args:
            tensors: all of them, in this order.
        """
        count = self.num_results
        return tensors[:count], tensors[count : count + 2], tensors[count + 2 :]


class GradientEquations(NamedTuple):
    """The plain equations of a backward pass.

    Attributes:
        pullback: the backward pass as a function of its inputs and other tensors.
        inputs: the operands of the problem and the gradients of output and log_mass.
        other_tensors: the other tensors of the problem, by which nothing is differentiated.
        num_operands: number of inputs that are operands.
    """

    pullback: higher_order.Pullback
    inputs: list[Tensor]
    other_tensors: Sequence[Tensor]
    num_operands: int


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


class OperatorFunctions(NamedTuple):
    """The functions from which an `Operator` is made.

    Attributes:
        forward: takes a problem and options, and returns output (*batch, queries, value_dim) in the dtype of value,
            log_mass (*batch, queries) in the accumulation dtype, and the kept tensors: those that the backward pass
            uses again.
        backward: takes a problem, options, the results of `forward`, the gradients of output and log_mass, and which
            gradients are needed; returns gradients with the shapes of the tensors of the problem.
        choose: returns the options of a problem. It runs where the operator is called, so it knows whether the caller
            is compiled and whether a gradient is needed.
        kept_shapes: returns the shapes of the kept tensors, which have the accumulation dtype.
        num_kept: number of kept tensors.
    """

    forward: Callable[[Problem, Options], ForwardResults]
    backward: Callable[[Problem, Options, ForwardResults, Tensor, Tensor, Needs], Gradients]
    choose: Callable[[Problem], Options] = lambda problem: ()
    kept_shapes: Callable[[Problem, Options], Shapes] = lambda problem, options: ()
    num_kept: int = 0


class Operator:
    """A custom operator of torch, `regard::<name>`, and its backward operator, `regard::<name>_backward`.

    Attributes:
        functions: its functions.
        forward: the custom operator; takes what `flatten` returns.
        backward: its backward operator; takes what `forward` takes, the results of `forward`, their gradients and a
            list of booleans.
    """

    def __init__(self, name: str, functions: OperatorFunctions, *, backend: str) -> None:
        """Register both operators.

        Args:
            name: name of the operator.
            functions: its functions.
            backend: name of the backend, for error messages.
        """
        self.functions, self._backend = functions, backend
        results = ", ".join(["Tensor"] * (2 + functions.num_kept))
        arguments = "Tensor[] tensors, str text, float[] numbers, SymInt[] sizes"
        self.forward = torch.library.custom_op(
            f"regard::{name}", self._forward_operator, mutates_args=(), schema=f"({arguments}) -> ({results})"
        )
        self.backward = torch.library.custom_op(
            f"regard::{name}_backward",
            self._backward,
            mutates_args=(),
            schema=f"({arguments}, Tensor[] saved, Tensor[] d_results, bool[] needs) -> Tensor[]",
        )
        self.forward.register_fake(self._fake_forward)
        self.forward.register_autograd(self._autograd_backward, setup_context=_setup_context)
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
        is_compiling = torch.compiler.is_compiling()
        if is_compiling and has_forward_gradients():
            return row_blocks.run(problem)  # torch ignores the tangents of an operator's arguments
        if problem.dropout:
            problem = problem._replace(seed=torch.randint(MAX_SEED, (), device=problem.value.device))
        options = self.functions.choose(problem)
        is_differentiated = needs_grad(*problem.operands()) or has_forward_gradients() or in_functorch()
        if not is_compiling and not is_differentiated and _is_plain(problem.all_tensors()):
            found = self.functions.forward(problem, options)
        else:
            tensors, constants = flatten(problem, options)
            if is_differentiated and not is_compiling:
                found = self._function.apply(constants, *tensors)
            else:
                found = self.forward(tensors, constants.text, constants.numbers, constants.sizes)
        return Result(found[0], found[1])

    def call_forward(self, tensors: Sequence[Tensor], constants: Constants) -> ForwardResults:
        """Run the forward function: directly if `_is_plain`, and else through the custom operator."""
        function = self._forward if _is_plain(tensors) else self.forward
        return function(list(tensors), constants.text, constants.numbers, constants.sizes)

    def call_backward(
        self,
        tensors: Sequence[Tensor],
        constants: Constants,
        saved: ForwardResults,
        d_results: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor]:
        """Run the backward function: directly if `_is_plain`, and else through the custom operator."""
        is_plain = _is_plain([*tensors, *saved, *d_results])
        function = self._backward if is_plain else self.backward
        arguments = list(tensors), constants.text, constants.numbers, constants.sizes
        return function(*arguments, list(saved), list(d_results), list(needs))

    def equations(
        self, tensors: Sequence[Tensor], constants: Constants
    ) -> tuple[higher_order.Equations, Sequence[Tensor], Sequence[Tensor]]:
        """Return the plain equations of a problem, its operands and its other tensors."""
        problem, _ = unflatten(tensors, constants)
        if problem.dropout:
            raise self.unsupported_derivative(
                "a derivative of second order or in forward mode with dropout", "dropout=0.0"
            )
        num_operands = len(problem.operands())
        function = higher_order.Equations(lambda tensors: unflatten(tensors, constants)[0])
        return function, tensors[:num_operands], tensors[num_operands:]

    def gradient_equations(self, call: BackwardCall, tensors: Sequence[Tensor]) -> GradientEquations:
        """Return the plain equations of a backward pass.

        Args:
            call: its arguments that are not tensors.
            tensors: its tensors, in the order of `BackwardCall.split`.
        """
        _, d_results, tensors = call.split(tensors)
        function, operands, other_tensors = self.equations(tensors, call.constants)
        num_operands = len(operands)
        pullback = higher_order.Pullback(function, num_operands)
        return GradientEquations(pullback, [*operands, *d_results], other_tensors, num_operands)

    def unsupported_derivative(self, got: str, needed: str) -> RegardError:
        """Return the error for a derivative that the operator does not have."""
        return RegardError(
            "backend",
            got=f"{got} through {self._backend}",
            needed=needed,
            repair='Use backend="reference", or write the score as a callable.',
        )

    def unsupported_batched_gradients(self) -> RegardError:
        """Return the error for a batch of gradients from the older vmap of autograd."""
        return RegardError(
            "backend",
            got=f"gradients in batches (is_grads_batched or vectorize) through {self._backend}",
            needed="one gradient at a time, or the transforms of torch.func",
            repair='Use torch.func.jacrev, or backend="reference".',
        )

    def _forward_operator(
        self, tensors: list[Tensor], text: str, numbers: Sequence[float], sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        if computes_forward_gradients():  # not called by the autograd.Function, but by an exported program
            raise self.unsupported_derivative("a derivative in forward mode of an exported program", "an eager call")
        return self._forward(tensors, text, numbers, sizes)

    def _forward(
        self, tensors: list[Tensor], text: str, numbers: Sequence[float], sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        # Contiguous, because compiled programs rely on the strides of the fake results.
        return tuple(
            x.contiguous() for x in self.functions.forward(*unflatten(tensors, Constants(text, numbers, sizes)))
        )

    def _backward(
        self,
        tensors: list[Tensor],
        text: str,
        numbers: Sequence[float],
        sizes: Sequence[int],
        saved: ForwardResults,
        d_results: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor]:
        problem, options = unflatten(tensors, Constants(text, numbers, sizes))
        num_pair = 2 + len(problem.pair.parameters())
        has_bias = problem.bias is not None
        needed = Needs(needs[:num_pair], needs[num_pair], has_bias and needs[num_pair + 1])
        d_output, d_log_mass = d_results
        found = self.functions.backward(problem, options, saved, d_output, d_log_mass, needed)
        grads = [*found.pair, found.value, *([found.bias] if has_bias else [])]
        grads += [None] * (len(tensors) - len(grads))
        return [
            _no_gradient(tensor) if grad is None or not need else grad.to(tensor.dtype).contiguous()
            for grad, tensor, need in zip(grads, tensors, needs, strict=True)
        ]

    def _fake_forward(self, tensors, text, numbers, sizes):
        problem, options = unflatten(tensors, Constants(text, numbers, sizes))
        value, batch, dtype = problem.value, problem.full_batch, accumulation_dtype(problem.value.dtype)
        output = value.new_empty(*batch, problem.queries, value.shape[-1])
        shapes = [(*batch, problem.queries), *self.functions.kept_shapes(problem, options)]
        return output, *(value.new_empty(shape, dtype=dtype) for shape in shapes)

    def _autograd_backward(self, ctx, *d_results):
        results, tensors = _split_saved(ctx)
        needs = list(ctx.needs_input_grad[0])
        constants = ctx.constants
        arguments = tensors, constants.text, constants.numbers, constants.sizes
        found = self.backward(*arguments, results, list(d_results[:2]), needs)
        # torch treats an empty list argument as a list of tensors and then expects a list as its gradient.
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
            constants, *tensors = inputs
            _save(ctx, constants, tensors, output)
            ctx.save_for_forward(*output, *tensors)
            ctx.mark_non_differentiable(*output[2:])
            ctx.set_materialize_grads(False)  # zeros for the kept tensors would be as large as those tensors

        @staticmethod
        def jvp(ctx, *tangents):
            results, tensors = _split_saved(ctx)
            function, operands, other_tensors = operator.equations(tensors, ctx.constants)
            tangents = _zeros_for_none(tangents[1 : 1 + len(operands)], operands)
            pushforward = higher_order.Pushforward(function)
            found = higher_order.differentiable(pushforward, [*operands, *tangents], other_tensors)
            return *found, *(None for _ in results[2:])

        @staticmethod
        def backward(ctx, *grads):
            needs = list(ctx.needs_input_grad[1:])
            results, tensors = _split_saved(ctx)
            d_results = [
                torch.zeros_like(x) if grad is None else grad for grad, x in zip(grads[:2], results[:2], strict=True)
            ]
            if any(is_legacy_batched(grad) for grad in d_results):
                raise operator.unsupported_batched_gradients()
            if torch.is_grad_enabled() or not _is_plain([*results, *tensors, *d_results]):
                call = BackwardCall(ctx.constants, needs, len(results))
                found = Backward.apply(call, *results, *d_results, *tensors)
            else:
                found = operator.call_backward(tensors, ctx.constants, results, d_results, needs)
            return None, *_only_needed(found, needs)

    class Backward(torch.autograd.Function):
        """The backward pass as a function of its own. Its derivatives are those of the plain equations."""

        generate_vmap_rule = True

        @staticmethod
        def forward(call, *given):
            results, d_results, tensors = call.split(given)
            return tuple(operator.call_backward(tensors, call.constants, results, d_results, call.needs))

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.call, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, *grads):
            gradient, inputs, others, num_operands = operator.gradient_equations(ctx.call, ctx.saved_tensors)
            grads = _zeros_for_none(grads[:num_operands], inputs)
            pullback = higher_order.Pullback(gradient, len(inputs))
            found = higher_order.differentiable(pullback, [*inputs, *grads], others)
            of_results = [None] * ctx.call.num_results
            of_tensors = [*found[:num_operands], *(None for _ in others)]
            return None, *of_results, *found[num_operands : len(inputs)], *of_tensors

        @staticmethod
        def jvp(ctx, *tangents):
            gradient, inputs, others, num_operands = operator.gradient_equations(ctx.call, ctx.saved_tensors)
            _, of_d_results, of_tensors = ctx.call.split(tangents[1:])
            directions = _zeros_for_none([*of_tensors[:num_operands], *of_d_results], inputs)
            found = higher_order.differentiable(higher_order.Pushforward(gradient), [*inputs, *directions], others)
            found = [x if need else _no_gradient(x) for x, need in zip(found, ctx.call.needs, strict=False)]
            return *found, *(None for _ in others)

    # `apply` binds its arguments to the signature of `forward`, and finding that takes a tenth of a short call.
    for function in (Forward, Backward):
        setattr(function.forward, "__signature__", inspect.signature(function.forward))  # noqa: B010 - for pyrefly
    return Forward


def _setup_context(ctx, inputs, output) -> None:
    """Save what the derivative of the custom operator needs."""
    tensors, *constants = inputs
    _save(ctx, Constants(*constants), tensors, output)


def _save(ctx: Any, constants: Constants, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Save the constants and tensors of a problem and its results for the backward pass."""
    ctx.constants = constants
    ctx.num_results = len(results)
    ctx.save_for_backward(*results, *tensors)


def _split_saved(ctx: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the results and tensors that `_save` saved.

    `saved_tensors` is read once, because activation checkpointing allows no more.
    """
    saved = ctx.saved_tensors
    return list(saved[: ctx.num_results]), list(saved[ctx.num_results :])


def _zeros_for_none(given: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(x) if tensor is None else tensor for tensor, x in zip(given, like, strict=False)]


def _fake_backward(tensors, text, numbers, sizes, saved, d_results, needs):
    del text, numbers, sizes, saved, d_results
    return [
        tensor.new_empty(tensor.shape) if need else _no_gradient(tensor)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


def _no_gradient(like: Tensor) -> Tensor:
    """Return an empty tensor instead of a gradient that is not needed. A custom operator cannot return None."""
    return like.new_empty(0)


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Return whether nothing traces, transforms or intercepts a call with these tensors."""
    return not is_traced() and all(is_plain_tensor(tensor) for tensor in tensors)


def _only_needed(grads: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradients that are needed, and None instead of the empty tensors."""
    return [grad if need else None for grad, need in zip(grads, needs, strict=True)]


def _move_to_front(tensors: Sequence[Tensor], dims: Sequence[int | None], size: int) -> list[Tensor]:
    """Move the mapped axis of each tensor to the front; give a tensor without one an axis of this size there."""
    return [
        x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)
    ]
