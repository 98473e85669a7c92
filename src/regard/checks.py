"""Checks of shapes, dtypes and devices, and how error messages describe a tensor.

Shapes are written with these axis names: `*batch`, `queries` or `keys` (`tokens` for either), and `dim`; `query_dim`,
`key_dim` and `value_dim` where these sizes may differ.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.torch_compat import in_functorch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The supported dtypes."""
LAYOUTS = (torch.strided, torch.jagged)
"""The supported layouts. Torch's attention kernels accept jagged nested tensors."""
Rows = slice | Tensor
"""Positions along an axis: a slice with start and stop, or an int64 tensor."""


def describe(tensor: object) -> str:
    """Describe a tensor for an error message: its dtype, shape and device.

    Args:
        tensor: a tensor, or whatever was given in its place.

    Returns:
        The description; for another object its type and the first characters of its repr.

    >>> describe(torch.zeros(2, 5, 3))
    'float32 (2, 5, 3) on cpu'
    """
    if not isinstance(tensor, Tensor):
        return f"{type(tensor).__name__} {tensor!r:.60}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(tensor.shape)} on {tensor.device}"


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which scores, softmax and sums are computed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_int(argument: str, number: object, least: int = 1, *, repair: str | None = None) -> None:
    """Raise unless `number` is an int that is at least `least`. Symbolic sizes are accepted.

    Args:
        argument: name of the argument for the error message.
        number: the value to check.
        least: the smallest number that is allowed.
        repair: how to fix the call; None for "Pass an integer of at least" `least`.

    Raises:
        RegardError: if `number` is not an int, is a bool, or is too small.
    """
    if isinstance(number, torch.SymInt):
        return
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise RegardError(
            argument,
            got=repr(number),
            needed=f"a whole number, at least {least}",
            repair=f"Pass an integer of at least {least}." if repair is None else repair,
        )


def is_autocast_enabled(device: torch.device) -> bool:
    """Return whether autocast is enabled for the type of a device; there is no autocast for "meta"."""
    device_type = device.type  # read once, because each access takes time that matters in a short call
    return device_type != "meta" and torch.is_autocast_enabled(device_type)


def is_cast_by_autocast(tensor: Tensor) -> bool:
    """Return whether autocast is enabled and converts this tensor; it leaves float64 unchanged."""
    return tensor.dtype != torch.float64 and is_autocast_enabled(tensor.device)


def has_empty_input(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether one of the inputs has no entries."""
    return not (query.numel() and key.numel() and value.numel())


def needs_grad(*tensors: Tensor) -> bool:
    """Return whether autograd may need gradients with respect to these tensors.

    True inside a torch.func transform, because the tensors there do not show whether they are differentiated.
    """
    return torch.is_grad_enabled() and (any(tensor.requires_grad for tensor in tensors) or in_functorch())


def broadcast_batch(argument: str, first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the common batch shape of two tensors of equal rank; sizes are equal, or one of them is 1.

    Args:
        argument: name of the second argument for the error message.
        first: batch axes of the first tensor.
        second: batch axes of the second tensor.

    Returns:
        The shape that both broadcast to.

    Raises:
        RegardError: if two sizes differ and neither is 1.
    """
    merged = []
    for axis, (left, right) in enumerate(zip(first, second, strict=True)):
        if left != right and left != 1 and right != 1:
            raise RegardError(
                argument,
                got=f"batch axes {tuple(second)}, while the other batch axes are {tuple(first)}",
                needed=f"size {left} or 1 for batch axis {axis}",
                repair="Make the sizes equal, or give size 1 to an axis that is shared.",
            )
        merged.append(right if left == 1 else left)
    return tuple(merged)


def can_broadcast(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether a shape broadcasts to a target shape: aligned from the right, each size is equal or 1."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, target_size) for size, target_size in pairs)


def common_batch(*tensors: Tensor, argument: str = "batch") -> tuple[int, ...]:
    """Return the common batch shape of tensors of equal rank.

    Args:
        *tensors: (*batch, _, _).
        argument: name of the argument for the error message.

    Returns:
        The batch shape that all tensors broadcast to.

    Raises:
        RegardError: if the batch axes do not broadcast.
    """
    # torch.broadcast_shapes takes many times longer, which would slow down short calls.
    batch = tuple(tensors[0].shape[:-2])
    for tensor in tensors[1:]:
        other = tensor.shape[:-2]
        if other != batch:
            batch = broadcast_batch(argument, batch, other)
    return batch


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Check that query, key and value fit together, and return whether their batch axes are equal.

    Args:
        query: (*batch, queries, query_dim).
        key: (*batch, keys, key_dim).
        value: (*batch, keys, value_dim).

    Returns:
        True if no batch axis is broadcast.

    Raises:
        RegardError: if an input is not a floating-point tensor, or if ranks, dtypes, devices or sizes do not fit.
    """
    if _fit_with_one_batch(query, key, value):
        return True
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
    batch = query.shape[:-2]
    for name, tensor in (("key", key), ("value", value)):
        _check_against_query(name, tensor, query)
        if tensor.shape[:-2] != batch:
            batch = broadcast_batch(name, batch, tensor.shape[:-2])
    if key.shape[-2] != value.shape[-2]:
        raise RegardError(
            "value",
            got=f"{value.shape[-2]} rows for {key.shape[-2]} keys",
            needed="one value per key, so that the second-to-last axes of key and value are equal",
            repair="Pass the values that belong to these keys, in the same order.",
        )
    return query.shape[:-2] == key.shape[:-2] == value.shape[:-2]


def _fit_with_one_batch(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the inputs fit together and have equal batch axes: a fast check that most calls pass."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return False
    if query.is_nested or key.is_nested or value.is_nested:
        return False
    query_shape, key_shape = query.shape, key.shape
    return (
        len(query_shape) == len(key_shape) >= 2
        and query_shape[:-2] == key_shape[:-2]
        and value.shape[:-1] == key_shape[:-1]
        and query.dtype == key.dtype == value.dtype
        and query.dtype in FLOATS
        and query.device == key.device == value.device
        and query.layout == key.layout == value.layout == torch.strided
    )


def is_strided_nested(tensor: Tensor) -> bool:
    """Return whether a tensor is a nested tensor of strided layout, which does not support `shape`."""
    return tensor.is_nested and tensor.layout is torch.strided


def check_tensor(name: str, tensor: object) -> None:
    """Raise unless `tensor` is a dense or jagged floating-point tensor with at least two axes.

    Args:
        name: name of the argument for the error message.
        tensor: the value to check.

    Raises:
        RegardError: if type, dtype, layout or rank does not fit.
    """
    if not isinstance(tensor, Tensor):
        raise RegardError(
            name,
            got=describe(tensor),
            needed="a torch.Tensor",
            repair=f"Convert it first, for example torch.as_tensor({name}).",
        )
    if tensor.dtype not in FLOATS:
        raise RegardError(
            name,
            got=describe(tensor),
            needed="float32, float64, bfloat16 or float16",
            repair=f"Convert it first, for example {name}.float().",
        )
    if is_strided_nested(tensor) or tensor.layout not in LAYOUTS:
        repair = f"Convert it first with {name}.to_dense()."
        if tensor.is_nested:
            repair = "Convert it first with torch.nested.to_padded_tensor, and pass mask=Mask.lengths(lengths)."
        raise RegardError(
            name,
            got=f"a {'nested' if tensor.is_nested else tensor.layout} tensor",
            needed="a dense or a jagged tensor",
            repair=repair,
        )
    if tensor.ndim < 2:
        raise RegardError(
            name,
            got=describe(tensor),
            needed="at least two axes, (*batch, tokens, dim)",
            repair=f"Add the missing axes, for example {name}.unsqueeze(-1) for one-dimensional points.",
        )


def _check_against_query(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise a RegardError unless key or value has the rank, dtype and device of the query.

    Args:
        name: name of the argument for the error message.
        tensor: the key or the value.
        query: the query.

    Raises:
        RegardError: if the rank or the device differs, or if the dtype differs and autocast does not convert both.
    """
    if tensor.ndim != query.ndim:
        needed = "query, key and value of equal rank"
        repair = "Add an axis of size 1 for each batch axis over which an input is shared."
    elif tensor.dtype != query.dtype and not (is_cast_by_autocast(tensor) and is_cast_by_autocast(query)):
        needed = "query, key and value of one dtype"
        repair = f"Convert one of them, for example {name}.to(query.dtype)."
    elif tensor.device != query.device:
        needed = "query, key and value on one device"
        repair = f"Move one of them, for example {name}.to(query.device)."
    else:
        return
    raise RegardError(name, got=f"{describe(tensor)}, while query is {describe(query)}", needed=needed, repair=repair)
