"""Which kernels differentiate a call, and the sums over axes that a tensor was shared along."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.fused import configurations as tables
from regard.backends.fused.forward import BY_PRODUCT
from regard.backends.fused.launch_narrow_backward import NarrowLaunch
from regard.backends.fused.launch_wide_backward import ProductLaunch, WideLaunch
from regard.backends.fused.layout import lay_out
from regard.backends.fused.to_differentiate import Given
from regard.checks import common_batch


def gradients(
    results: Sequence[Tensor], tensors: Sequence[Tensor], link: str, band: Sequence[int], needs: Sequence[bool]
) -> list[Tensor]:
    """A gradient for each of query, key, width, value and perhaps bias; empty where it is not needed."""
    batch = common_batch(*tensors)
    given = Given.of(results, lay_out(tensors, link, batch), link, band)
    with torch.cuda.device_of(tensors[0]):
        kernels = _kernels(given)
        query = width = key = value = bias = None
        if needs[0] or needs[2]:
            query, width = kernels.rows()
        if needs[1] or any(needs[3:]):
            key, value, bias = kernels.columns()
    found = [query, key, width, value, bias][: len(tensors)]
    return [
        _shared(grad, source, batch) if need and grad is not None else source.new_empty(0)
        for grad, source, need in zip(found, tensors, needs, strict=True)
    ]


def _kernels(given: Given) -> NarrowLaunch | WideLaunch | ProductLaunch:
    if given.dim > tables.NARROW_DIM:
        return ProductLaunch.of(given) if given.link in BY_PRODUCT else WideLaunch.of(given)
    return NarrowLaunch.of(given) if given.value_dim <= tables.NARROW_VALUES else WideLaunch.of(given)


def _shared(grad: Tensor, source: Tensor, batch: Sequence[int]) -> Tensor:
    """A gradient (outer, inner, rows, columns) as one of its source, summed over the axes on which that has size 1."""
    grad = grad.reshape(*batch, *grad.shape[-2:])
    return (grad if grad.shape == source.shape else grad.sum_to_size(source.shape)).to(source.dtype).contiguous()
