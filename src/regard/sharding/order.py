"""Which tokens of a sequence each rank holds: in order, or balanced for causal masks; how to cut, and how to join.

A run is a slice of consecutive positions in the whole sequence, with both its ends.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.shapes import check_int

ORDERS = ("contiguous", "balanced")
Runs = tuple[slice, ...]


def split(tensor: Tensor, ranks: int, order: str = "contiguous", axis: int = -2) -> list[Tensor]:
    """Cut the tokens of a sequence into a shard for each rank; pieces differ by one token where they must.

    Args:
        tensor: any tensor; `axis` holds the tokens.
        ranks: how many shards.
        order: "contiguous": rank r holds the r-th piece. "balanced": of 2 * ranks pieces rank r holds the r-th from
            the front, then the r-th from the end, so that under a causal mask all ranks have the same work.
        axis: that of the tokens.

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
    """The whole sequence from the shards of all ranks: the inverse of `split`.

    >>> join([torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])], "balanced", axis=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    check_order(order)
    _check_ranks(len(shards))
    runs = runs_of([shard.shape[axis] for shard in shards], order, "shards")
    placed = [
        (run.start, piece)
        for shard, own in zip(shards, runs, strict=True)
        for run, piece in zip(own, shard.split([run.stop - run.start for run in own], axis), strict=True)
    ]
    return torch.cat([piece for _, piece in sorted(placed, key=lambda pair: pair[0])] or list(shards), axis)


def runs_of(sizes: Sequence[int], order: str, argument: str) -> list[Runs]:
    """The runs that each rank holds, from how many tokens each holds; a rank without tokens has none.

    Contiguous shards may have any sizes; balanced ones have the sizes that `split` gives them.
    """
    ranks, total = len(sizes), sum(sizes)
    if order == "contiguous":
        ends = list(accumulate(sizes))
        return [_joined([slice(end - size, end)]) for size, end in zip(sizes, ends, strict=True)]
    bounds = [0, *accumulate(total // (2 * ranks) + (piece < total % (2 * ranks)) for piece in range(2 * ranks))]
    pieces = [slice(start, stop) for start, stop in pairwise(bounds)]
    runs = [_joined([pieces[rank], pieces[-1 - rank]]) for rank in range(ranks)]
    wanted = [sum(run.stop - run.start for run in own) for own in runs]
    if list(sizes) != wanted:
        raise RegardError(
            argument,
            got=f"{list(sizes)} tokens on the ranks",
            needed=f'{wanted}, as order="balanced" deals out {total} tokens',
            repair='Cut the sequence with regard.sharding.split(x, ranks, "balanced").',
        )
    return runs


def check_order(order: object) -> None:
    """Refuse an order that is not known."""
    if order not in ORDERS:
        raise RegardError(
            "order",
            got=repr(order),
            needed='"contiguous" or "balanced"',
            repair='Write order="balanced" for shards that regard.sharding.split(x, ranks, "balanced") has cut.',
        )


def _check_ranks(ranks: object) -> None:
    check_int("ranks", ranks, repair="Pass torch.distributed.get_world_size(group).")


def _joined(runs: list[slice]) -> Runs:
    """Without empty runs; two that touch are one."""
    found: list[slice] = []
    for run in runs:
        if run.start == run.stop:
            continue
        if found and found[-1].stop == run.start:
            found[-1] = slice(found[-1].start, run.stop)
        else:
            found.append(run)
    return tuple(found)
