"""Padding of a short call in numbers, made once for a mask: which tokens to blank, and what to add to scores."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.keeping import find
from regard.masks import Mask
from regard.masks.placed import Dense, Lengths

# In numbers added to scores.
ALIGNMENT = 8
# 0, 1, 2, … as a column, for all masks.
POSITIONS: dict[Any, Any] = {}


class Padding(NamedTuple):
    """Keys that nobody may see.

    hidden: 1 for their tokens and 0 for others, (*batch or 1, keys, 1).
    bias: minus infinity for them and 0 for others, (*batch or 1, 1, keys).
    """

    hidden: Tensor
    bias: Tensor

    def blank(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Both, (*batch, keys, dim), with 0 for what is hidden, which may be any finite number.

        What is taken away is a constant to autograd, and gradients pass as they are: those of tokens without weight
        are 0 already.
        """
        return (
            torch.addcmul(key, key.detach(), self.hidden, value=-1),
            torch.addcmul(value, value.detach(), self.hidden, value=-1),
        )


def padding_of(mask: Mask, key: Tensor) -> Padding:
    """mask: one of padding alone; key: (batch, heads, keys, dim), with as many queries."""
    # Found with the mask itself, it is spared its placing.
    return find(mask.kept, (key.shape, key.dtype, key.device), key.device, partial(_placed, mask, key))


def _placed(mask: Mask, key: Tensor) -> Padding:
    batch, heads, keys, _ = key.shape
    placed = mask.place(batch=(batch, heads), queries=keys, keys=keys, device=key.device)
    assert type(placed) is Lengths or type(placed) is Dense
    # Lengths of a short batch on a CPU may have been met in another mask.
    return find(placed.kept, key.dtype, key.device, partial(_made, placed, keys, key.dtype))


def _made(mask: Lengths | Dense, keys: int, dtype: torch.dtype) -> Padding:
    (said,) = mask.tensors()  # lengths, or which keys are allowed
    batch, to = said.shape[:2], {"dtype": dtype, "device": said.device}
    hidden, bias = torch.empty((*batch, keys, 1), **to), torch.empty((*batch, 1, _rounded(keys)), **to)[..., :keys]
    if type(mask) is Lengths:
        torch.ge(_positions(keys, said.device), said, out=hidden)
    else:
        torch.logical_not(said.mT, out=hidden)
    return Padding(hidden, torch.xlogy(hidden.mT, 0.0, out=bias))  # log 0 where something is hidden


def _rounded(keys: int) -> int:
    """As far apart as rows must begin: else a GPU's kernel has them copied in every call."""
    return -(-keys // ALIGNMENT) * ALIGNMENT


def _positions(keys: int, device: torch.device) -> Tensor:
    return find(POSITIONS, (keys, device), device, lambda: torch.arange(keys, device=device)[:, None])
