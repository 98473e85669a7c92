"""The backend "blocked": tiles and online softmax on any device, with memory linear in tokens in both directions."""

from collections.abc import Sequence
from typing import NamedTuple

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
from regard.backends.custom_op import ForwardResults, Gradients, Needs, Operator, OperatorFunctions, Shapes
from regard.backends.encoding import Options
from regard.checks import accumulation_dtype, has_empty_input, needs_grad
from regard.scores.additive import AdditivePair
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.torch_compat import has_saved_tensor_hooks, is_exporting, is_traced


class Blocked(Backend):
    """Runs closed-form scores tile by tile, and callables in blocks of queries."""

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


class BlockedOptions(NamedTuple):
    """What is decided about a problem before it runs.

    Attributes:
        uses_loops: whether additive scores may use compiled loops.
        can_keep_scores: whether scores may be kept for a backward pass.
    """

    uses_loops: bool
    can_keep_scores: bool


def _choose(problem: Problem) -> BlockedOptions:
    uses_loops = isinstance(problem.pair, AdditivePair) and torch.compiler.is_compiling() and not is_exporting()
    # Do not keep scores while tracing, where the fake kernel would fix one shape for all sizes, or under activation
    # checkpointing, whose recomputation must save the same tensors.
    can_keep = uses_loops or not (is_traced() or has_saved_tensor_hooks())
    return BlockedOptions(uses_loops, can_keep and needs_grad(*problem.operands()))


def _forward(problem: Problem, options: Options) -> ForwardResults:
    uses_loops, can_keep_scores = BlockedOptions(*options)
    no_needs = [False] * (2 + len(problem.pair.parameters()))
    with full_precision(problem.value.device):
        output, log_mass, kept = softmax.forward(*_prepare(problem, no_needs, uses_loops), can_keep_scores)
    return output.to(problem.value.dtype), log_mass, kept


def _kept_shapes(problem: Problem, options: Options) -> Shapes:
    batch = problem.full_batch
    shape = (*batch, problem.queries, problem.keys)
    return [shape if softmax.keeps_scores(BlockedOptions(*options).can_keep_scores, shape) else (*batch, 0)]


def _backward(
    problem: Problem, options: Options, results: ForwardResults, d_output: Tensor, d_log_mass: Tensor, needs: Needs
) -> Gradients:
    with full_precision(problem.value.device):
        tile_scores, tiled = _prepare(problem, needs.pair, BlockedOptions(*options).uses_loops)
        return softmax.backward(tile_scores, tiled, results, d_output, d_log_mass, needs)


def _prepare(problem: Problem, needs: Sequence[bool], uses_loops: bool) -> tuple[TileScores, softmax.TiledProblem]:
    """Return the scores of a problem and its other parts, ready to be computed tile by tile.

    Args:
        problem: the problem.
        needs: which of query, key and parameters need a gradient.
        uses_loops: whether additive scores may use compiled loops.
    """
    tile_scores = _tile_scores(problem, needs, uses_loops)
    return tile_scores, softmax.TiledProblem.of(problem, tile_scores.tile_factor)


def _tile_scores(problem: Problem, needs: Sequence[bool], uses_loops: bool) -> TileScores:
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
    OperatorFunctions(_forward, _backward, _choose, _kept_shapes, num_kept=1),
    backend="blocked",
)
