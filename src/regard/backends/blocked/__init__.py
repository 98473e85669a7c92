"""The backend "blocked": tiles and online softmax on any device, with memory linear in tokens in both directions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends import row_blocks
from regard.backends.base import Backend, Need, Plan, Problem, Refusal, Result, full_precision
from regard.backends.blocked import softmax
from regard.backends.blocked.additive import (
    ChunkedAdditive,
    CompiledAdditive,
    can_compile_loops,
    is_within_tolerance,
    tanh_error,
)
from regard.backends.blocked.scores import DistanceScores, DotScores, TileScores
from regard.backends.custom_op import Gradients, Kernels, Needs, Operator, Saved, Shapes
from regard.backends.encoding import Options, batch_of
from regard.checks import accumulation_dtype, has_empty_input, needs_grad
from regard.scores.additive import AdditivePair
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.torch_compat import has_saved_tensor_hooks, is_exporting, is_traced


class Blocked(Backend):
    """Runs every problem that is not empty, tile by tile."""

    name = "blocked"

    def plan(self, problem: Problem, need: Need) -> Plan | Refusal:
        """Return a plan, or a refusal for empty inputs and for weights."""
        if need == "weights":
            return self.refuse("it does not return weights")
        if has_empty_input(problem.pair.query, problem.pair.key, problem.value):
            return self.refuse("an input is empty")
        has_tiles = isinstance(problem.pair, DotPair | DistancePair | AdditivePair)
        return Plan(self.name, _run if has_tiles and not callable(problem.bias) else row_blocks.run)

    def error_bound(self, problem: Problem) -> str:
        """Return the promised error of one score."""
        dtype = problem.pair.query.dtype
        if isinstance(problem.pair, AdditivePair) and is_within_tolerance(problem.tolerance, dtype):
            return problem.additive_bound(tanh_error(dtype))
        return super().error_bound(problem)


def _run(problem: Problem) -> Result:
    with full_precision(problem.value.device):
        return OPERATOR.run(problem)


def _choose(problem: Problem) -> Options:
    """Return whether compiled loops may be used, and whether scores are kept for a backward pass."""
    uses_loops = isinstance(problem.pair, AdditivePair) and torch.compiler.is_compiling() and not is_exporting()
    # A traced call is told the same shapes at any size, and activation checkpointing expects the same tensors twice.
    can_keep = uses_loops or not (is_traced() or has_saved_tensor_hooks())
    return uses_loops, can_keep and needs_grad(*problem.operands())


def _forward(problem: Problem, options: Options) -> Saved:
    uses_loops, keep = options
    with full_precision(problem.value.device):
        scores = _tile_scores(problem, [False] * (2 + len(problem.pair.parameters())), uses_loops=uses_loops)
        loop = softmax.TileLoop.of(problem, scores.tile_factor)
        output, log_mass, kept = softmax.forward(scores, loop, keep)
    return output.to(problem.value.dtype), log_mass, kept


def _kept_shapes(problem: Problem, options: Options) -> Shapes:
    _, keep = options
    batch = batch_of(problem)
    shape = (*batch, problem.queries, problem.keys)
    return [shape if softmax.keeps_scores(keep, shape) else (*batch, 0)]


def _backward(
    problem: Problem, options: Options, saved: Saved, d_output: Tensor, d_log_mass: Tensor, needs: Needs
) -> Gradients:
    uses_loops, _ = options
    with full_precision(problem.value.device):
        scores = _tile_scores(problem, needs.pair, uses_loops=uses_loops)
        loop = softmax.TileLoop.of(problem, scores.tile_factor)
        return softmax.backward(scores, loop, saved, d_output, d_log_mass, needs)


def _tile_scores(problem: Problem, needs: Sequence[bool], *, uses_loops: bool) -> TileScores:
    """Return the tile scores of a problem.

    Args:
        problem: the problem.
        needs: which of query, key and parameters need a gradient.
        uses_loops: whether additive scores may use compiled loops.
    """
    pair = problem.pair
    dtype = accumulation_dtype(pair.query.dtype)
    operands = [tensor.to(dtype) for tensor in (pair.query, pair.key, *pair.parameters())]
    if isinstance(pair, DotPair):
        return DotScores(pair, operands, needs)
    if isinstance(pair, DistancePair):
        return DistanceScores(pair, operands, needs)
    use_tanh = not is_within_tolerance(problem.tolerance, pair.query.dtype)
    if uses_loops and pair.query.device.type == "cpu" and can_compile_loops():
        return CompiledAdditive(operands, needs, use_tanh=use_tanh)
    return ChunkedAdditive(operands, needs, use_tanh=use_tanh)


OPERATOR = Operator(
    "blocked",
    Kernels(_forward, _backward, _choose, _kept_shapes, num_kept=1),
    backend="blocked",
)
