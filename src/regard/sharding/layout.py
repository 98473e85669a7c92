"""`split` and `join`, the tokens that each rank holds, and the comparison of the ranks' arguments.

A span is a slice of consecutive positions in the whole sequence, with start and stop.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from regard.checks import check_inputs, check_int
from regard.errors import RegardError
from regard.sharding.ring import Ring

if TYPE_CHECKING:
    from regard.sharding.ring import Group

ORDERS = ("contiguous", "balanced")
MESSAGE_BYTES = 4096
"""Size of the message that carries the facts of a rank."""
MAX_FACT_BYTES = 300
"""Largest size of a text in this message, as JSON. Longer texts are shortened, so that all facts of a call fit."""

Spans = tuple[slice, ...]
"""The spans of one rank, in the order of its tokens."""
CallFacts = dict[str, object]
"""Numbers and texts that the ranks of a call compare, by name."""


def split(tensor: Tensor, ranks: int, order: str = "contiguous", axis: int = -2) -> list[Tensor]:
    """Split the tokens of a sequence into one shard for each rank.

    Args:
        tensor: a tensor with an axis of tokens, by default (*batch, tokens, dim).
        ranks: number of shards.
        order: "contiguous" splits the sequence into `ranks` pieces, and rank r holds piece r. "balanced" splits it into
            2 * ranks pieces, and rank r holds piece r from the front followed by piece r from the end, so that under a
            causal mask all ranks have the same work. The sizes of two pieces differ by at most one token.
        axis: the axis of the tokens.

    Returns:
        The shards, in the order of the ranks.

    Raises:
        RegardError: if `order` is unknown, or `ranks` is not an integer of at least 1.

    >>> [shard.tolist() for shard in split(torch.arange(8), 2, "balanced", axis=0)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_order(order)
    _check_ranks(ranks)
    if order == "contiguous":
        return list(tensor.tensor_split(ranks, axis))
    pieces = tensor.tensor_split(2 * ranks, axis)
    return [torch.cat([pieces[rank], pieces[-1 - rank]], axis) for rank in range(ranks)]


def join(shards: Sequence[Tensor], order: str = "contiguous", axis: int = -2) -> Tensor:
    """Return the whole sequence from the shards of all ranks; the inverse of `split`.

    Args:
        shards: the shards, in the order of the ranks.
        order: the order that was passed to `split`.
        axis: the axis of the tokens.

    Returns:
        The sequence.

    Raises:
        RegardError: if `order` is unknown, if there are no shards, or if balanced shards do not have the sizes that
            `split` gives them.

    >>> join([torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])], "balanced", axis=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    check_order(order)
    _check_ranks(len(shards))
    spans = spans_of([shard.shape[axis] for shard in shards], order, "shards")
    pieces = {
        span.start: shard.narrow(axis, local.start, local.stop - local.start)
        for shard, shard_spans in zip(shards, spans, strict=True)
        for local, span in local_spans(shard_spans)
    }
    return torch.cat([pieces[start] for start in sorted(pieces)] or list(shards), axis)


class Layout(NamedTuple):
    """The tokens that each rank of a call holds, as spans of the whole sequences.

    Attributes:
        ring: the ranks.
        query_spans: for each rank, the spans of its queries.
        key_spans: for each rank, the spans of its keys.
    """

    ring: Ring
    query_spans: tuple[Spans, ...]
    key_spans: tuple[Spans, ...]

    @classmethod
    def gather(
        cls, group: "Group", order: str, query: Tensor, key: Tensor, value: Tensor, options: dict[str, str]
    ) -> "Layout":
        """Check the inputs of this rank, compare them with those of all ranks, and return the layout.

        Args:
            group: a process group, or a DeviceMesh with one axis.
            order: "contiguous" or "balanced".
            query: (*batch, own queries, query_dim).
            key: (*batch, own keys, key_dim).
            value: (*batch, own keys, value_dim).
            options: texts that describe the other arguments, which must be equal on all ranks.

        Returns:
            The layout, the same on every rank.

        Raises:
            RegardError: on every rank, if an argument does not fit on one of them or if the ranks' arguments differ.
        """
        ring = Ring.of(group)
        device = query.device if isinstance(query, Tensor) else torch.device("cpu")
        try:
            check_order(order)
            check_inputs(query, key, value)
        except RegardError as error:
            report_error(ring, error, device)
            raise
        facts: CallFacts = {"queries": query.shape[-2], "keys": key.shape[-2], "order": order}
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            facts[name] = _describe_tokens(tensor)
        # Remove device indices, which differ between ranks.
        facts |= {name: re.sub(r" on (\w+):\d+", r" on \1", text) for name, text in options.items()}
        facts["gradients"] = "enabled" if torch.is_grad_enabled() else "disabled"
        counts = "queries", "keys"
        all_facts = check_agreement(ring, facts, counts, device)
        sizes = {name: [_as_int(rank_facts[name]) for rank_facts in all_facts] for name in counts}
        return cls(ring, *(tuple(spans_of(sizes[name], order, name)) for name in counts))

    @property
    def queries(self) -> list[int]:
        """Number of queries of each rank."""
        return [_num_tokens(spans) for spans in self.query_spans]

    @property
    def keys(self) -> list[int]:
        """Number of keys of each rank."""
        return [_num_tokens(spans) for spans in self.key_spans]

    def prepare_query(self, prepare: Callable[[Tensor, int], Tensor], query: Tensor) -> Tensor:
        """Return this rank's queries, prepared at their positions in the whole sequence.

        Args:
            prepare: `prepare_query` of the score.
            query: (*batch, own queries, query_dim).

        Returns:
            (*batch, own queries, dim).
        """
        return _prepare_spans(prepare, query, self.query_spans[self.ring.rank])

    def prepare_key(self, prepare: Callable[[Tensor, int], Tensor], key: Tensor) -> Tensor:
        """Return this rank's keys, prepared at their positions in the whole sequence.

        Args:
            prepare: `prepare_key` of the score.
            key: (*batch, own keys, key_dim).

        Returns:
            (*batch, own keys, dim).
        """
        return _prepare_spans(prepare, key, self.key_spans[self.ring.rank])


def spans_of(sizes: Sequence[int], order: str, argument: str) -> list[Spans]:
    """Return the spans of each rank.

    Args:
        sizes: number of tokens of each rank. Contiguous shards may have any sizes.
        order: "contiguous" or "balanced".
        argument: name of the argument for the error message.

    Returns:
        The spans of each rank; () for a rank without tokens.

    Raises:
        RegardError: if balanced shards do not have the sizes that `split` gives them.
    """
    ranks, total = len(sizes), sum(sizes)
    if order == "contiguous":
        ends = list(accumulate(sizes))
        return [_join_adjacent([slice(end - size, end)]) for size, end in zip(sizes, ends, strict=True)]
    bounds = [0, *accumulate(total // (2 * ranks) + (piece < total % (2 * ranks)) for piece in range(2 * ranks))]
    pieces = [slice(start, stop) for start, stop in pairwise(bounds)]
    spans = [_join_adjacent([pieces[rank], pieces[-1 - rank]]) for rank in range(ranks)]
    needed = list(map(_num_tokens, spans))
    if list(sizes) != needed:
        raise RegardError(
            argument,
            got=f"{list(sizes)} tokens on the ranks",
            needed=f'{needed}, the sizes of order="balanced" for {total} tokens',
            repair='Split the sequence with regard.sharding.split(x, ranks, "balanced").',
        )
    return spans


def local_spans(spans: Spans) -> list[tuple[slice, slice]]:
    """Return the spans of a rank together with their positions among the tokens of the rank.

    Args:
        spans: the spans of one rank.

    Returns:
        For each span, a slice of the rank's tokens and the span.
    """
    pairs, start = [], 0
    for span in spans:
        stop = start + span.stop - span.start
        pairs.append((slice(start, stop), span))
        start = stop
    return pairs


def check_order(order: object) -> None:
    """Raise a RegardError unless `order` is "contiguous" or "balanced"."""
    if order not in ORDERS:
        raise RegardError(
            "order",
            got=repr(order),
            needed='"contiguous" or "balanced"',
            repair='Pass order="balanced" for shards of regard.sharding.split(x, ranks, "balanced").',
        )


def check_agreement(ring: Ring, facts: CallFacts, may_differ: Collection[str], device: torch.device) -> list[CallFacts]:
    """Exchange the facts of all ranks in one small message, and raise the same error on every rank if they differ.

    Without this comparison, ranks would wait for tensors that a rank with invalid or different arguments never sends.

    Args:
        ring: the ranks.
        facts: the facts of this rank.
        may_differ: names of the facts that may differ.
        device: where the process group expects tensors.

    Returns:
        The facts of all ranks.

    Raises:
        RegardError: if a rank reported an error, or if a fact differs.
    """
    all_facts = _all_gather(ring, facts, device)
    for rank, rank_facts in enumerate(all_facts):
        if "error" in rank_facts:
            raise RegardError(
                "group",
                got=f"an error on rank {rank} ({rank_facts['error']})",
                needed="arguments that are valid on every rank",
                repair=f"Fix the arguments on rank {rank}; see the error raised there.",
            )
    first = all_facts[0]
    for rank, rank_facts in enumerate(all_facts):
        for name in first:
            if name not in may_differ and rank_facts.get(name) != first[name]:
                raise RegardError(
                    name,
                    got=f"{first[name]} on rank 0 and {rank_facts.get(name)} on rank {rank}",
                    needed="the same on all ranks of the group; only the number of tokens may differ",
                    repair="Pass each rank its shard of one sequence, and the same other arguments on all ranks.",
                )
    return all_facts


def report_error(ring: Ring, error: RegardError, device: torch.device) -> None:
    """Send an error of this rank to the ranks that wait in `check_agreement`.

    Args:
        ring: the ranks.
        error: the error.
        device: where the process group expects tensors.
    """
    _all_gather(ring, {"error": f"{error}"}, device)


def _all_gather(ring: Ring, facts: CallFacts, device: torch.device) -> list[CallFacts]:
    """Return the facts of all ranks, with long texts shortened."""
    message = torch.frombuffer(bytearray(encode_facts(facts)), dtype=torch.uint8).to(device)
    messages = [torch.empty_like(message) for _ in range(ring.world_size)]
    dist.all_gather(messages, message, group=ring.group)
    return [json.loads(bytes(received.tolist())) for received in messages]


def encode_facts(facts: CallFacts) -> bytes:
    """Return the message with the facts of a rank.

    Args:
        facts: the facts.

    Returns:
        JSON, padded with spaces to MESSAGE_BYTES. Every text has at most MAX_FACT_BYTES bytes.
    """
    short = {name: _shorten(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    text = json.dumps(short).encode()
    assert len(text) <= MESSAGE_BYTES, "a call has too many facts for one message"
    return text.ljust(MESSAGE_BYTES)


def _shorten(text: str) -> str:
    """Return the beginning of a text, at most MAX_FACT_BYTES long as JSON, which escapes some characters."""
    text = text[:MAX_FACT_BYTES]
    while len(json.dumps(text)) > MAX_FACT_BYTES:
        text = text[:-1]
    return text


def _check_ranks(ranks: object) -> None:
    """Raise a RegardError unless `ranks` is an integer of at least 1."""
    check_int("ranks", ranks, repair="Pass torch.distributed.get_world_size(group).")


def _join_adjacent(spans: list[slice]) -> Spans:
    """Return the spans with adjacent ones joined and empty ones removed."""
    joined: list[slice] = []
    for span in spans:
        if span.start == span.stop:
            continue
        if joined and joined[-1].stop == span.start:
            joined[-1] = slice(joined[-1].start, span.stop)
        else:
            joined.append(span)
    return tuple(joined)


def _prepare_spans(prepare: Callable[[Tensor, int], Tensor], tokens: Tensor, spans: Spans) -> Tensor:
    """Apply a function of tokens and the position of the first token to each span."""
    if len(spans) <= 1:
        return prepare(tokens, spans[0].start if spans else 0)
    return torch.cat([prepare(tokens[..., local, :], span.start) for local, span in local_spans(spans)], dim=-2)


def _num_tokens(spans: Spans) -> int:
    """Return the number of tokens in the spans of a rank."""
    return sum(span.stop - span.start for span in spans)


def _describe_tokens(tensor: Tensor) -> str:
    """Describe a tensor without its number of tokens.

    The text says whether the tensor requires a gradient, because ranks exchange gradients in the backward pass.
    """
    *batch, _, dim = tensor.shape
    dtype = str(tensor.dtype).removeprefix("torch.")
    gradient = " with a gradient" if tensor.requires_grad and torch.is_grad_enabled() else ""
    return f"{dtype} ({', '.join(map(str, [*batch, 'tokens', dim]))}) on {tensor.device.type}{gradient}"


def _as_int(fact: object) -> int:
    """Return a fact that is a number."""
    assert isinstance(fact, int)
    return fact
