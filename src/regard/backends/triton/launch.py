"""Launch Triton kernels: batch axes, strides, masks, padded copies of tokens, and tile sizes.

Kernels read a tensor by its strides and have two batch axes, `outer` and `inner`. An axis of size 1 has stride 0 there,
so that a tensor which is shared over the batch is never copied.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.masks.bound import And, Band, BoundMask, Not

# The length of transposed tokens is a multiple of this, which every tile divides.
PADDING = 128
# Fewer programs leave most of a large GPU idle.
MIN_PROGRAMS = 264
# Larger than the difference of any two positions; the backend accepts up to 2^30 tokens.
MAX_OFFSET = 2**30
NO_BAND = (-MAX_OFFSET, MAX_OFFSET, 1, 0)
"""The band that allows every offset."""

Operand = tuple[Tensor | int, ...]
"""A tensor and some of its strides, as a kernel takes them."""


class Tile(NamedTuple):
    """The size of a tile and how a program runs it.

    Attributes:
        queries: queries of a tile, BM in kernels.
        keys: keys of a tile, BN in kernels.
        warps: warps of a program.
        stages: stages of its software pipeline.
    """

    queries: int
    keys: int
    warps: int
    stages: int = 2


def launch(
    kernel: Any, programs: int, *operands: Tensor | Operand | None, tile: Tile | None = None, **settings: Any
) -> None:
    """Start a kernel.

    Args:
        kernel: a function decorated with triton.jit.
        programs: number of programs.
        *operands: its first arguments.
        tile: gives its arguments BM and BN, and the options of the launch.
        **settings: its other arguments.
    """
    if tile is not None:
        settings |= {"BM": tile.queries, "BN": tile.keys, "num_warps": tile.warps, "num_stages": tile.stages}
    kernel[(programs,)](*operands, **settings)


def pick_tile(tiles: Sequence[Tile], rows: int, batch: int) -> Tile:
    """Return the first tile that gives enough programs, or the last tile.

    Args:
        tiles: possible tiles, the largest first.
        rows: number of queries, cut into blocks of `Tile.queries`.
        batch: number of batch elements.
    """
    return next((tile for tile in tiles if batch * rows >= tile.queries * MIN_PROGRAMS), tiles[-1])


def cdiv(count: int, size: int) -> int:
    """Return how many blocks of a size hold a count."""
    return -(-count // size)


def padded_width(size: int) -> int:
    """Return the width of an operand of tl.dot: the next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


# --- Batch axes ------------------------------------------------------------------------------------------------


class Folded(NamedTuple):
    """Tensors with exactly two batch axes.

    Attributes:
        tensors: each (outer or 1, inner or 1, rows, columns).
        outer: size of the first batch axis.
        inner: size of the second batch axis.
        shapes: the batch axes of each tensor before they were folded, after it was expanded.
    """

    tensors: list[Tensor]
    outer: int
    inner: int
    shapes: list[Sequence[int]]


def fold(batch: Sequence[int], tensors: Sequence[Tensor]) -> Folded:
    """Reshape tensors to two batch axes, without a copy wherever strides allow it.

    Neighbouring batch axes that are shared by the same tensors become one axis. If this gives more than two axes, the
    tensors are expanded along all but the last group of axes, which may copy them.

    Args:
        batch: the batch shape that all tensors broadcast to.
        tensors: each (*batch or 1, rows, columns).

    Returns:
        The folded tensors.
    """
    groups = shared_groups(batch, tensors)
    if len(groups) > 2:
        expanded = [axis for group in groups[:-1] for axis in group]
        shapes = [[batch[axis] if axis in expanded else x.shape[axis] for axis in range(len(batch))] for x in tensors]
        tensors = [x.expand(*shape, *x.shape[-2:]) for x, shape in zip(tensors, shapes, strict=True)]
        groups = [expanded, groups[-1]]
    groups = [[], []][len(groups) :] + groups

    def sizes(shape: Sequence[int]) -> list[int]:
        return [math.prod(shape[axis] for axis in group) for group in groups]

    outer, inner = sizes(batch)
    folded = [x.reshape(*sizes(x.shape), *x.shape[-2:]) for x in tensors]
    return Folded(folded, outer, inner, [x.shape[:-2] for x in tensors])


def shared_groups(batch: Sequence[int], tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return groups of neighbouring batch axes that the same tensors share; axes of size 1 belong to no group.

    Args:
        batch: the batch shape that all tensors broadcast to.
        tensors: each (*batch or 1, rows, columns).
    """
    groups: list[list[int]] = []
    last: list[bool] = []
    for axis, size in enumerate(batch):
        if size == 1:
            continue
        is_shared = [tensor.shape[axis] == 1 for tensor in tensors]
        if groups and is_shared == last:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        last = is_shared
    return groups


def unfold(grad: Tensor, batch: Sequence[int], source: Tensor) -> Tensor:
    """Return a gradient for every batch element as the gradient of its source, summed over shared axes.

    Args:
        grad: (outer, inner, rows, columns) or (outer * inner, rows, columns).
        batch: the batch shape.
        source: the tensor before `fold`.
    """
    grad = grad.reshape(*batch, *grad.shape[-2:])
    return grad if grad.shape == source.shape else grad.sum_to_size(source.shape)


# --- Strides and memory ----------------------------------------------------------------------------------------


def batch_strides(tensor: Tensor) -> Operand:
    """Return a tensor (outer or 1, inner or 1, ...) with the strides of its batch axes, 0 where it is shared."""
    (outer, inner), strides = tensor.shape[:2], tensor.stride()
    return tensor, strides[0] if outer > 1 else 0, strides[1] if inner > 1 else 0


def token_strides(tensor: Tensor) -> Operand:
    """Return a tensor (outer or 1, inner or 1, tokens, dim) with the strides of all axes, 0 for shared batch axes."""
    return *batch_strides(tensor), *tensor.stride()[2:]


def broadcast_strides(tensor: Tensor) -> Operand:
    """Return a tensor (outer or 1, inner or 1, queries or 1, keys or 1) with its strides, 0 for axes of size 1."""
    return tensor, *(0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def empty_float32(like: Tensor, *shape: int) -> Tensor:
    """Return float32 memory on the device of another tensor."""
    return like.new_empty(shape, dtype=torch.float32)


def padded_length(count: int) -> int:
    """Return the length of transposed tokens, a multiple of every tile."""
    return cdiv(count, PADDING) * PADDING


def transposed(tokens: Tensor, fill: float) -> Tensor:
    """Return tokens (..., tokens, dim) as (..., dim, padded tokens) in float32, with `fill` behind the last token.

    A run of tokens is then a run of memory, and every tile ends inside of it.
    """
    count = tokens.shape[-2]
    length = padded_length(count)
    result = tokens.new_empty(*tokens.shape[:-2], tokens.shape[-1], length, dtype=torch.float32)
    result[..., :count].copy_(tokens.mT)
    if length > count:
        result[..., count:].fill_(fill)
    return result


# --- Masks -----------------------------------------------------------------------------------------------------


class KernelMask(NamedTuple):
    """A mask in the form that kernels support: allowed where all key masks allow, inside a band with one gap.

    Attributes:
        keys: masks that depend on keys alone.
        band: (low, high, gap_low, gap_high), bounds of the offset key position - query position.
    """

    keys: tuple[BoundMask, ...]
    band: tuple[int, int, int, int]

    def key_bias(self, keys: int, device: torch.device, bias: Tensor | None = None) -> Tensor | None:
        """Return the bias with minus infinity for keys that are not allowed, (*batch or 1, 1, keys or 1).

        Args:
            keys: number of keys.
            device: device of the result.
            bias: (*batch or 1, 1, keys or 1); None for 0.

        Returns:
            The bias; None without key masks and without a bias.
        """
        for mask in self.keys:
            allowed = mask.tile(slice(0, 1), slice(0, keys), device)
            bias = torch.where(allowed, 0.0 if bias is None else bias, -math.inf)
        return bias


def kernel_mask_of(mask: BoundMask | None) -> KernelMask | None:
    """Return a mask in the form that kernels support, or None if it has another form."""
    keys, (low, high, gap_low, gap_high) = [], NO_BAND
    for part in _conjuncts(mask):
        if not part.varies_by_query:
            keys.append(part)
        elif isinstance(part, Band):
            low, high = max(low, _clamp(part.low, -MAX_OFFSET)), min(high, _clamp(part.high, MAX_OFFSET))
        elif isinstance(part, Not) and isinstance(part.inner, Band) and gap_low > gap_high:
            gap_low, gap_high = _clamp(part.inner.low, -MAX_OFFSET), _clamp(part.inner.high, MAX_OFFSET)
        else:
            return None
    return KernelMask(tuple(keys), (low, high, gap_low, gap_high))


def _conjuncts(mask: BoundMask | None) -> list[BoundMask]:
    """Return the masks that a mask joins with "and"."""
    if mask is None:
        return []
    return _conjuncts(mask.left) + _conjuncts(mask.right) if isinstance(mask, And) else [mask]


def _clamp(end: int | None, unbounded: int) -> int:
    return unbounded if end is None else max(min(end, MAX_OFFSET), -MAX_OFFSET)
