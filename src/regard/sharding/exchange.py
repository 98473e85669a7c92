"""Attention over the keys of all ranks as one autograd function, computed block by block.

A block has the queries of one rank and the keys of one rank, and any backend may compute it. Either keys and values
travel around the ranks, or queries travel and their results return. For the backward pass a rank saves its own tokens,
output and log_mass, and no tensor of another rank: all tensors travel once more, and blocks are recomputed.
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
TRAVELLING_TENSORS = {"keys": ("key", "value"), "queries": ("query",)}


class Route(NamedTuple):
    """Which tensors travel between ranks, and how far.

    Attributes:
        travel: "keys" (with their values) or "queries".
        hops: number of hops; each hop sends tensors to the next rank.
    """

    travel: str
    hops: int


class Block(NamedTuple):
    """The prepared queries of one rank, with the prepared keys and values of the same or another rank.

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
    """The tensors of queries that the backward pass needs.

    Attributes:
        d_output: (*batch, queries, value_dim), the gradient dO of the output O.
        log_mass: (*batch, queries, 1), the log mass L over the keys of all ranks.
        delta: (*batch, queries, 1), dO'O - dL.
    """

    d_output: Tensor
    log_mass: Tensor
    delta: Tensor


class ShardedProblem(NamedTuple):
    """The problem of a call on several ranks.

    A block is computed as one ordinary problem for each pair of a span of its queries and a span of its keys. Pairs of
    spans that the mask forbids are skipped.

    Attributes:
        layout: which tokens each rank holds.
        problem: the problem of this rank's tokens, with the mask and the bias of the whole sequences.
        backend: the backend that runs these problems, or "auto".
    """

    layout: Layout
    problem: Problem
    backend: str

    def with_parameters(self, bias: Tensor | None, parameters: Sequence[Tensor]) -> "ShardedProblem":
        """Return the problem with other parameters of the score and another bias.

        Args:
            bias: the new bias; None keeps the old one.
            parameters: the new parameters of the pair score.

        Returns:
            The new problem.
        """
        pair = self.problem.pair
        pair = pair.replace(pair.query, pair.key, *parameters)
        return self._replace(problem=self.problem._replace(pair=pair, bias=self.problem.bias if bias is None else bias))

    def without_tokens(self) -> "ShardedProblem":
        """Return the problem with meta tensors for this rank's tokens, so that it keeps no autograd graph alive."""
        pair, value = self.problem.pair, self.problem.value
        query, key, value = (tensor.detach().to("meta") for tensor in (pair.query, pair.key, value))
        pair = pair.replace(query, key, *pair.parameters())
        return self._replace(problem=self.problem._replace(pair=pair, value=value))

    def attend(self, block: Block) -> Attended:
        """Return output and log_mass of the queries of a block over its keys.

        Args:
            block: the tokens.

        Returns:
            The record, in the accumulation dtype and without weights.
        """
        dtype = accumulation_dtype(block.value.dtype)
        records = [] if block.query.shape[-2] else [self._empty_record(block.value, 0, dtype)]
        for local_rows, rows in local_spans(self.layout.query_spans[block.query_rank]):
            parts = [Attended.of(problem, self.backend) for problem in self._problems(block, local_rows, rows)]
            parts = [Attended(part.output.to(dtype), part.log_mass) for part in parts]
            records.append(merge(parts) if parts else self._empty_record(block.value, rows.stop - rows.start, dtype))
        if len(records) == 1:
            return records[0]
        return Attended(torch.cat([x.output for x in records], -2), torch.cat([x.log_mass for x in records], -1))

    def gradients(self, block: Block, inputs: Sequence[Tensor], grads: OutputGrads) -> list[Tensor | None]:
        """Recompute a block and return the gradients of tensors that it depends on.

        With o and l the output and log_mass over the keys of the block, and share = e^(l - L), the gradient of o is
        share dO, and the gradient of l is share (dO'o - delta). This is the derivative of `merge`.

        Args:
            block: its tensors are leaves of the graph.
            inputs: tensors among those of the block, the parameters and the bias.
            grads: the tensors of the queries of the block.

        Returns:
            A gradient for each input; None if the block does not depend on it.
        """
        with torch.enable_grad():
            record = self.attend(block)
        if not record.output.requires_grad:
            return [None] * len(inputs)
        d_output, log_mass, delta = grads
        share = (record.log_mass.detach().unsqueeze(-1) - log_mass.masked_fill(log_mass == -math.inf, 0.0)).exp()
        d_block_output = share * d_output
        d_block_log_mass = (d_block_output * record.output.detach()).sum(-1) - (share * delta).squeeze(-1)
        pairs = [(record.output, d_block_output), (record.log_mass, d_block_log_mass)]
        outputs, d_outputs = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
        return list(torch.autograd.grad(outputs, inputs, d_outputs, allow_unused=True))

    def _problems(self, block: Block, local_rows: slice, rows: slice) -> Iterator[Problem]:
        """Yield the problem of a span of queries with each span of keys that the mask does not forbid.

        Args:
            block: the tokens.
            local_rows: the span's place among the queries of its rank.
            rows: the span's place in the whole sequence.
        """
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

    def _empty_record(self, value: Tensor, queries: int, dtype: torch.dtype) -> Attended:
        """Return the record of queries without allowed keys."""
        shape = (*self.problem.batch, queries)
        output = value.new_zeros((*shape, value.shape[-1]), dtype=dtype)
        return Attended(output, value.new_full(shape, -math.inf, dtype=dtype))


def run(sharded: ShardedProblem, route: Route, callable_parameters: tuple[Tensor, ...]) -> Attended:
    """Return the record of this rank's queries over the keys of all ranks. It has first derivatives only.

    Args:
        sharded: the problem.
        route: which tensors travel.
        callable_parameters: parameters of callable scores and biases.

    Returns:
        The record, with the output in the dtype of value and without weights.
    """
    problem = sharded.problem
    bias = problem.bias if isinstance(problem.bias, Tensor) else None
    parameters = problem.pair.parameters()
    tokens = (problem.pair.query, problem.pair.key, problem.value)
    detached = sharded.with_parameters(None if bias is None else bias.detach(), [x.detach() for x in parameters])
    arguments = (detached.without_tokens(), route, callable_parameters)
    return Attended(*_ShardedFunction.apply(*arguments, *tokens, bias, *parameters, *callable_parameters))


class _ShardedFunction(torch.autograd.Function):
    """Computes output, in the dtype of value, and log_mass of this rank's queries."""

    @staticmethod
    def forward(ctx, sharded, route, callable_parameters, query, key, value, bias, *parameters):
        """Save this rank's tensors and return output and log_mass; `parameters` ends with `callable_parameters`."""
        record = attend_all_keys(sharded, route, query, key, value)
        output = record.output.to(value.dtype)
        ctx.sharded, ctx.route, ctx.callable_parameters = sharded, route, callable_parameters
        pair_parameters = parameters[: len(parameters) - len(callable_parameters)]
        ctx.save_for_backward(query, key, value, bias, output, record.log_mass, *pair_parameters)
        return output, record.log_mass

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):  # pyrefly: ignore
        """Return the gradients of the tensors that `forward` takes, and None for its other arguments."""
        d_output, d_log_mass = grads
        query, key, value, bias, output, log_mass, *parameters = ctx.saved_tensors
        needs_grad, dtype = ctx.needs_input_grad[3:], log_mass.dtype
        names = [*TOKENS, "bias", *(f"parameter {i}" for i in range(len(needs_grad) - 4))]
        tensors = [query, key, value, bias, *parameters]
        # Not strict: `names` and `needs_grad` go on with the parameters of callables.
        leaves = {
            name: tensor.detach().requires_grad_(needed)
            for name, tensor, needed in zip(names, tensors, needs_grad, strict=False)
            if tensor is not None
        }
        pair_names, callable_names = names[4 : 4 + len(parameters)], names[4 + len(parameters) :]
        sharded = ctx.sharded.with_parameters(leaves.get("bias"), [leaves[name] for name in pair_names])
        # A callable uses its own parameters, so they cannot be replaced by detached copies.
        leaves |= dict(zip(callable_names, ctx.callable_parameters, strict=True))
        delta = (d_output.to(dtype) * output.to(dtype)).sum(-1, keepdim=True) - d_log_mass.unsqueeze(-1)
        grads = OutputGrads(d_output, log_mass.unsqueeze(-1), delta)
        d_leaves = leaf_gradients(sharded, ctx.route, leaves, grads)
        gradients = (d_leaves[name].to(leaves[name].dtype) if name in d_leaves else None for name in names)
        return None, None, None, *gradients


def attend_all_keys(sharded: ShardedProblem, route: Route, query: Tensor, key: Tensor, value: Tensor) -> Attended:
    """Return output and log_mass of this rank's queries over the keys of all ranks.

    Args:
        sharded: the problem; its tokens are not used.
        route: which tensors travel.
        query: (*batch, own queries, dim), prepared.
        key: (*batch, own keys, dim), prepared.
        value: (*batch, own keys, value_dim).

    Returns:
        The record, in the accumulation dtype and without weights.
    """
    layout, rank = sharded.layout, sharded.layout.ring.rank
    if route.travel == "queries":

        def attend_for_owner(owner: int, tensors: Tensors) -> Tensors:
            return _to_tensors(sharded.attend(Block(owner, tensors[0], rank, key, value)))

        return _from_tensors(
            pass_around(layout.ring, route.hops, layout.queries, [query], attend_for_owner, _merge_tensors)
        )
    total: Attended | None = None

    def add_keys_of_owner(owner: int, tensors: Tensors) -> Tensors:
        nonlocal total
        total = _add_keys(total, sharded.attend(Block(rank, query, owner, *tensors)))
        return []

    pass_around(layout.ring, route.hops, layout.keys, [key, value], add_keys_of_owner, _merge_tensors)
    assert total is not None
    return total


def leaf_gradients(
    sharded: ShardedProblem, route: Route, leaves: dict[str, Tensor], grads: OutputGrads
) -> dict[str, Tensor]:
    """Return the gradients of all leaves that require one.

    The gradients of tensors that travel return to their owner. The gradients of tensors that stay (queries or keys and
    values, the bias and the parameters) are summed on this rank over the pairs that it computes.

    Args:
        sharded: the problem, with the leaves as bias and parameters.
        route: which tensors travel.
        leaves: "query", "key" and "value" of this rank, and all other tensors that the problem depends on.
        grads: the tensors of the queries of this rank.

    Returns:
        The gradients by the names of the leaves, in the accumulation dtype.
    """
    layout, dtype = sharded.layout, grads.log_mass.dtype
    rank, keys_travel = layout.ring.rank, route.travel == "keys"
    travelling_names = TRAVELLING_TENSORS[route.travel]
    travelling = [name for name in travelling_names if leaves[name].requires_grad]
    staying = [name for name, leaf in leaves.items() if leaf.requires_grad and name not in travelling_names]
    sums = {name: torch.zeros_like(leaves[name], dtype=dtype) for name in staying}

    def differentiate(owner: int, tensors: Tensors) -> Tensors:
        received = zip(travelling_names, tensors, strict=False)  # a query is followed by its OutputGrads
        inputs = leaves | {name: tensor.detach().requires_grad_(name in travelling) for name, tensor in received}
        query_rank, key_rank = (rank, owner) if keys_travel else (owner, rank)
        block = Block(query_rank, inputs["query"], key_rank, inputs["key"], inputs["value"])
        block_grads = grads if keys_travel else OutputGrads(*tensors[1:])
        gradients = sharded.gradients(block, [inputs[name] for name in staying + travelling], block_grads)
        d_inputs = dict(zip(staying + travelling, gradients, strict=True))
        for name in staying:
            if (grad := d_inputs[name]) is not None:
                sums[name] += grad
        return [_zeros_if_none(d_inputs[name], inputs[name], dtype) for name in travelling]

    tensors = [leaves["key"], leaves["value"]] if keys_travel else [leaves["query"], *grads]
    sizes = layout.keys if keys_travel else layout.queries
    d_travelling = pass_around(layout.ring, route.hops, sizes, tensors, differentiate, _add_in_place)
    return sums | dict(zip(travelling, d_travelling, strict=True))


def _add_keys(total: Attended | None, part: Attended) -> Attended:
    """Return the record over the keys of both records; None has no keys."""
    return part if total is None else merge([total, part])


def _merge_tensors(left: Tensors, right: Tensors) -> Tensors:
    """Return the record over the keys of both records, each given by `_to_tensors`."""
    return _to_tensors(_add_keys(_from_tensors(left), _from_tensors(right)))


def _to_tensors(record: Attended) -> Tensors:
    """Return output and log_mass with the queries on axis -2, as `pass_around` needs them."""
    return [record.output, record.log_mass.unsqueeze(-1)]


def _from_tensors(tensors: Tensors) -> Attended:
    """Return the record that `_to_tensors` has turned into tensors."""
    return Attended(tensors[0], tensors[1].squeeze(-1))


def _add_in_place(left: Tensors, right: Tensors) -> Tensors:
    """Add each right tensor to its left one, and return the left ones."""
    return [x.add_(y) for x, y in zip(left, right, strict=True)]


def _zeros_if_none(grad: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a gradient in `dtype`; zeros of the shape of `like` if there is none."""
    return torch.zeros_like(like, dtype=dtype) if grad is None else grad.to(dtype)


def _restrict_bias(bias: Bias | None, rows: slice, cols: slice) -> Bias | None:
    """Return the bias of a block; a callable gets positions in the whole sequence."""
    if bias is None:
        return None
    if isinstance(bias, Tensor):
        return narrow_pairs(bias, rows, cols)
    return lambda query, key: bias(query + rows.start, key + cols.start)
