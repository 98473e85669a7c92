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


def in_two_groups(batch: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, expanded along batch axes where these are shared in more than two groups.

    The backend refuses calls with more groups, but torch.vmap can add a group after that check. All tensors are then
    expanded along every axis outside the last group, so that these axes form one group.
    """
    groups = groups_of(batch, tensors)
    if len(groups) <= 2:
        return list(tensors)
    full = [axis for group in groups[:-1] for axis in group]
    shapes = [[batch[axis] if axis in full else x.shape[axis] for axis in range(len(batch))] for x in tensors]
    return [x.expand(*shape, *x.shape[-2:]) for x, shape in zip(tensors, shapes, strict=True)]


def summed_to(grads: Sequence[Tensor], sources: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Sum the gradients of expanded tensors to the shapes of the originals; unneeded gradients are unchanged."""
    return [
        grad.sum_to_size(source.shape) if need and grad.shape != source.shape else grad
        for grad, source, need in zip(grads, sources, needs, strict=True)
    ]


def fold(tensor: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """(*batch or 1, rows, columns) -> (outer or 1, inner or 1, rows, columns); a view wherever strides allow it."""
    sizes = [1, 1]
    for place, group in zip(range(2 - len(groups), 2), groups, strict=True):
        for axis in group:
            sizes[place] *= tensor.shape[axis]
    return tensor.reshape(*sizes, *tensor.shape[-2:])
