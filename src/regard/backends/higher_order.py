"""Derivatives that kernels do not have: second and higher orders, and forward mode, of every closed form and mask.

Kernels compute a problem and its first backward pass. Every other derivative is that of the plain equations
(`reference.attention`), one block of queries after the other, so memory is linear in tokens. No derivative is written
by hand: a `Pullback` is the backward pass of a function, a `Pushforward` its directional derivative, and both are
functions of the same kind, so they nest to any order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.backends.reference import attention
from regard.backends.row_blocks import row_blocks
from regard.torch_compat import without_forward_gradients

Tensors = Sequence[Tensor]


class BlockFunction(ABC):
    """A function of tensors that is computed in blocks of queries.

    Attributes:
        row_axes: the axis of queries of each result, along which the results of blocks are joined; None if all results
            are sums over queries.
    """

    row_axes: Sequence[int] | None

    @abstractmethod
    def compute(self, rows: slice, inputs: Tensors, other_tensors: Tensors) -> Tensors:
        """Return the results of one block of queries.

        Args:
            rows: the queries.
            inputs: the whole tensors by which the function can be differentiated.
            other_tensors: the tensors by which it cannot be differentiated.
        """

    @abstractmethod
    def blocks(self, inputs: Tensors, other_tensors: Tensors) -> list[slice]:
        """Return blocks of queries that are small enough to materialise."""


@dataclass
class Equations(BlockFunction):
    """Output and log mass of a problem as a function of its operands (eq. 1 and 3).

    Attributes:
        make_problem: takes the tensors of a problem and returns the problem.
    """

    make_problem: Callable[[Tensors], Problem]
    row_axes = (-2, -1)

    def compute(self, rows: slice, inputs: Tensors, other_tensors: Tensors) -> Tensors:
        """Return output and log mass of these queries."""
        output, log_mass, _ = attention(self.make_problem([*inputs, *other_tensors]), rows)
        assert log_mass is not None
        return output, log_mass

    def blocks(self, inputs: Tensors, other_tensors: Tensors) -> list[slice]:
        """Return blocks of the size that `row_blocks` has for plain equations."""
        return row_blocks(self.make_problem([*inputs, *other_tensors]))


@dataclass
class Pullback(BlockFunction):
    """The backward pass of a function. Its inputs are those of the function and a gradient for each of its results.

    Attributes:
        function: the function.
        num_inputs: number of inputs of the function.
    """

    function: BlockFunction
    num_inputs: int
    row_axes = None

    def compute(self, rows: slice, inputs: Tensors, other_tensors: Tensors) -> Tensors:
        """Return the gradients of the inputs that come from these queries."""
        own, gradients = inputs[: self.num_inputs], inputs[self.num_inputs :]
        if self.function.row_axes is not None:
            axes = zip(gradients, self.function.row_axes, strict=True)
            gradients = [gradient.narrow(axis, rows.start, rows.stop - rows.start) for gradient, axis in axes]
        return _vjp(lambda *own: self.function.compute(rows, own, other_tensors), own)[1](gradients)

    def blocks(self, inputs: Tensors, other_tensors: Tensors) -> list[slice]:
        """Return the blocks of the function."""
        return self.function.blocks(inputs[: self.num_inputs], other_tensors)


@dataclass
class Pushforward(BlockFunction):
    """The directional derivative of a function. Its inputs are those of the function and a direction for each.

    It is the backward pass of the backward pass, which is linear in the gradients. So no operation needs a rule for
    forward mode, and it also works inside `torch.autograd.forward_ad`, which cannot be nested.
    """

    function: BlockFunction

    def __post_init__(self) -> None:
        """Join results as the function does."""
        self.row_axes = self.function.row_axes

    def compute(self, rows: slice, inputs: Tensors, other_tensors: Tensors) -> Tensors:
        """Return the directional derivatives of the results."""
        own, directions = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
        results, pull = _vjp(lambda *own: self.function.compute(rows, own, other_tensors), own)
        _, push = _vjp(lambda *gradients: pull(gradients), [torch.zeros_like(result) for result in results])
        return push(directions)

    def blocks(self, inputs: Tensors, other_tensors: Tensors) -> list[slice]:
        """Return the blocks of the function."""
        return self.function.blocks(inputs[: len(inputs) // 2], other_tensors)


def _vjp(function: Callable[..., Tensors], inputs: Tensors) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    """Return the results of a function, and the function from gradients of the results to gradients of the inputs."""
    results, pull, *_ = torch.func.vjp(lambda *inputs: tuple(function(*inputs)), *inputs)
    return results, lambda gradients: pull(tuple(gradients))


def differentiable(function: BlockFunction, inputs: Tensors, other_tensors: Tensors) -> tuple[Tensor, ...]:
    """Return the results of a function, which have derivatives of every order.

    Args:
        function: the function.
        inputs: the tensors by which it can be differentiated.
        other_tensors: the tensors by which it cannot be differentiated.
    """
    return _Function.apply(function, len(inputs), *inputs, *other_tensors)


class _Function(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(function, num_inputs, *tensors):
        inputs, other_tensors = tensors[:num_inputs], tensors[num_inputs:]
        blocks = function.blocks(inputs, other_tensors)
        with without_forward_gradients():
            if function.row_axes is None:
                totals = function.compute(blocks[0], inputs, other_tensors)
                for rows in blocks[1:]:
                    found = function.compute(rows, inputs, other_tensors)
                    totals = [x + y for x, y in zip(totals, found, strict=True)]
                return tuple(totals)
            parts = [function.compute(rows, inputs, other_tensors) for rows in blocks]
        return tuple(torch.cat(x, axis) for x, axis in zip(zip(*parts, strict=True), function.row_axes, strict=True))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.function, ctx.num_inputs, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)
        ctx.num_tensors = len(tensors)

    @staticmethod
    def backward(ctx, *gradients):
        inputs, other_tensors, results = _saved(ctx)
        gradients = [torch.zeros_like(x) if grad is None else grad for grad, x in zip(gradients, results, strict=True)]
        found = differentiable(Pullback(ctx.function, ctx.num_inputs), [*inputs, *gradients], other_tensors)
        return None, None, *found[: ctx.num_inputs], *(None for _ in other_tensors)

    @staticmethod
    def jvp(ctx, *directions):
        inputs, other_tensors, _ = _saved(ctx)
        given = directions[2 : 2 + ctx.num_inputs]
        directions = [torch.zeros_like(x) if d is None else d for x, d in zip(inputs, given, strict=True)]
        return differentiable(Pushforward(ctx.function), [*inputs, *directions], other_tensors)


def _saved(ctx):
    """Return the saved inputs, other tensors and results."""
    saved = ctx.saved_tensors
    tensors, results = saved[: ctx.num_tensors], saved[ctx.num_tensors :]
    return tensors[: ctx.num_inputs], tensors[ctx.num_inputs :], results
