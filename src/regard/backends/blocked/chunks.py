"""Additive tiles in plain operations: r for a chunk of a tile at a time, small enough to stay in the cache.

The textbook form goes through the same numbers by way of memory, and takes a tanh of each. A chunk is all hidden units
of some pairs, or one unit of all pairs of a wide tile; the next chunk overwrites it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.blocked.additive import AdditiveTiles
from regard.backends.blocked.memory import TileMemory

# Numbers in a chunk: fewer are not worth an operation, and more no cache holds. On a GPU: what keeps it busy.
CHUNK = {"cpu": 2**21, "cuda": 2**26}
# A sum over fewer queries than these would be written nearly as often as its terms are read.
FEWEST_QUERIES = 8
# From here on the scores of a tile are summed unit by unit.
LONG_ROW, MANY_PAIRS = 128, 2**18
# So many units in one sum, and so many sums in another: longer ones would collect roundings.
SUMMED = 16


class Chunk(NamedTuple):
    """Some queries and keys of a tile, counted from its corner.

    u: of the queries, (*batch, queries, 1, hidden). below: u + v for each pair and unit, (*batch, queries, keys,
    hidden) without the axes that only weights have. room: for as many with all axes, the same memory where that will
    do.
    """

    queries: slice
    keys: slice
    u: Tensor
    below: Tensor
    room: Tensor


class ChunkTiles(AdditiveTiles):
    """A handful of passes over each chunk: a sum, a division, sums."""

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], tanh: bool = False) -> None:
        """tanh: take tanh in every tile."""
        super().__init__(operands, needs, tanh)
        self.memory = TileMemory(self.u.device, *3 * [self.u.dtype])
        # A numerator w u may be of any size, unless w is of size 1.
        self.largest = self.weight.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(self.u.dtype).tiny)
        self.share = self.weight / self.largest

    def identity_scores(self, rows: slice, cols: slice) -> Tensor:
        """sum_h w_h (1 - 2 r_h)."""
        scores = self.u.new_zeros(*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        is_wide = scores.shape[-1] >= LONG_ROW and scores.numel() >= MANY_PAIRS
        (self._add_units if is_wide else self._add_chunks)(scores, rows, cols)
        return scores.mul_(self.largest)

    def _add_units(self, scores: Tensor, rows: slice, cols: slice) -> None:
        """Unit by unit for all pairs: over a long row, nothing is faster than a number added to it."""
        u, v = self.u[..., rows, :], self.v[..., cols, :]
        u, v, above = (x.movedim(-1, 0).contiguous() for x in (u, v, -2 * self.share * u))
        u, v, above = u.unsqueeze(-1), v.unsqueeze(-2), above.unsqueeze(-1)
        below, part, whole = self.memory.at(torch.broadcast_shapes(u.shape, v.shape)[1:], scores.shape, scores.shape)
        for many in _cut(slice(0, len(u)), SUMMED**2):
            whole.zero_()
            for units in _cut(many, SUMMED):
                part.copy_(self.share[..., units].sum(-1, keepdim=True))
                for u_h, v_h, above_h in zip(u[units], v[units], above[units], strict=True):
                    part.addcdiv_(above_h, torch.add(u_h, v_h, out=below))
                whole.add_(part)
            scores.add_(whole)

    def _add_chunks(self, scores: Tensor, rows: slice, cols: slice) -> None:
        """All units for some pairs at a time."""
        doubled = -2 * self.share.unsqueeze(-2)
        for queries, keys, u, below, room in self._chunks(rows, cols, apart=False):
            torch.sum(torch.div(doubled * u, below, out=room), -1, out=scores[..., queries, keys])
        scores.add_(self.share.sum(-1, keepdim=True))

    def identity_backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """Sums of dS r and dS (r - r^2): dw = sum dS (1 - 2r) over all pairs, da = 4 w sum dS (r - r^2) over keys."""
        to_queries = grad.new_zeros(*self.batch, rows.stop - rows.start, self.u.shape[-1])
        to_keys = grad.new_zeros(*self.batch, cols.stop - cols.start, self.u.shape[-1])
        shares = torch.zeros_like(to_queries)
        for queries, keys, u, below, pulls in self._chunks(rows, cols, apart=True):
            r = torch.div(u, below, out=below)
            torch.mul(r, grad[..., queries, keys, None], out=pulls)
            if self.needs[2]:
                shares[..., queries, :].add_(pulls.sum(-2))
            pulls.addcmul_(pulls, r, value=-1)
            if self.needs[0]:
                to_queries[..., queries, :].add_(pulls.sum(-2))
            if self.needs[1]:
                to_keys[..., keys, :].add_(_over_queries(pulls))
        self.add(0, rows, to_queries.mul_(4 * self.weight))
        self.add(1, cols, to_keys.mul_(4 * self.weight))
        self.add(2, slice(None), grad.sum((-2, -1), keepdim=True) - 2 * shares.sum(-2, keepdim=True))

    def _chunks(self, rows: slice, cols: slice, apart: bool) -> Iterator[Chunk]:
        """The chunks of a tile; the next one overwrites what they hold. apart: both tensors are wanted."""
        u, v = self.u[..., rows, None, :], self.v[..., None, cols, :]
        *sharing, height, width, hidden = torch.broadcast_shapes(u.shape, v.shape)
        batches = [sharing, self.batch] if apart or tuple(sharing) != self.batch else [sharing]
        pairs = CHUNK.get(u.device.type, CHUNK["cuda"]) // (sum(map(math.prod, batches)) * hidden)
        most_keys = min(max(pairs // min(FEWEST_QUERIES, height), 1), width)
        most_queries = max(pairs // most_keys, 1)
        rooms = {}
        for queries in _cut(slice(0, height), most_queries):
            of_queries = u[..., queries, :, :]
            for keys in _cut(slice(0, width), most_keys):
                size = queries.stop - queries.start, keys.stop - keys.start, hidden
                if size not in rooms:
                    rooms[size] = self.memory.at(*((*batch, *size) for batch in batches))
                below = torch.add(of_queries, v[..., keys, :], out=rooms[size][0])
                yield Chunk(queries, keys, of_queries, below, rooms[size][-1])


def _over_queries(pulls: Tensor) -> Tensor:
    """The sum over queries of (*batch, queries, keys, hidden).

    Of a single batch each core sums the queries it has in its own cache: fetched from another's they may take far
    longer than all passes together.
    """
    cores = torch.get_num_threads()
    if math.prod(pulls.shape[:-3]) > 1 or pulls.shape[-3] % cores:
        return pulls.sum(-3)
    return pulls.unflatten(-3, (cores, -1)).sum(-3).sum(-3)


def _cut(whole: slice, size: int) -> list[slice]:
    return [slice(at, min(at + size, whole.stop)) for at in range(whole.start, whole.stop, size)]
