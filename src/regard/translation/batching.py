"""Sentences of different lengths as one tensor, and the order in which they waste least of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.translation.vocabulary import PAD


def pad(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Rows of ids side by side, PAD at the end of the short ones.

    For a GPU the rows go through pinned memory, so that the copy runs beside the work that was queued before it.

    Returns:
        ids: int64 (batch, longest).
        lengths: int64 (batch), how much of each row is real.

    >>> pad([[7, 3], [5, 6, 3]])
    (tensor([[7, 3, 0],
            [5, 6, 3]]), tensor([2, 3]))
    """
    device = torch.device(device)
    sizes = [len(row) for row in rows]
    longest = max(sizes, default=0)
    ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64, device="cpu")
    lengths = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    ids = ids.view(len(sizes), longest)
    if device.type == "cuda":
        return ids.pin_memory().to(device, non_blocking=True), lengths.pin_memory().to(device, non_blocking=True)
    return ids.to(device), lengths.to(device)


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """The numbers of all sentences, `batch_size` at a time, longest first, so that neighbours are of one length.

    The longest come first: what does not fit into memory fails at once, not at the end.

    >>> batches_by_length([3, 9, 4, 8], 2)
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
