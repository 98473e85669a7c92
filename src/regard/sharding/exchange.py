"""Blocks of queries of one rank and keys of another, computed forward and backward as one autograd function.

Either keys and values move past the queries, or queries move past the keys and their result is sent back. For the
backward pass a rank keeps its own tokens, output and log_mass, and no tensor of another rank: all tensors move once
more and blocks are recomputed. Any backend may run a block.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention import Attended, merge
from regard.backends.base import Bias, Problem
from regard.checks import accumulation_dtype
from regard.masks.bound import narrow_pairs
from regard.sharding.layout import Layout, local_spans
from regard.sharding.ring import Tensors, pass_around

TOKENS = ("query", "key", "value")
MOVING_TENSORS = {"keys": ("key", "value"), "queries": ("query",)}


class Route(NamedTuple):
    """How tensors move.

    Attributes:
        moving: "keys" (with their values) or "queries".
        hops: number of hops.
    """

    moving: str
    hops: int


class Block(NamedTuple):
    """Prepared queries of one rank, and prepared keys and values of one rank.

    Attributes:
        query_rank: the rank that the queries belong to.
        query: (*batch, queries of that rank, dim).
        key_rank: the rank that the keys belong to.
        key: (*batch, keys of that rank, dim).
        value: (*batch, keys of that rank, value_dim).
    """

    query_rank: int
    query: Tensor
    key_rank: int
    key: Tensor
    value: Tensor


class OutputGrads(NamedTuple):
    """What the backward pass needs for each query: dO, log_mass L over all keys, and the mean dO'O - dL.

    Attributes:
        d_output: (*batch, queries, value_dim).
        log_mass: (*batch, queries, 1).
        mean: (*batch, queries, 1).
    """

    d_output: Tensor
    log_mass: Tensor
    mean: Tensor


class ShardedProblem(NamedTuple):
    """A call on all ranks.

    Shards that consist of several spans of the sequence are computed span by span, and pairs of spans that the mask
    forbids are skipped.

    Attributes:
        layout: which tokens each rank holds.
        problem: of this rank's tokens, with the mask and the bias of the whole sequences.
        backend: the backend that runs each block, or "auto".
    """

    layout: Layout
    problem: Problem
    backend: str

    def with_parameters(self, bias: Tensor | None, parameters: Sequence[Tensor]) -> "ShardedProblem":
        """Return the problem with other parameters of the score and, unless it is None, another bias."""
        pair = self.problem.pair
        pair = pair.replace(pair.query, pair.key, *parameters)
        return self._replace(problem=self.problem._replace(pair=pair, bias=self.problem.bias if bias is None else bias))

    def without_tokens(self) -> "ShardedProblem":
        """Return the problem with the shapes of this rank's tokens only, so that it keeps no autograd graph alive."""
        pair, value = self.problem.pair, self.problem.value
        query, key, value = (tensor.detach().to("meta") for tensor in (pair.query, pair.key, value))
        pair = pair.replace(query, key, *pair.parameters())
        return self._replace(problem=self.problem._replace(pair=pair, value=value))

    def attend(self, block: Block) -> Attended:
        """Return output (*batch, queries, value_dim) and log_mass (*batch, queries), in the accumulation dtype."""
        dtype = accumulation_dtype(block.value.dtype)
        parts = [] if block.query.shape[-2] else [self._without_keys(block.value, 0, dtype)]
        for local, rows in local_spans(self.layout.query_spans[block.query_rank]):
            found = [Attended.of(problem, self.backend) for problem in self._problems(block, local, rows)]
            found = [Attended(part.output.to(dtype), part.log_mass) for part in found]
            parts.append(merge(found) if found else self._without_keys(block.value, rows.stop - rows.start, dtype))
        if len(parts) == 1:
            return parts[0]
        return Attended(torch.cat([x.output for x in parts], -2), torch.cat([x.log_mass for x in parts], -1))

    def gradients(self, block: Block, inputs: Sequence[Tensor], grads: OutputGrads) -> list[Tensor | None]:
        """Return the gradients of tensors that a block depends on; the block is recomputed.

        With o and l the output and log_mass over the keys of the block, and share = e^(l - L), the gradient of o is
        share dO, and the gradient of l is share (dO'o - mean). This is the derivative of `merge`.

        Args:
            block: its tensors are leaves of the graph.
            inputs: tensors among those of the block, the parameters and the bias.
            grads: for the queries of the block.
        """
        with torch.enable_grad():
            part = self.attend(block)
        if not part.output.requires_grad:
            return [None] * len(inputs)
        d_output, log_mass, mean = grads
        share = (part.log_mass.detach().unsqueeze(-1) - log_mass.masked_fill(log_mass == -math.inf, 0.0)).exp()
        d_part = share * d_output
        d_part_log_mass = (d_part * part.output.detach()).sum(-1) - (share * mean).squeeze(-1)
        pairs = [(part.output, d_part), (part.log_mass, d_part_log_mass)]
        outputs, d_outputs = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
        return list(torch.autograd.grad(outputs, inputs, d_outputs, allow_unused=True))

    def _problems(self, block: Block, local_rows: slice, rows: slice) -> Iterator[Problem]:
        """Yield the problems of one span of queries and each span of keys that it may attend to."""
        mask, bias = self.problem.mask, self.problem.bias
        for local_cols, cols in local_spans(self.layout.key_spans[block.key_rank]):
            coverage = None if mask is None else mask.coverage(rows, cols)
            if coverage is False:
                continue
            query, key = block.query[..., local_rows, :], block.key[..., local_cols, :]
            yield self.problem._replace(
                pair=self.problem.pair.replace(query, key, *self.problem.pair.parameters()),
                value=block.value[..., local_cols, :],
                mask=None if mask is None or coverage else mask.restrict(rows, cols),
                bias=_restrict_bias(bias, rows, cols),
            )

    def _without_keys(self, value: Tensor, queries: int, dtype: torch.dtype) -> Attended:
        """Return the record of queries that attend to no key."""
        shape = (*self.problem.batch, queries)
        output = value.new_zeros((*shape, value.shape[-1]), dtype=dtype)
        return Attended(output, value.new_full(shape, -math.inf, dtype=dtype))


def run(sharded: ShardedProblem, route: Route, callable_parameters: tuple[Tensor, ...]) -> Attended:
    """Return the record of this rank's queries over the keys of all ranks, differentiable once.

    Args:
        sharded: the problem.
        route: what moves.
        callable_parameters: parameters of a score or a bias that is a callable.
    """
    problem = sharded.problem
    bias = problem.bias if isinstance(problem.bias, Tensor) else None
    parameters = problem.pair.parameters()
    tokens = (problem.pair.query, problem.pair.key, problem.value)
    detached = sharded.with_parameters(None if bias is None else bias.detach(), [x.detach() for x in parameters])
    arguments = (detached.without_tokens(), route, callable_parameters)
    return Attended(*_Sharded.apply(*arguments, *tokens, bias, *parameters, *callable_parameters))


class _Sharded(torch.autograd.Function):
    """Output in the dtype of value, and log_mass, of this rank's prepared query, key and value."""

    @staticmethod
    def forward(ctx, sharded, route, callable_parameters, query, key, value, bias, *parameters):
        found = forward(sharded, route, query, key, value)
        output = found.output.to(value.dtype)
        ctx.sharded, ctx.route, ctx.callable_parameters = sharded, route, callable_parameters
        pair_parameters = parameters[: len(parameters) - len(callable_parameters)]
        ctx.save_for_backward(query, key, value, bias, output, found.log_mass, *pair_parameters)
        return output, found.log_mass

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyrefly: ignore
        d_output, d_log_mass = grads
        query, key, value, bias, output, log_mass, *parameters = ctx.saved_tensors
        needs, dtype = ctx.needs_input_grad[3:], log_mass.dtype
        names = [*TOKENS, "bias", *(f"parameter {i}" for i in range(len(needs) - 4))]
        tensors = [query, key, value, bias, *parameters]
        leaves = {
            name: tensor.detach().requires_grad_(need)
            for name, tensor, need in zip(names, tensors, needs, strict=False)
            if tensor is not None
        }
        first = 4 + len(parameters)
        sharded = ctx.sharded.with_parameters(leaves.get("bias"), [leaves[name] for name in names[4:first]])
        # A callable uses its own parameters, so they cannot be replaced by detached copies.
        leaves |= dict(zip(names[first:], ctx.callable_parameters, strict=True))
        mean = (d_output.to(dtype) * output.to(dtype)).sum(-1, keepdim=True) - d_log_mass.unsqueeze(-1)
        found = backward(sharded, ctx.route, leaves, OutputGrads(d_output, log_mass.unsqueeze(-1), mean))
        return (None, None, None, *(found[name].to(leaves[name].dtype) if name in found else None for name in names))


def forward(sharded: ShardedProblem, route: Route, query: Tensor, key: Tensor, value: Tensor) -> Attended:
    """Return output and log_mass of this rank's queries over the keys of all ranks, in the accumulation dtype.

    Args:
        sharded: the problem; its own tokens are not used.
        route: what moves.
        query: (*batch, own queries, dim), prepared.
        key: (*batch, own keys, dim), prepared.
        value: (*batch, own keys, value_dim).
    """
    layout, rank = sharded.layout, sharded.layout.ring.rank
    if route.moving == "queries":

        def attend_moving(owner: int, tensors: Tensors) -> Tensors:
            return _to_tensors(sharded.attend(Block(owner, tensors[0], rank, key, value)))

        return _from_tensors(
            pass_around(layout.ring, route.hops, layout.queries, [query], attend_moving, _merge_tensors)
        )
    total: Attended | None = None

    def attend_own(owner: int, tensors: Tensors) -> Tensors:
        nonlocal total
        total = _add_keys(total, sharded.attend(Block(rank, query, owner, *tensors)))
        return []

    pass_around(layout.ring, route.hops, layout.keys, [key, value], attend_own, _merge_tensors)
    assert total is not None
    return total


def backward(sharded: ShardedProblem, route: Route, leaves: dict[str, Tensor], grads: OutputGrads) -> dict[str, Tensor]:
    """Return the gradients of all leaves that require one, by name, in the accumulation dtype.

    The gradients of tensors that move return to their owner. The gradients of tensors that stay (queries or keys and
    values, the bias and the parameters) are summed on this rank over the pairs that it computes.

    Args:
        sharded: the problem, with the leaves as bias and parameters.
        route: what moves.
        leaves: "query", "key" and "value" of this rank, and all other tensors that the problem depends on.
        grads: for the queries of this rank.
    """
    layout, dtype = sharded.layout, grads.log_mass.dtype
    rank, keys_move = layout.ring.rank, route.moving == "keys"
    moving = MOVING_TENSORS[route.moving]
    wanted_moving = [name for name in moving if leaves[name].requires_grad]
    wanted_staying = [name for name, leaf in leaves.items() if leaf.requires_grad and name not in moving]
    wanted = wanted_staying + wanted_moving
    sums = {name: torch.zeros_like(leaves[name], dtype=dtype) for name in wanted_staying}

    def differentiate(owner: int, tensors: Tensors) -> Tensors:
        named = zip(moving, tensors, strict=False)
        present = leaves | {name: tensor.detach().requires_grad_(name in wanted_moving) for name, tensor in named}
        query_rank, key_rank = (rank, owner) if keys_move else (owner, rank)
        block = Block(query_rank, present["query"], key_rank, present["key"], present["value"])
        block_grads = grads if keys_move else OutputGrads(*tensors[1:])
        gradients = sharded.gradients(block, [present[name] for name in wanted], block_grads)
        found = dict(zip(wanted, gradients, strict=True))
        for name in wanted_staying:
            if (grad := found[name]) is not None:
                sums[name] += grad
        return [_or_zeros(found[name], present[name], dtype) for name in wanted_moving]

    tensors = [leaves["key"], leaves["value"]] if keys_move else [leaves["query"], *grads]
    sizes = layout.keys if keys_move else layout.queries
    d_moving = pass_around(layout.ring, route.hops, sizes, tensors, differentiate, _add_in_place)
    return sums | dict(zip(wanted_moving, d_moving, strict=True))


def _add_keys(total: Attended | None, part: Attended) -> Attended:
    """Return the record over the keys of both records."""
    return part if total is None else merge([total, part])


def _merge_tensors(left: Tensors, right: Tensors) -> Tensors:
    return _to_tensors(_add_keys(_from_tensors(left), _from_tensors(right)))


def _to_tensors(record: Attended) -> Tensors:
    """Return output and log_mass with the queries on axis -2, as `pass_around` needs them."""
    return [record.output, record.log_mass.unsqueeze(-1)]


def _from_tensors(tensors: Tensors) -> Attended:
    return Attended(tensors[0], tensors[1].squeeze(-1))


def _add_in_place(left: Tensors, right: Tensors) -> Tensors:
    return [one.add_(other) for one, other in zip(left, right, strict=True)]


def _or_zeros(grad: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(like, dtype=dtype) if grad is None else grad.to(dtype)


def _restrict_bias(bias: Bias | None, rows: slice, cols: slice) -> Bias | None:
    """Return the bias of a block; a callable gets positions in the whole sequence."""
    if bias is None or isinstance(bias, Tensor):
        return None if bias is None else narrow_pairs(bias, rows, cols)
    return lambda query, key: bias(query + rows.start, key + cols.start)
