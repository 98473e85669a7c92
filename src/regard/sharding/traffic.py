"""The number of bytes that a call sends between ranks, and the choice whether keys or queries travel."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.base import Problem
from regard.checks import accumulation_dtype
from regard.errors import RegardError
from regard.masks.bound import BoundMask, flatten, unflatten
from regard.sharding.layout import Layout, Spans

TRAVEL_CHOICES = ("keys", "queries")
"""What can travel from rank to rank: keys with their values, or queries."""
Bounds = tuple[tuple[int, int], ...]
"""Spans as pairs of start and stop, because slices are not hashable before Python 3.12."""


class ByteCounts(NamedTuple):
    """Bytes of the tensors of all ranks together, each tensor counted once.

    Attributes:
        query: prepared queries, in the dtype of the inputs.
        key: prepared keys, in the dtype of the inputs.
        value: values, in the dtype of the inputs.
        output: output, in the dtype of the inputs.
        log_mass: one number for each query, in the accumulation dtype.
        accumulation_factor: itemsize of the accumulation dtype divided by that of the inputs.
    """

    query: int
    key: int
    value: int
    output: int
    log_mass: int
    accumulation_factor: int

    def bytes_per_hop(self, travel: str, *, backward: bool) -> int:
        """Return the bytes that all ranks together send when all tensors travel to the next rank.

        Keys travel with their values, and in the backward pass the gradients of both follow. Queries are followed by
        their output and log_mass. In the backward pass they travel with the gradient of their output and two numbers
        for each query, and their own gradient follows. Partial sums of outputs and gradients are in the accumulation
        dtype.

        Args:
            travel: "keys" or "queries".
            backward: whether to include the backward pass.

        Returns:
            The number of bytes.
        """
        factor = self.accumulation_factor
        if travel == "keys":
            forward = self.key + self.value
            return forward + (forward + factor * (self.key + self.value) if backward else 0)
        forward = self.query + factor * self.output + self.log_mass
        return forward + (self.query + self.output + 2 * self.log_mass + factor * self.query if backward else 0)


def count_bytes(layout: Layout, problem: Problem) -> ByteCounts:
    """Return the bytes of the prepared tensors of all ranks. The result is the same on every rank.

    Args:
        layout: which tokens each rank holds.
        problem: the problem of this rank.

    Returns:
        The bytes.
    """
    queries, keys, value = sum(layout.queries), sum(layout.keys), problem.value
    rows, itemsize = math.prod(problem.batch) * queries, value.itemsize
    accumulation_itemsize = accumulation_dtype(value.dtype).itemsize
    return ByteCounts(
        query=_elements_per_token(problem.pair.query) * queries * itemsize,
        key=_elements_per_token(problem.pair.key) * keys * itemsize,
        value=_elements_per_token(value) * keys * itemsize,
        output=rows * value.shape[-1] * itemsize,
        log_mass=rows * accumulation_itemsize,
        accumulation_factor=accumulation_itemsize // itemsize,
    )


def choose_travel(counts: ByteCounts, hops: dict[str, int], travel: str, *, backward: bool) -> str:
    """Return which tensors travel, "keys" or "queries".

    Args:
        counts: bytes of the tensors.
        hops: number of hops by "keys" and "queries".
        travel: "keys", "queries", or "auto" for the one that sends fewer bytes; keys if the bytes are equal.
        backward: whether there will be a backward pass.

    Returns:
        "keys" or "queries".

    Raises:
        RegardError: if `travel` is something else.
    """
    if travel in TRAVEL_CHOICES:
        return travel
    if travel != "auto":
        raise RegardError(
            "travel",
            got=repr(travel),
            needed='"auto", "keys" or "queries"',
            repair='Leave it at "auto", which chooses the one that sends fewer bytes.',
        )
    return min(TRAVEL_CHOICES, key=lambda choice: hops[choice] * counts.bytes_per_hop(choice, backward=backward))


def count_hops(mask: BoundMask | None, query_spans: tuple[Spans, ...], key_spans: tuple[Spans, ...]) -> dict[str, int]:
    """Return the number of hops after which no rank needs the travelling keys or queries any more.

    It is at most the number of ranks minus 1. Only bands of the mask can reduce it. Values of mask tensors are not
    read, because they would have to be compared between ranks.

    Args:
        mask: the mask of the whole sequences.
        query_spans: for each rank, the spans of its queries.
        key_spans: for each rank, the spans of its keys.

    Returns:
        The number of hops by "keys" and "queries".
    """
    text, tensors, numbers = ("", [], []) if mask is None else flatten(mask)
    query_bounds, key_bounds = tuple(map(_bounds, query_spans)), tuple(map(_bounds, key_spans))
    return {
        travel: _count_hops(text, tuple(numbers), len(tensors), query_bounds, key_bounds, travel)
        for travel in TRAVEL_CHOICES
    }


@lru_cache(maxsize=64)
def _count_hops(
    text: str,
    numbers: tuple[int, ...],
    num_tensors: int,
    query_bounds: tuple[Bounds, ...],
    key_bounds: tuple[Bounds, ...],
    travel: str,
) -> int:
    """Return the number of hops for a flattened mask; see `regard.masks.bound.flatten`."""
    ranks = len(query_bounds)
    if not text:
        return ranks - 1
    # The values of mask tensors are not read: the coverage of a tensor on "meta" is not known.
    mask = unflatten(text, [torch.empty(1, 1, device="meta")] * num_tensors, numbers)

    def is_needed(rank: int, hop: int) -> bool:
        owner = (rank - hop) % ranks
        queries, keys = (
            (query_bounds[rank], key_bounds[owner]) if travel == "keys" else (query_bounds[owner], key_bounds[rank])
        )
        return any(mask.coverage(slice(*rows), slice(*cols)) is not False for rows in queries for cols in keys)

    return next((hop for hop in range(ranks - 1, 0, -1) if any(is_needed(rank, hop) for rank in range(ranks))), 0)


def _elements_per_token(tensor: Tensor) -> int:
    """Return the number of elements of each token, in the whole batch together."""
    return math.prod(tensor.shape[:-2]) * tensor.shape[-1]


def _bounds(spans: Spans) -> Bounds:
    """Return spans as pairs of start and stop."""
    return tuple((span.start, span.stop) for span in spans)
