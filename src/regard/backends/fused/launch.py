"""How kernels are called: tensors with their strides, the settings they all have, the launch itself."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.backends.fused.conditions import ANYWHERE
from regard.backends.fused.configurations import Tile
from regard.backends.fused.layout import Layout

Operand = tuple[Tensor | int, ...]


def launch(kernel: Any, programs: int, *tensors: Tensor | Operand, tile: Tile, **settings: Any) -> None:
    """Run that many programs of a kernel, each on tiles of that size."""
    kernel[(programs,)](
        *tensors, **settings, BM=tile.queries, BN=tile.keys, num_warps=tile.warps, num_stages=tile.stages
    )


def run_programs(kernel: Any, programs: int, *tensors: Tensor | Operand | None, **settings: Any) -> None:
    """Run that many programs of a kernel with settings of its own."""
    kernel[(programs,)](*tensors, **settings)


def settings_of(layout: Layout, band: Sequence[int]) -> dict:
    """The arguments that every kernel has."""
    return {
        "inner": layout.inner,
        "queries": layout.query.shape[-2],
        "keys": layout.key.shape[-2],
        "band": tuple(band),
        "PER_QUERY": layout.width.shape[-1] > 1,
        "HAS_BIAS": layout.bias is not None,
        "HAS_BAND": tuple(band) != ANYWHERE,
    }


def bias_or(layout: Layout, other: Tensor) -> Tensor:
    """The bias, or a tensor to point at where there is none."""
    return other if layout.bias is None else layout.bias


def single(like: Tensor, *shape: int) -> Tensor:
    """Memory for float32, where another tensor is."""
    return like.new_empty(shape, dtype=torch.float32)


def place(tensor: Tensor) -> Operand:
    """A tensor (outer or 1, inner or 1, ...) with the strides of its batch axes, 0 where it is shared."""
    (outer, inner), strides = tensor.shape[:2], tensor.stride()
    return tensor, strides[0] if outer > 1 else 0, strides[1] if inner > 1 else 0


def operand(tensor: Tensor) -> Operand:
    """The same with the strides of its last two axes, for kernels that read it as it came."""
    return *place(tensor), *tensor.stride()[2:]
