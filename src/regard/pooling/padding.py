"""Padding of a short call in numbers, made once for a mask: which tokens to blank, and what is added to scores."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.backends import ragged
from regard.keeping import find
from regard.masks import Mask
from regard.masks.placed import Dense, Lengths

# Rows of what is added begin at multiples of so many numbers, or a GPU's kernel has them copied in every call.
ALIGNMENT = 8
# 0, 1, 2, … as a column, for all masks.
COLUMNS: dict[Any, Any] = {}


class Padding(NamedTuple):
    """Keys that nobody may see.

    real: 0 for their tokens and 1 for others; hidden: 1 and 0; (*batch or 1, keys, 1) both. bias: minus infinity for
    their scores and 0 for others, (*batch or 1, 1, keys). empty: whether all keys are hidden, (*batch or 1, 1, 1).
    """

    real: Tensor
    hidden: Tensor
    bias: Tensor
    empty: Tensor

    def blank(self, tokens: Tensor, *, learns: bool) -> Tensor:
        """tokens, (*batch, keys, dim), with 0 for those that are hidden, which may be any finite number.

        In a training on a GPU what is taken away is a constant to autograd, and nothing is left to do backward, for
        which the host has no time: gradients of tokens without weight are 0 already. A real token that is infinite
        becomes NaN by it, as it would in torch's kernels for float32 there, but for no other dtype.
        """
        if learns and tokens.dtype == torch.float32 and tokens.device.type == ragged.DEVICE:
            return torch.addcmul(tokens, tokens.detach(), self.hidden, value=-1)
        return tokens * self.real


def padding_of(mask: Mask, key: Tensor) -> Padding:
    """mask: one of padding alone; key: (batch, heads, keys, dim), with as many queries; nobody watches the call."""
    kept = mask.kept
    assert kept is not None
    # Found with the mask itself, it is spared its placing.
    return find(kept, (key.shape, key.dtype, key.device), key.device, partial(_found_by_place, mask, key))


def _found_by_place(mask: Mask, key: Tensor) -> Padding:
    batch, heads, keys, _ = key.shape
    placed = mask.place(batch=(batch, heads), queries=keys, keys=keys, device=key.device)
    assert type(placed) is Lengths or type(placed) is Dense
    # Lengths of a short batch on a CPU may have been met in another mask.
    return find(placed.kept, key.dtype, key.device, partial(_made, placed, keys, key.dtype))


def _made(mask: Lengths | Dense, keys: int, dtype: torch.dtype) -> Padding:
    (said,) = mask.tensors()  # lengths, or which keys are allowed
    batch, to = said.shape[:2], {"dtype": dtype, "device": said.device}
    rounded = -(-keys // ALIGNMENT) * ALIGNMENT
    real, bias = torch.empty((*batch, keys, 1), **to), torch.empty((*batch, 1, rounded), **to)[..., :keys]
    if type(mask) is Lengths:
        torch.lt(_column(keys, said.device), said, out=real)
    else:
        real.copy_(said.mT)
    return Padding(real, 1 - real, torch.log(real.mT, out=bias), ~real.any(-2, keepdim=True))


def _column(keys: int, device: torch.device) -> Tensor:
    return find(COLUMNS, (keys, device), device, lambda: torch.arange(keys, device=device)[:, None])
