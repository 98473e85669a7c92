"""The forward exchange: keys travel past the queries, or queries past the keys, and what they pooled comes home."""

from typing import NamedTuple

from torch import Tensor

from regard.pooling import Attended, merge
from regard.sharding.blocks import Blocks, Pairing
from regard.sharding.ring import Parcel, circulate


class Route(NamedTuple):
    """Who travels, "keys" (with their values) or "queries", and how many ranks far."""

    traveller: str
    hops: int


def pool(blocks: Blocks, route: Route, query: Tensor, key: Tensor, value: Tensor) -> Attended:
    """This rank's queries over the keys of all ranks: output and log_mass in the accumulation dtype.

    query: (*batch, own queries, dim), key and value: (*batch, own keys, dim), all of them prepared.
    """
    return (_past_queries if route.traveller == "keys" else _past_keys)(blocks, route.hops, query, key, value)


def _past_queries(blocks: Blocks, hops: int, query: Tensor, key: Tensor, value: Tensor) -> Attended:
    shards, rank = blocks.shards, blocks.shards.ring.rank
    so_far: list[Attended] = []

    def visit(owner: int, parcel: Parcel) -> Parcel:
        so_far.append(blocks.pool(Pairing(rank, query, owner, *parcel)))
        so_far[:] = [merge(so_far)]
        return []

    circulate(shards.ring, hops, shards.keys, [key, value], visit, _merged)
    return so_far[0]


def _past_keys(blocks: Blocks, hops: int, query: Tensor, key: Tensor, value: Tensor) -> Attended:
    shards, rank = blocks.shards, blocks.shards.ring.rank

    def visit(owner: int, parcel: Parcel) -> Parcel:
        return _packed(blocks.pool(Pairing(owner, parcel[0], rank, key, value)))

    return _unpacked(circulate(shards.ring, hops, shards.queries, [query], visit, _merged))


def _merged(left: Parcel, right: Parcel) -> Parcel:
    return _packed(merge([_unpacked(left), _unpacked(right)]))


def _packed(record: Attended) -> Parcel:
    """Queries on axis -2, as everything that travels has them."""
    return [record.output, record.log_mass.unsqueeze(-1)]


def _unpacked(parcel: Parcel) -> Attended:
    return Attended(parcel[0], parcel[1].squeeze(-1))
