"""Additive tiles in plain operations: an r for a chunk of a tile's pairs and for every hidden unit.

The textbook form goes through the same numbers by way of memory, and takes a tanh of each. A chunk stays in the cache,
whatever the number of tokens, and is overwritten by the next one.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.blocked.additive import AdditiveTiles
from regard.backends.blocked.memory import TileMemory

# Numbers in a chunk: fewer are not worth an operation, and more of them no cache holds. On a GPU: what keeps it busy.
CHUNK = {"cpu": 2**21, "cuda": 2**26}
# A sum over fewer queries than these would be written nearly as often as its terms are read.
FEWEST_QUERIES = 8


class Chunk(NamedTuple):
    """Some queries and keys of a tile, counted from its corner.

    below: 1 + uv for each pair and unit, (*batch, queries, keys, hidden) without the axes that only weights have.
    room: for as many with all axes, the same memory where that will do.
    """

    queries: slice
    keys: slice
    below: Tensor
    room: Tensor


class ChunkTiles(AdditiveTiles):
    """A handful of passes over each chunk: a product, a division, sums."""

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool], tanh: bool = False) -> None:
        """tanh: take tanh in every tile."""
        super().__init__(operands, needs, tanh)
        self.one = self.u.new_ones(())
        self.memory = TileMemory(self.u.device, self.u.dtype, self.u.dtype)

    def identity_scores(self, rows: slice, cols: slice) -> Tensor:
        """sum_h w_h - sum_h 2 w_h r_h."""
        scores = self.u.new_empty(*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        doubled = -2 * self.weight.unsqueeze(-2)
        for queries, keys, below, room in self._chunks(rows, cols, apart=False):
            torch.sum(torch.div(doubled, below, out=room), -1, out=scores[..., queries, keys])
        return scores.add_(self.weight.sum(-1, keepdim=True))

    def identity_backward(self, rows: slice, cols: slice, grad: Tensor) -> None:
        """Sums of dS r and dS (r - r^2): dw = sum dS (1 - 2r) over all pairs, da = 4 w sum dS (r - r^2) over keys."""
        to_queries = grad.new_zeros(*self.batch, rows.stop - rows.start, self.u.shape[-1])
        to_keys = grad.new_zeros(*self.batch, cols.stop - cols.start, self.u.shape[-1])
        shares = torch.zeros_like(to_queries)
        for queries, keys, below, pulls in self._chunks(rows, cols, apart=True):
            r = below.reciprocal_()
            torch.mul(r, grad[..., queries, keys, None], out=pulls)
            if self.needs[2]:
                shares[..., queries, :].add_(pulls.sum(-2))
            pulls.addcmul_(pulls, r, value=-1)
            if self.needs[0]:
                to_queries[..., queries, :].add_(pulls.sum(-2))
            if self.needs[1]:
                to_keys[..., keys, :].add_(pulls.sum(-3))
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
        for queries in _cut(height, most_queries):
            for keys in _cut(width, most_keys):
                size = queries.stop - queries.start, keys.stop - keys.start, hidden
                if size not in rooms:
                    rooms[size] = self.memory.at(*((*batch, *size) for batch in batches))
                below = torch.addcmul(self.one, u[..., queries, :, :], v[..., keys, :], out=rooms[size][0])
                yield Chunk(queries, keys, below, rooms[size][-1])


def _cut(whole: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, whole)) for at in range(0, whole, size)]
