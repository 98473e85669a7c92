"""Running sums along a line, s_i = term_i + factor_i s_(i-1), chunk by chunk: nothing is ever subtracted.

A factor of 0 restarts the sum (compact kernels, at each cell), a factor below 1 lets it decay (Laplacian). A chunk is
laid out as (16, blocks), one block of 16 neighbours a column: 15 operations on rows run all blocks at once, then the
blocks' last sums are run in the same way, and what precedes each block is added to it. The depth of the additions is
16 for each power of 16, which keeps their rounding small.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

BLOCK_BITS = 4
BLOCK = 2**BLOCK_BITS
# Numbers in a chunk of terms: 4 MiB, so that the passes over it stay in cache.
CHUNK = 2**19


class Chunk:
    """The keys start to stop of the line, in the layout of the running sums; from the right where backward."""

    def __init__(self, start: int, stop: int, backward: bool) -> None:
        """Name the range and the direction."""
        self.start, self.stop, self.backward = start, stop, backward
        self.blocks = -(-(stop - start) // BLOCK)

    @property
    def rows(self) -> slice:
        """The keys of this chunk."""
        return slice(self.start, self.stop)

    def arrange(self, numbers: Tensor) -> Tensor:
        """(..., stop - start) -> (..., 16, blocks), filled up with zeros."""
        numbers = numbers.flip(-1) if self.backward else numbers
        short = self.blocks * BLOCK - numbers.shape[-1]
        numbers = torch.nn.functional.pad(numbers, (0, short)) if short else numbers
        return numbers.unflatten(-1, (self.blocks, BLOCK)).mT.contiguous()

    def find(self, position: Tensor) -> Tensor:
        """Where the sums at these positions of the line are in the flattened layout."""
        position = position.long()
        local = self.stop - 1 - position if self.backward else position - self.start
        return (local & (BLOCK - 1)).mul_(self.blocks).add_(local >> BLOCK_BITS)

    def last(self, sums: Tensor) -> Tensor:
        """The running sums at the chunk's end, of sums (features, 16, blocks): (features,)."""
        final = self.stop - self.start - 1
        return sums[:, final % BLOCK, final // BLOCK].clone()


def running_sums(
    terms: Callable[[Chunk], Tensor], factor: Tensor, features: int, *, backward: bool
) -> Iterator[tuple[Chunk, Tensor]]:
    """Each chunk with its running sums (features, 16 blocks), in the order in which they arise.

    terms: gives those of a chunk, (features, 16, blocks), which are overwritten. factor: (keys,), numbers or
    booleans, of the key before in the direction of the sum.
    """
    carry = None
    for chunk in chunks(len(factor), features, backward):
        sums, decay = terms(chunk), chunk.arrange(factor[chunk.rows].double())
        if carry is not None:
            sums[:, 0, 0] += decay[0, 0] * carry
        run(sums, decay)
        carry = chunk.last(sums)
        yield chunk, sums.flatten(1)


def chunks(keys: int, features: int, backward: bool) -> list[Chunk]:
    """The chunks of a line of that many keys, in the order of the direction."""
    size = max(CHUNK // features // BLOCK, BLOCK) * BLOCK
    found = [Chunk(start, min(start + size, keys), backward) for start in range(0, keys, size)]
    return found[::-1] if backward else found


def rows_by_chunk(position: Tensor, keys: int, features: int, backward: bool, back: int = 0) -> Iterator[slice]:
    """The queries whose sorted positions (queries,) minus back are in each chunk; those off the line at its ends."""
    parts = chunks(keys, features, backward)
    starts = torch.tensor([part.start + back for part in parts], device=position.device, dtype=position.dtype)
    bounds = dict(zip((part.start for part in parts), torch.searchsorted(position, starts).tolist(), strict=True))
    bounds[0] = 0
    for part in parts:
        yield slice(bounds[part.start], bounds.get(part.stop, len(position)))


def run(terms: Tensor, factor: Tensor) -> None:
    """Turn terms (features, 16, blocks) into running sums down each block and from block to block, in place.

    factor: (16, blocks).
    """
    rows = terms.unbind(1)
    for before, row, passing in zip(rows, rows[1:], factor.unbind(0)[1:], strict=False):
        row.addcmul_(before, passing)
    blocks = factor.shape[1]
    if blocks == 1:
        return
    through = factor.cumprod(0)
    chunk = Chunk(0, blocks, False)
    ends, passing = chunk.arrange(terms[:, -1]), chunk.arrange(through[-1])
    run(ends, passing)
    earlier = ends.mT.flatten(1)[:, : blocks - 1]
    terms[:, :, 1:].addcmul_(through[:, 1:], earlier.unsqueeze(1))
