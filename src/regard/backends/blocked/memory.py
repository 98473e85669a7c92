"""How much memory a tile has, taken once for all tiles: it stays in the cache, and its pages are not new."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Elements of one tile over the whole batch: on a CPU what a core's cache holds, on a GPU what keeps it busy.
TILE_ELEMENTS = {"cpu": 2**18, "cuda": 2**25}
# Where a tensor begins, in bytes.
ALIGNMENT = 64
# Up to so many scores are kept from a forward to its backward pass: a constant, whatever the number of tokens.
MOST_KEPT = 2**21


class TileMemory:
    """One stretch of memory for some tensors, each of a dtype; what they hold, the next tile overwrites."""

    def __init__(self, device: torch.device, *dtypes: torch.dtype) -> None:
        """Nothing is taken before a tile asks."""
        self.dtypes = dtypes
        self.stretch = torch.empty(0, dtype=torch.uint8, device=device)

    def at(self, *shapes: Sequence[int]) -> list[Tensor]:
        """A tensor of each shape and its dtype, one behind the other; a stretch that is too short grows."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, self.dtypes, strict=False)]
        places = [0]
        for size in sizes:
            places.append(places[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        if self.stretch.numel() < places[-1]:
            self.stretch = self.stretch.new_empty(places[-1])
        parts = zip(places, sizes, self.dtypes, shapes, strict=False)
        return [self.stretch[first : first + size].view(dtype).view(shape) for first, size, dtype, shape in parts]
