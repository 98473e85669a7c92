"""A call's tensors as the kernels read them: float32, tokens as padded columns, two batch axes, a bias of at most 0."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends.fused.batches import fold, groups_of
from regard.backends.fused.configurations import columns_for


class Layout(NamedTuple):
    """query, key, value: (outer or 1, inner or 1, tokens, dim) as they came; the rest as the kernels take it.

    width: (.., .., queries or 1), or a boxcar's reach; bias: (.., .., columns) to base 2, measured from its maximum.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    width: Tensor
    bias: Tensor | None
    outer: int
    inner: int

    @property
    def batch(self) -> int:
        """How many batch elements there are."""
        return self.outer * self.inner


def lay_out(tensors: Sequence[Tensor], link: str, batch: Sequence[int]) -> Layout:
    """tensors: query, key, width, value and perhaps bias, each of the rank of the batch plus two.

    Their batch axes are shared in two groups at most.
    """
    groups = groups_of(batch, tensors)
    query, key, width, value, *rest = (fold(tensor, groups) for tensor in tensors)
    sizes = [math.prod(batch[axis] for axis in group) for group in groups]
    outer, inner = [1, 1][: 2 - len(sizes)] + sizes
    width = width.squeeze(-1).float()
    width = _reach(width, tensors[0].dtype) if link == "boxcar" else width
    width = width.contiguous() if width.shape[-1] == 1 else columns(width.unsqueeze(-1), 1.0).squeeze(-2)
    bias = None
    if rest:
        bias = rest[0].float()
        bias = columns((bias - shift_of(bias)).mul_(math.log2(math.e)).mT, 0.0).squeeze(-2)
    return Layout(query, key, value, width, bias, outer, inner)


def shift_of(bias: Tensor) -> Tensor:
    """The maximum over keys of a bias in float32, or a finite number where every key is forbidden."""
    return bias.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)


def columns(tokens: Tensor, fill: float) -> Tensor:
    """(.., .., tokens, dim) -> (.., .., dim, columns) in float32, where `fill` pads the tokens."""
    count = tokens.shape[-2]
    width = columns_for(count)
    result = tokens.new_empty(*tokens.shape[:-2], tokens.shape[-1], width, dtype=torch.float32)
    result[..., :count].copy_(tokens.mT)
    if width > count:
        result[..., count:].fill_(fill)
    return result


def _reach(width: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest float32 whose square root, rounded to the dtype of the data, is at most the width in that dtype.

    So |q - k| <= width is decided as on the data themselves (`BoxcarKernel`), without a square root for each pair.
    """
    width = width.to(dtype)
    if dtype != torch.float32:
        above = (width.view(torch.int16) + 1).view(dtype)
        middle = (width.float() + above.float()) / 2
        inside = middle.to(dtype) == width
        width = torch.where(inside, middle, torch.nextafter(middle, middle.new_zeros(())))
    # The middle between this width and the next one has 25 bits, its square 50: exact in float64, never a float32.
    above = torch.nextafter(width, width.new_full((), math.inf))
    square = ((width.double() + above.double()) / 2).square()
    reach = square.float()
    return torch.where(reach.double() > square, torch.nextafter(reach, reach.new_zeros(())), reach)
