"""The best words of a distribution in a defined order, ties included, on every device."""

import torch
from torch import Tensor

BLOCK = 32
WITHOUT_SIGN = 2**31 - 1


def best_first(log_probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest entries of the last axis, by value and then by index, each (..., count).

    `torch.topk` leaves the order of ties open, and which of them it takes: it differs between devices and sizes.
    Here value and index are one integer, and no two integers are equal. To rank few of them, the axis is cut into
    blocks. The best `count` entries lie in the best `count` blocks, ordered by maximum and then by position: an
    entry of a later block has an entry before it in each of those.

    log_probabilities: (..., vocabulary), compared as float32; what rounding lifted above 0 counts as 0, and a NaN
        too, so that it cannot hide at the end.

    Returns:
        The entries in float32, and their indices.

    >>> best_first(torch.tensor([0.1, 0.4, 0.4, 0.1]).log(), 3)[1]
    tensor([1, 2, 0])
    """
    vocabulary = log_probabilities.shape[-1]
    count = min(count, vocabulary)
    if vocabulary <= BLOCK * count:
        index = torch.arange(vocabulary, device=log_probabilities.device)
        return _ranked(log_probabilities.float(), index.expand(log_probabilities.shape), count)
    highest = _block_maxima(log_probabilities).float()
    block = torch.arange(highest.shape[-1], device=highest.device).expand(highest.shape)
    chosen = _ranked(highest, block, count)[1]
    inside = torch.arange(BLOCK, device=highest.device)
    index = (chosen[..., None] * BLOCK + inside).flatten(-2)
    entries = log_probabilities.gather(-1, index.clamp(max=vocabulary - 1)).float()
    if vocabulary % BLOCK:  # the last block is short
        entries = entries.masked_fill(index >= vocabulary, -torch.inf)
    return _ranked(entries, index, count)


def _block_maxima(entries: Tensor) -> Tensor:
    """(..., vocabulary) -> (..., blocks); a NaN is a maximum."""
    whole = entries.shape[-1] // BLOCK * BLOCK
    maxima = entries[..., :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    if whole == entries.shape[-1]:
        return maxima
    return torch.cat((maxima, entries[..., whole:].amax(-1, keepdim=True)), -1)


def _ranked(entries: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Best first by (entry, -index), both packed into one integer of 64 bits.

    The bits of a float without its sign grow with its magnitude, and an entry is the better the nearer it is to 0.
    """
    below = entries.nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf).clamp_(max=0.0)
    magnitude = below.view(torch.int32).bitwise_and_(WITHOUT_SIGN)
    place = (magnitude.long().bitwise_left_shift_(32) + index).topk(count, largest=False).indices
    return entries.gather(-1, place), index.gather(-1, place)
