"""Gaussian scores of a tile as one matrix product in float64, exact to the last bit of float32.

With s = -rate / width^2, and q and k measured from the middle of the keys,

    s |q - k|^2 = [s |q|^2, -2 s q, s] . [1, k, |k|^2]

Its terms cancel where q is near k, and what is lost is the rounding of float64 at the size of the largest term:
nothing that float32 shows, as long as the data extend over some thousand widths only.
"""

import torch
from torch import Tensor

from regard.backends.blocked.memory import TILE_ELEMENTS, TileMemory
from regard.checks import common_batch
from regard.scores.kernels import Kernel, SquaredExponential

# The error of a score: its terms are rounded in float64, and that may come to a quarter of float32's rounding of 1.
LARGEST_TERM = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps / 4


def gaussian_rate(width: Tensor, kernel: Kernel) -> Tensor | None:
    """-rate / width^2 in float64: a squared distance times this is its score.

    None for another kernel, where it is no normal number of the width's dtype, and on a GPU, which would have to be
    waited for.
    """
    if not isinstance(kernel, SquaredExponential) or width.device.type != "cpu":
        return None
    rate, numbers = -kernel.rate / width.double().square(), torch.finfo(width.dtype)
    return rate if bool(((rate >= -numbers.max) & (rate <= -numbers.tiny)).all()) else None


class GaussianProduct:
    """The scores of all queries and keys, tile by tile."""

    def __init__(self, query: Tensor, key: Tensor, rate: Tensor) -> None:
        """query (*batch, queries, dim), key (*batch, keys, dim) and rate (*batch, queries or 1, 1), in float64."""
        squared = [tokens.square().sum(-1, keepdim=True) for tokens in (query, key)]
        self.query = torch.cat([rate * squared[0], -2 * rate * query, rate.expand_as(rate * squared[0])], -1)
        self.key = torch.cat([torch.ones_like(squared[1]), key, squared[1]], -1).mT.contiguous()
        self.batch = common_batch(self.query, self.key)
        self.memory = TileMemory(query.device, torch.float64, torch.float32)

    @classmethod
    def of(cls, query: Tensor, key: Tensor, rate: Tensor) -> "GaussianProduct | None":
        """None for float64, for what fits into one tile, and where terms are so large that cancelling would show."""
        if query.dtype != torch.float32 or query.shape[-2] * key.shape[-2] <= TILE_ELEMENTS["cpu"]:
            return None
        query, key = query.double(), key.double()
        middle = (key.amin(-2, keepdim=True) + key.amax(-2, keepdim=True)) / 2
        query, key = query - middle, key - middle
        reach = torch.linalg.vector_norm(query, dim=-1).amax() + torch.linalg.vector_norm(key, dim=-1).amax()
        largest = rate.abs().amax() * reach.square() * query.shape[-1]
        return cls(query, key, rate) if bool(largest <= LARGEST_TERM) else None

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """(*batch, rows, cols) in float32."""
        shape = (*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        exact, rounded = self.memory.at(shape, shape)
        torch.matmul(self.query[..., rows, :], self.key[..., cols], out=exact)
        return rounded.copy_(exact)
