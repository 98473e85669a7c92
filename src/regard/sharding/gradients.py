"""The backward exchange: everything travels once more, blocks are recomputed, and gradients of travellers come home.

What stays on a rank (its queries, or its keys and values; bias and parameters) has its gradient summed there, over the
pairs that this rank computes and no others.
"""

import torch
from torch import Tensor

from regard.sharding.blocks import Arriving, Blocks, Pairing
from regard.sharding.exchange import Route
from regard.sharding.ring import Parcel, circulate

TRAVELLING = {"keys": ("key", "value"), "queries": ("query",)}


def differentiate(blocks: Blocks, route: Route, leaves: dict[str, Tensor], arriving: Arriving) -> dict[str, Tensor]:
    """The gradients of all leaves that require one, by name, in the accumulation dtype.

    leaves: "query", "key" and "value", the tokens of this rank, and whatever else `blocks` depends on.
    arriving: for the queries of this rank.
    """
    shards, dtype = blocks.shards, arriving.log_mass.dtype
    travelling = TRAVELLING[route.traveller]
    moving = [name for name in travelling if leaves[name].requires_grad]
    staying = [name for name, leaf in leaves.items() if leaf.requires_grad and name not in travelling]
    sums = {name: torch.zeros_like(leaves[name], dtype=dtype) for name in staying}

    def visit(owner: int, parcel: Parcel) -> Parcel:
        visitors = zip(travelling, parcel, strict=False)
        here = leaves | {name: tensor.detach().requires_grad_(name in moving) for name, tensor in visitors}
        ranks = (shards.ring.rank, owner) if route.traveller == "keys" else (owner, shards.ring.rank)
        pairing = Pairing(ranks[0], here["query"], ranks[1], here["key"], here["value"])
        theirs = arriving if route.traveller == "keys" else Arriving(*parcel[1:])
        wanted = [here[name] for name in staying + moving]
        found = dict(zip(staying + moving, blocks.differentiate(pairing, wanted, theirs), strict=True))
        for name in staying:
            if (grad := found[name]) is not None:
                sums[name] += grad
        return [_or_zeros(found[name], here[name], dtype) for name in moving]

    if route.traveller == "keys":
        home = circulate(shards.ring, route.hops, shards.keys, [leaves["key"], leaves["value"]], visit, _added)
    else:
        home = circulate(shards.ring, route.hops, shards.queries, [leaves["query"], *arriving], visit, _added)
    return sums | dict(zip(moving, home, strict=True))


def _added(left: Parcel, right: Parcel) -> Parcel:
    return [one.add_(other) for one, other in zip(left, right, strict=True)]


def _or_zeros(grad: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(like, dtype=dtype) if grad is None else grad.to(dtype)
