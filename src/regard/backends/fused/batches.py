"""Batch axes as the two that the kernels have, so that an axis of size 1 is shared by its stride and never copied."""

from collections.abc import Sequence

from torch import Tensor


def groups_of(batch: Sequence[int], tensors: Sequence[Tensor]) -> list[list[int]]:
    """Neighbouring batch axes that the same tensors share, as one group; axes of size 1 belong to none.

    tensors: each (*batch or 1, rows, columns).
    """
    groups: list[list[int]] = []
    last: list[bool] = []
    for axis, size in enumerate(batch):
        if size == 1:
            continue
        shared = [tensor.shape[axis] == 1 for tensor in tensors]
        if groups and shared == last:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        last = shared
    return groups


def fold(tensor: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """(*batch or 1, rows, columns) -> (outer or 1, inner or 1, rows, columns); a view wherever strides allow it."""
    sizes = [1, 1]
    for place, group in zip(range(2 - len(groups), 2), groups, strict=True):
        for axis in group:
            sizes[place] *= tensor.shape[axis]
    return tensor.reshape(*sizes, *tensor.shape[-2:])
