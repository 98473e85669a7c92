"""Scores of one tile at a time: dot products (eq. 7 to 11) and distances (eq. 4 to 6), and their gradients.

A tile is a block of queries and a block of keys. All tiles reuse one scratch buffer, so that it stays in the cache.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.checks import common_batch
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.scores.kernels import Boxcar, Kernel, SquaredExponential, TaperedKernel, ratio

# Pairs of one tile over the whole batch. On a CPU they fit into the cache of a core; on a GPU they keep it busy.
TILE_PAIRS = {"cpu": 2**18, "cuda": 2**25}
# Tensors in the scratch buffer start at multiples of this number of bytes.
ALIGNMENT = 64
# Up to this number of dimensions, squared distances and their gradients are summed dimension by dimension from
# differences, which lose no digits far from the origin. With more, the gradient is a matrix product in float64.
MAX_DIFFERENCE_DIM = 16
# The places of the operands of a score.
QUERY, KEY, PARAMETER = range(3)
# Bound on the terms of `Float64Product` times the dimensions. float64 rounds a number of this size by about 2^-25.
MAX_PRODUCT_TERM = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps / 4


class TileScores(ABC):
    """The scores of all queries and keys, computed tile by tile in the accumulation dtype.

    Attributes:
        operands: query, key and the parameters of the score, in the accumulation dtype.
        needs: which of the operands need a gradient.
        grads: the gradients so far, None where none is needed.
        at_most_zero: whether no score is above 0.
        compact_support: whether every score is minus infinity or at least log(eps^3), for the eps of the dtype.
        tile_factor: how many times larger than TILE_PAIRS a tile is on a CPU.
    """

    at_most_zero = False
    compact_support = False
    tile_factor = 1

    def __init__(self, operands: Sequence[Tensor], needs: Sequence[bool]) -> None:
        """Create gradients of 0 for the operands that need one."""
        self.operands = operands
        self.needs = needs
        self.grads = [torch.zeros_like(x) if need else None for x, need in zip(operands, needs, strict=True)]

    @abstractmethod
    def scores(self, rows: slice, cols: slice) -> Tensor:
        """Return the scores of a tile, (*batch, rows, cols). The caller and the next call may overwrite them."""

    def kernel_values(self, rows: slice, cols: slice) -> Tensor:
        """Return exp(score) of a tile. The caller and the next call may overwrite it."""
        return exp_flushed_(self.scores(rows, cols))

    @abstractmethod
    def accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """Add the contribution of a tile to the gradients of the operands.

        Args:
            rows: queries of the tile.
            cols: keys of the tile.
            d_scores: gradient of the scores, (*batch, rows, cols); may be overwritten.
        """

    def add_gradient(self, index: int, at: slice, grad: Tensor) -> None:
        """Add to the gradient of an operand, if it is needed.

        Args:
            index: place of the operand: QUERY, KEY or PARAMETER.
            at: rows of the operand.
            grad: gradient of these rows. It is summed over the batch axes along which the operand is shared.
        """
        total = self.grads[index]
        if total is not None:
            add_reduced(total[..., at, :], grad)


class Scratch:
    """A scratch buffer for one tensor of each of several dtypes. It grows when a tile needs more memory."""

    def __init__(self, device: torch.device, *dtypes: torch.dtype) -> None:
        """Allocate nothing yet."""
        self.dtypes = dtypes
        self.buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def views(self, *shapes: Sequence[int]) -> list[Tensor]:
        """Return one tensor of each shape, which do not overlap. The next call returns the same memory.

        Args:
            *shapes: at most one for each dtype of the buffer, in the same order.
        """
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, self.dtypes, strict=False)]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        if self.buffer.numel() < starts[-1]:
            self.buffer = self.buffer.new_empty(starts[-1])
        parts = zip(starts, sizes, self.dtypes, shapes, strict=False)
        return [self.buffer[first : first + size].view(dtype).view(shape) for first, size, dtype, shape in parts]


def add_reduced(total: Tensor, grad: Tensor) -> None:
    """Add a gradient in place, summed over the axes on which the total has size 1."""
    total.add_(grad if grad.shape == total.shape else grad.sum_to_size(total.shape))


def exp_flushed_(scores: Tensor) -> Tensor:
    """Replace scores by exp(score) in place. On a CPU, results below e^2 times the smallest normal number become 0.

    There subnormal results and the exponential of minus infinity take a hundred times longer than other results.
    """
    if scores.device.type != "cpu":
        return scores.exp_()
    least = math.log(torch.finfo(scores.dtype).tiny) + 1
    return torch.threshold_(scores.clamp_min_(least).exp_(), math.exp(least + 1), 0.0)


class DotScores(TileScores):
    """scale * q'k (eq. 7 to 11), with or without softcap; the operands are query and key."""

    def __init__(self, pair: DotPair, operands: Sequence[Tensor], needs: Sequence[bool]) -> None:
        """Take scale and softcap from the pair score."""
        super().__init__(operands, needs)
        self.scale, self.softcap = pair.scale, pair.softcap
        self.query, self.key = operands

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """Return one matrix product."""
        product = self._product(rows, cols)
        return product if self.softcap is None else product.div_(self.softcap).tanh_().mul_(self.softcap)

    def accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """Add dq = scale dS k and dk = scale dS' q."""
        if self.softcap is not None:
            tanh = self._product(rows, cols).div_(self.softcap).tanh_()
            d_scores = d_scores * (1 - tanh.square_())
        d_scores = d_scores * self.scale
        if self.needs[QUERY]:
            self.add_gradient(QUERY, rows, d_scores @ self.key[..., cols, :])
        if self.needs[KEY]:
            self.add_gradient(KEY, cols, d_scores.mT @ self.query[..., rows, :])

    def _product(self, rows: slice, cols: slice) -> Tensor:
        return (self.query[..., rows, :] * self.scale) @ self.key[..., cols, :].mT


class DistanceScores(TileScores):
    """log f(|q - k| / width) (eq. 4 to 6); the operands are query, key and width."""

    at_most_zero = True

    def __init__(self, pair: DistancePair, operands: Sequence[Tensor], needs: Sequence[bool]) -> None:
        """Take from the pair score its kernel and the dtype of its data, in which a boxcar decides about its edge."""
        super().__init__(operands, needs)
        self.query, self.key, self.width = operands
        self.key_columns = self.key.mT.contiguous()
        self.kernel, self.data_dtype = pair.kernel, pair.query.dtype
        self.compact_support = self.kernel.is_compact
        factor = gaussian_factor(self.width, self.kernel)
        self.product = None if factor is None else Float64Product.of(self.query, self.key, factor)
        self.factor = None if factor is None else factor.to(self.width.dtype)
        self.batch = common_batch(self.query, self.key)
        self.scratch = Scratch(self.query.device, self.query.dtype, self.query.dtype)

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """Return the log-kernel of squared distances."""
        if self.product is not None:
            return self.product.scores(rows, cols)
        if self.factor is not None:
            return self._squared(rows, cols) * _at_rows(self.factor, rows)
        return self.kernel.log_kernel(self._squared(rows, cols), _at_rows(self.width, rows), self.data_dtype)

    def kernel_values(self, rows: slice, cols: slice) -> Tensor:
        """Return the kernel values; a tapered kernel has a formula without a logarithm."""
        if not isinstance(self.kernel, TaperedKernel):
            return super().kernel_values(rows, cols)
        return self.kernel.values(ratio(self._squared(rows, cols), _at_rows(self.width, rows)).clamp_max_(1))

    def accumulate(self, rows: slice, cols: slice, d_scores: Tensor) -> None:
        """With z = |q - k|^2 / width^2, dz = dS slope(z); add what follows from it to query, key and width."""
        width = _at_rows(self.width, rows)
        z = ratio(self._squared(rows, cols), width)  # new memory, because `_accumulate_tokens` overwrites the scratch
        d_z = d_scores * self.kernel.slope(z)
        if self.needs[PARAMETER]:
            at = rows if self.width.shape[-2] > 1 else slice(None)
            # A forbidden pair has gradient 0, but its distance may be infinite, and 0 * inf is NaN.
            product = (d_z * z).masked_fill_(d_z == 0, 0.0)
            self.add_gradient(PARAMETER, at, product.sum(-1, keepdim=True).mul_(-2).div_(width))
        if self.needs[QUERY] or self.needs[KEY]:
            self._accumulate_tokens(rows, cols, ratio(d_z.mul_(2), width))

    def _accumulate_tokens(self, rows: slice, cols: slice, twice_d_squared: Tensor) -> None:
        """Add the gradients of query and key: dq = 2 sum d_squared (q - k) over keys, and dk likewise.

        Args:
            rows: queries of the tile.
            cols: keys of the tile.
            twice_d_squared: twice the gradient of |q - k|^2, (*batch, rows, cols).
        """
        query, key = self.query[..., rows, :], self.key[..., cols, :]
        # Heads with different widths may share tokens. Sum their gradients first, which saves products.
        twice_d_squared = twice_d_squared.sum_to_size(*self.batch, *twice_d_squared.shape[-2:])
        if query.shape[-1] <= MAX_DIFFERENCE_DIM:
            for dim, difference in enumerate(self._differences(rows, cols)):
                product = difference.mul_(twice_d_squared)
                self._add_column(QUERY, rows, dim, product.sum(-1))
                self._add_column(KEY, cols, dim, product.sum(-2).neg_())
            return
        query, key, twice_d_squared = query.double(), key.double(), twice_d_squared.double()
        centre = key.mean(-2, keepdim=True)
        query, key = query - centre, key - centre
        d_query = query * twice_d_squared.sum(-1, keepdim=True) - twice_d_squared @ key
        d_key = key * twice_d_squared.sum(-2).unsqueeze(-1) - twice_d_squared.mT @ query
        self.add_gradient(QUERY, rows, d_query.to(self.query.dtype))
        self.add_gradient(KEY, cols, d_key.to(self.key.dtype))

    def _add_column(self, index: int, at: slice, column: int, grad: Tensor) -> None:
        total = self.grads[index]
        if total is not None:
            add_reduced(total[..., at, column], grad)

    def _squared(self, rows: slice, cols: slice) -> Tensor:
        """Return |q - k|^2 of a tile, (*batch, rows, cols). The next call or `_differences` may overwrite it."""
        if self.query.shape[-1] > MAX_DIFFERENCE_DIM:
            query, key = self.query[..., rows, :], self.key[..., cols, :]
            return torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist").square_()
        total, _ = self._two_tiles(rows, cols)
        differences = self._differences(rows, cols)
        torch.square(next(differences), out=total)
        for difference in differences:
            if isinstance(self.kernel, Boxcar):
                # addcmul_ rounds once instead of twice, which could move a pair across the edge of a boxcar.
                total.add_(difference.square_())
            else:
                total.addcmul_(difference, difference)
        return total

    def _differences(self, rows: slice, cols: slice) -> Iterator[Tensor]:
        """Yield q - k for each dimension, (*batch, rows, cols). Each overwrites the previous one."""
        _, out = self._two_tiles(rows, cols)
        queries, keys = self.query[..., rows, :].split(1, -1), self.key_columns[..., cols].split(1, -2)
        for query, key in zip(queries, keys, strict=True):
            yield torch.sub(query, key, out=out)

    def _two_tiles(self, rows: slice, cols: slice) -> list[Tensor]:
        """Return scratch memory for two tensors (*batch, rows, cols)."""
        shape = (*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        return self.scratch.views(shape, shape)


def _at_rows(parameter: Tensor, rows: slice) -> Tensor:
    """Return a parameter (*batch, queries or 1, 1) at some of the queries."""
    return parameter if parameter.shape[-2] == 1 else parameter[..., rows, :]


def gaussian_factor(width: Tensor, kernel: Kernel) -> Tensor | None:
    """Return the factor of a Gaussian score: score = factor * |q - k|^2.

    Args:
        width: (*batch, queries or 1, 1).
        kernel: the kernel of the score.

    Returns:
        -rate / width^2 in float64. None for another kernel, if a factor is not a normal number of the width's dtype,
        and on a GPU, where this check would wait for the GPU.
    """
    if not isinstance(kernel, SquaredExponential) or width.device.type != "cpu":
        return None
    factor, numbers = -kernel.rate / width.double().square(), torch.finfo(width.dtype)
    return factor if bool(((factor >= -numbers.max) & (factor <= -numbers.tiny)).all()) else None


class Float64Product:
    """Gaussian scores as one matrix product in float64. Their absolute error is about 2^-25 before they are rounded.

    With queries and keys measured from the middle of the keys,

        factor |q - k|^2 = [factor |q|^2, -2 factor q, factor] . [1, k, |k|^2]

    The terms cancel where q is near k, so the error is the rounding of float64 at the size of the largest term. It is
    small enough if the data extend over no more than a few thousand widths.
    """

    def __init__(self, query: Tensor, key: Tensor, factor: Tensor) -> None:
        """Compute the two factors of the product.

        Args:
            query: float64 (*batch, queries, dim).
            key: float64 (*batch, keys, dim).
            factor: float64 (*batch, queries or 1, 1).
        """
        squared = [tokens.square().sum(-1, keepdim=True) for tokens in (query, key)]
        self.query = torch.cat([factor * squared[0], -2 * factor * query, factor.expand_as(factor * squared[0])], -1)
        self.key = torch.cat([torch.ones_like(squared[1]), key, squared[1]], -1).mT.contiguous()
        self.batch = common_batch(self.query, self.key)
        self.scratch = Scratch(query.device, torch.float64, torch.float32)

    @classmethod
    def of(cls, query: Tensor, key: Tensor, factor: Tensor) -> "Float64Product | None":
        """Return the product of these operands, or None.

        None for float64, for a problem that fits into one tile, and if the rounding errors of the terms are too large.

        Args:
            query: (*batch, queries, dim).
            key: (*batch, keys, dim).
            factor: float64 (*batch, queries or 1, 1), as `gaussian_factor` returns it.
        """
        if query.dtype != torch.float32 or query.shape[-2] * key.shape[-2] <= TILE_PAIRS["cpu"]:
            return None
        query, key = query.double(), key.double()
        middle = (key.amin(-2, keepdim=True) + key.amax(-2, keepdim=True)) / 2
        query, key = query - middle, key - middle
        extent = torch.linalg.vector_norm(query, dim=-1).amax() + torch.linalg.vector_norm(key, dim=-1).amax()
        largest_term = factor.abs().amax() * extent.square()
        # Times the dimensions, because the rounding error of a sum grows with its number of terms.
        return cls(query, key, factor) if bool(largest_term * query.shape[-1] <= MAX_PRODUCT_TERM) else None

    def scores(self, rows: slice, cols: slice) -> Tensor:
        """Return the scores of a tile, float32 (*batch, rows, cols)."""
        shape = (*self.batch, rows.stop - rows.start, cols.stop - cols.start)
        exact, rounded = self.scratch.views(shape, shape)
        torch.matmul(self.query[..., rows, :], self.key[..., cols], out=exact)
        return rounded.copy_(exact)
