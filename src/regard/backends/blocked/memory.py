"""How much memory a tile has, taken once for all tiles of a shape: it stays in the cache."""

import torch
from torch import Tensor

# Elements of one tile over the whole batch: on a CPU what a core's cache holds, on a GPU what keeps it busy.
TILE_ELEMENTS = {"cpu": 2**18, "cuda": 2**25}


class TileMemory:
    """Tensors (*batch, rows, cols) on one device, one for each dtype; what they hold, the next tile overwrites."""

    def __init__(self, batch: torch.Size, device: torch.device, *dtypes: torch.dtype) -> None:
        """Nothing is taken before a tile asks."""
        self.batch = batch
        self.device = device
        self.dtypes = dtypes
        self.taken: dict[tuple[int, int], list[Tensor]] = {}

    def at(self, rows: slice, cols: slice) -> list[Tensor]:
        """The tensors for one tile."""
        shape = rows.stop - rows.start, cols.stop - cols.start
        if shape not in self.taken:
            sizes = (*self.batch, *shape)
            self.taken[shape] = [torch.empty(sizes, dtype=dtype, device=self.device) for dtype in self.dtypes]
        return self.taken[shape]
