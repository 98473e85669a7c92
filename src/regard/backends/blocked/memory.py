"""How much memory a tile has, taken once for all tiles: it stays in the cache, and its pages are not new."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Elements of one tile over the whole batch: on a CPU what a core's cache holds, on a GPU what keeps it busy.
TILE_ELEMENTS = {"cpu": 2**18, "cuda": 2**25}


class TileMemory:
    """Some stretches of memory on one device, each of a dtype; what they hold, the next tile overwrites."""

    def __init__(self, device: torch.device, *dtypes: torch.dtype) -> None:
        """Nothing is taken before a tile asks."""
        self.stretches = [torch.empty(0, dtype=dtype, device=device) for dtype in dtypes]

    def at(self, rows: slice, cols: slice, *batches: Sequence[int]) -> list[Tensor]:
        """For each stretch a tensor (*batch, rows, cols) at its start; a stretch that is too short grows."""
        taken = []
        for place, batch in enumerate(batches):
            shape = (*batch, rows.stop - rows.start, cols.stop - cols.start)
            size = math.prod(shape)
            if self.stretches[place].numel() < size:
                self.stretches[place] = self.stretches[place].new_empty(size)
            taken.append(self.stretches[place][:size].view(shape))
        return taken
