"""How many bytes a call moves between ranks, and whether keys or queries travel: whichever moves fewer."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.problem import Problem
from regard.errors import RegardError
from regard.masks.placed import Placed, decode
from regard.shapes import accumulation_dtype
from regard.sharding.order import Runs
from regard.sharding.shards import Shards

TRAVELLERS = ("keys", "queries")


class Load(NamedTuple):
    """Bytes of the tensors of all ranks together, each counted once.

    query, key, value, output: in the dtype of the inputs. Results and gradients that are still being summed, and one
    number for each query (its log_mass), are in the accumulation dtype, `wider` times as many bytes a number.
    """

    query: int
    key: int
    value: int
    output: int
    number: int
    wider: int

    def a_hop(self, traveller: str, *, backward: bool) -> int:
        """Bytes that all ranks together send when everything moves on by one rank.

        Keys travel with their values; their gradients follow them. Queries are followed by what they have pooled so
        far, and in the backward pass travel with the gradient of their output and two numbers each.
        """
        if traveller == "keys":
            forward = self.key + self.value
            return forward + (forward + self.wider * (self.key + self.value) if backward else 0)
        forward = self.query + self.wider * self.output + self.number
        return forward + (self.query + self.output + 2 * self.number + self.wider * self.query if backward else 0)


def load_of(shards: Shards, problem: Problem) -> Load:
    """What the prepared tensors of all ranks weigh: the same numbers on every rank."""
    queries, keys, value = sum(shards.queries), sum(shards.keys), problem.value
    rows, item, wide = math.prod(problem.batch) * queries, value.itemsize, accumulation_dtype(value.dtype).itemsize
    return Load(
        query=_a_token(problem.form.query) * queries * item,
        key=_a_token(problem.form.key) * keys * item,
        value=_a_token(value) * keys * item,
        output=rows * value.shape[-1] * item,
        number=rows * wide,
        wider=wide // item,
    )


def choose(load: Load, hops: dict[str, int], travel: str, *, backward: bool) -> str:
    """Who travels: the one asked for, or the one that moves fewer bytes; keys, if it is the same."""
    if travel in TRAVELLERS:
        return travel
    if travel != "auto":
        raise RegardError(
            "travel",
            got=repr(travel),
            needed='"auto", "keys" or "queries"',
            repair='Leave it at "auto": what moves fewer bytes travels.',
        )
    return min(TRAVELLERS, key=lambda traveller: hops[traveller] * load.a_hop(traveller, backward=backward))


def hops_of(mask: Placed | None, query_runs: tuple[Runs, ...], key_runs: tuple[Runs, ...]) -> dict[str, int]:
    """How far keys, or queries, must travel until no rank needs them any more; one less than ranks at most.

    Only bands count: they are the same on every rank. What lengths hide is known to those who look at values.
    """
    told = ("", (), 0) if mask is None else (mask.encode(), tuple(mask.numbers()), len(mask.tensors()))
    return {
        traveller: _hops(*told, tuple(map(_ends, query_runs)), tuple(map(_ends, key_runs)), traveller)
        for traveller in TRAVELLERS
    }


Ends = tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def _hops(
    text: str,
    numbers: tuple[int, ...],
    tensors: int,
    query_runs: tuple[Ends, ...],
    key_runs: tuple[Ends, ...],
    traveller: str,
) -> int:
    """Ends instead of slices, which cannot be looked up before Python 3.12."""
    ranks = len(query_runs)
    if not text:
        return ranks - 1
    mask = decode(text, [torch.empty(1, 1, device="meta")] * tensors, numbers)

    def is_needed(rank: int, hop: int) -> bool:
        owner = (rank - hop) % ranks
        queries, keys = (
            (query_runs[rank], key_runs[owner]) if traveller == "keys" else (query_runs[owner], key_runs[rank])
        )
        return any(mask.covers(slice(*rows), slice(*cols)) is not False for rows in queries for cols in keys)

    return next((hop for hop in range(ranks - 1, 0, -1) if any(is_needed(rank, hop) for rank in range(ranks))), 0)


def _a_token(tensor: Tensor) -> int:
    """Numbers a token."""
    return math.prod(tensor.shape[:-2]) * tensor.shape[-1]


def _ends(runs: Runs) -> Ends:
    return tuple((run.start, run.stop) for run in runs)
