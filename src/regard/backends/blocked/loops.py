"""Additive tiles as loops over pairs and hidden units, which torch.compile writes in C++.

Plain operations store an r for each pair and unit; a loop has it in a register. A compiler takes seconds: only calls
from a program that is compiled itself come here (`operator.Statics`).
"""

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType

import torch
from torch import Tensor

from regard.backends.blocked.additive import AdditiveTiles
from regard.torch_compat import below_autograd, has_cpp_compiler

Loop = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]

# Batch, queries, keys and hidden units that a loop is compiled at: primes, lest two sizes are taken for one, and large
# enough that its rows are worth sharing among the cores.
EXAMPLE = (3, 509, 251, 127)


@cache
def has_compiler() -> bool:
    """Whether torch.compile finds a C++ compiler that works."""
    return has_cpp_compiler()


class LoopTiles(AdditiveTiles):
    """A division for each pair and hidden unit."""

    def identity_scores(self, rows: slice, cols: slice) -> Tensor:
        """sum_h w_h (1 - 2 r_h)."""
        (scores,) = self._run(_scores, self.u[..., rows, :], self.v[..., cols, :], self.weight)
        return scores

    def identity_backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """da and dw from sums over keys, db from the same sums with queries and keys exchanged."""
        u, v = self.u[..., rows, :], self.v[..., cols, :]
        if self.needs[0] or self.needs[2]:
            slopes, tanhs = self._run(_pulls, u, v, grad)
            self.add(0, rows, slopes.mul_(self.weight))
            self.add(2, slice(None), tanhs.sum(-2, keepdim=True))
        if self.needs[1]:
            slopes, _ = self._run(_pulls, v, u, grad.mT)
            self.add(1, cols, slopes.mul_(self.weight))

    def _run(self, loop: Loop, *tensors: Tensor) -> list[Tensor]:
        """A loop at one batch axis, with shared axes at full size and everything in the order of memory."""
        size = math.prod(self.batch)
        # By way of one axis: an axis of size 1 may have any stride, and torch would take another for another program.
        flat = [x.expand(*self.batch, *x.shape[-2:]).reshape(-1).view(size, *x.shape[-2:]) for x in tensors]
        return [x.view(*self.batch, *x.shape[-2:]) for x in run(loop, *flat)]


def _scores(u: Tensor, v: Tensor, weight: Tensor) -> tuple[Tensor]:
    """u (batch, queries, hidden), v (batch, keys, hidden), weight (batch, 1, hidden) -> (batch, queries, keys)."""
    return ((weight.unsqueeze(-2) * (1 - 2 * _r(u, v))).sum(-1),)


def _pulls(u: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over keys of grad tanh' and of grad tanh, (batch, queries, hidden) each; grad (batch, queries, keys)."""
    r, grad = _r(u, v), grad.unsqueeze(-1)
    return (grad * (4 * (r - r * r))).sum(-2), (grad * (1 - 2 * r)).sum(-2)


def _r(u: Tensor, v: Tensor) -> Tensor:
    """u / (u + v), (batch, queries, keys, hidden); r - r^2 is the same for v / (v + u)."""
    u, v = u.unsqueeze(-2), v.unsqueeze(-3)
    return u / (u + v)


def run(loop: Loop, u: Tensor, v: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """A loop at any sizes; torch takes a size of 1 for another program."""
    ones = tuple(size == 1 for size in (*u.shape[:2], v.shape[1], u.shape[2]))
    with below_autograd():
        return _compiled(loop, u.dtype, ones)(u.detach(), v.detach(), other.detach())


@cache
def _compiled(loop: Loop, dtype: torch.dtype, ones: tuple[bool, ...]) -> Loop:
    """The loop as a program for all sizes that are not 1 where the example's are not.

    It is compiled from a copy: torch counts the programs of a function, and there are many kinds.
    """
    batch, queries, keys, hidden = (1 if one else size for one, size in zip(ones, EXAMPLE, strict=True))
    assert isinstance(loop, FunctionType)
    program = torch.compile(FunctionType(loop.__code__.replace(), loop.__globals__), dynamic=True)
    shape = (batch, 1, hidden) if loop is _scores else (batch, queries, keys)
    program(*(torch.ones(at, dtype=dtype) for at in ((batch, queries, hidden), (batch, keys, hidden), shape)))
    return program
