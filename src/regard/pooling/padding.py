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

    factor: what tokens are multiplied with, 0 for these and 1 for others; or, if something learns, what times the token
    is added to each, -1 and 0; (*batch or 1, keys, 1). bias: what is added to scores, (*batch or 1, 1, keys).
    """

    factor: Tensor
    bias: Tensor
    learns: bool

    def blank(self, tokens: Tensor) -> Tensor:
        """tokens: (*batch, keys, dim), any finite number where they are padding, which is 0 then.

        What is added is a constant to autograd, and gradients pass as they are: of tokens without weight they are 0.
        """
        if self.learns:
            return torch.addcmul(tokens, tokens.detach(), self.factor)
        return tokens * self.factor


def padding_of(mask: Mask, key: Tensor, learns: bool) -> Padding:
    """mask: one of padding alone; key: (batch, heads, keys, dim), with as many queries."""
    # Found with the mask itself, it is spared its placing.
    name = key.shape, key.dtype, key.device, learns
    return find(mask.kept, name, key.device, partial(_placed, mask, key, learns))


def _placed(mask: Mask, key: Tensor, learns: bool) -> Padding:
    batch, heads, keys, _ = key.shape
    placed = mask.place(batch=(batch, heads), queries=keys, keys=keys, device=key.device)
    assert type(placed) is Lengths or type(placed) is Dense
    # Lengths of a short batch on a CPU may have been met in another mask.
    return find(placed.kept, (key.dtype, learns), key.device, partial(_made, placed, keys, key.dtype, learns))


def _made(mask: Lengths | Dense, keys: int, dtype: torch.dtype, learns: bool) -> Padding:
    (said,) = mask.tensors()  # lengths, or which keys are allowed
    batch, to = said.shape[:2], {"dtype": dtype, "device": said.device}
    seen, bias = torch.empty((*batch, keys, 1), **to), torch.empty((*batch, 1, _rounded(keys)), **to)[..., :keys]
    if type(mask) is Lengths:
        torch.lt(_positions(keys, said.device), said, out=seen)
    else:
        seen.copy_(said.mT)
    return Padding(seen - 1 if learns else seen, torch.log(seen.mT, out=bias), learns)


def _rounded(keys: int) -> int:
    """As far apart as rows must begin: else a GPU's kernel has them copied in every call."""
    return -(-keys // ALIGNMENT) * ALIGNMENT


def _positions(keys: int, device: torch.device) -> Tensor:
    return find(POSITIONS, (keys, device), device, lambda: torch.arange(keys, device=device)[:, None])
