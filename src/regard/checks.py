"""Shapes, dtypes and devices: how they are described, compared and checked.

One alphabet everywhere: `*batch queries keys dim value_dim`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.torch_compat import in_functorch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Of the second kind are nested tensors that have sizes; torch's own kernels take them.
LAYOUTS = (torch.strided, torch.jagged)


def describe(tensor: object) -> str:
    """Say what a tensor is in the words of an error: `float32 (2, 5, 3) on cpu`."""
    if not isinstance(tensor, Tensor):
        return f"{type(tensor).__name__} {tensor!r:.60}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(tensor.shape)} on {tensor.device}"


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores, softmax and sums are formed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_int(argument: str, number: object, least: int = 1, *, repair: str = "Pass the size of that axis.") -> None:
    """Refuse what is not a whole number of so many at least; a size that a tracer left open is one."""
    if isinstance(number, torch.SymInt):
        return
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise RegardError(
            argument,
            got=repr(number),
            needed=f"a whole number, at least {least}",
            repair=repair,
        )


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on where the tensor is; tensors without numbers, on "meta", have none."""
    kind = device.type  # asked once: to name a device takes time that a short call notices
    return kind != "meta" and torch.is_autocast_enabled(kind)


def is_cast(tensor: Tensor) -> bool:
    """Whether autocast gives a tensor its own dtype: everything but float64."""
    return tensor.dtype != torch.float64 and is_autocast(tensor.device)


def has_empty(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether an input has no entries."""
    return not (query.numel() and key.numel() and value.numel())


def needs_grad(*tensors: Tensor) -> bool:
    """Return whether a gradient of these tensors may be asked for; a torch.func transform does not tell."""
    return torch.is_grad_enabled() and (any(tensor.requires_grad for tensor in tensors) or in_functorch())


def broadcast_batch(argument: str, first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The common batch shape of two tensors of equal rank; each axis is equal or 1."""
    merged = []
    for axis, (left, right) in enumerate(zip(first, second, strict=True)):
        if left != right and left != 1 and right != 1:
            raise RegardError(
                argument,
                got=f"batch axes {tuple(second)}, against {tuple(first)}",
                needed=f"axis {axis} equal to {left}, or 1",
                repair="Make the axes equal, or give size 1 to the one that is to be shared.",
            )
        merged.append(right if left == 1 else left)
    return tuple(merged)


def broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether each axis, from the right, is equal or 1."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(have in (1, want) for have, want in pairs)


def common_batch(*tensors: Tensor, argument: str = "batch") -> tuple[int, ...]:
    """The batch shape of tensors (*batch, _, _) of equal rank; argument: what an error is about.

    torch.broadcast_shapes takes many times longer, which a short call would notice.
    """
    batch = tuple(tensors[0].shape[:-2])
    for tensor in tensors[1:]:
        other = tensor.shape[:-2]
        if other != batch:
            batch = broadcast_batch(argument, batch, other)
    return batch


def check_inputs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Raise unless the inputs of a call fit together; return whether their batch axes are equal.

    query: (*batch, queries, query_dim), key: (*batch, keys, key_dim), value: (*batch, keys, value_dim).
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
            needed="one value per key: equal second-to-last axes of key and value",
            repair="Pass the values that belong to these keys, in the same order.",
        )
    return query.shape[:-2] == key.shape[:-2] == value.shape[:-2]


def _fit_with_one_batch(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the inputs fit together and have equal batch axes: a fast test for most calls."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return False
    if query.is_nested or key.is_nested or value.is_nested:
        return False
    queries, keys = query.shape, key.shape
    return (
        len(queries) == len(keys) >= 2
        and queries[:-2] == keys[:-2]
        and value.shape[:-1] == keys[:-1]
        and query.dtype == key.dtype == value.dtype
        and query.dtype in FLOATS
        and query.device == key.device == value.device
        and query.layout == key.layout == value.layout == torch.strided
    )


def is_ragged(tensor: Tensor) -> bool:
    """Whether a tensor is nested in the way that has no sizes to ask for."""
    return tensor.is_nested and tensor.layout is torch.strided


def check_tensor(name: str, tensor: Tensor) -> None:
    """Refuse what is not a floating-point tensor of tokens."""
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
    if is_ragged(tensor) or tensor.layout not in LAYOUTS:
        way = "torch.nested.to_padded_tensor, and say the lengths by Mask.lengths" if tensor.is_nested else "to_dense()"
        raise RegardError(
            name,
            got=f"a {'nested' if tensor.is_nested else tensor.layout} tensor",
            needed="a dense tensor",
            repair=f"Convert it first by {way}.",
        )
    if tensor.ndim < 2:
        raise RegardError(
            name,
            got=describe(tensor),
            needed="at least two axes, (*batch, tokens, dim)",
            repair=f"Add the missing axes, for example {name}.unsqueeze(-1) for one-dimensional points.",
        )


def _check_against_query(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.ndim != query.ndim:
        raise RegardError(
            name,
            got=f"{describe(tensor)}, while query is {describe(query)}",
            needed="query, key and value of equal rank",
            repair="Add axes of size 1 where an input is shared over a batch axis.",
        )
    if tensor.dtype != query.dtype and not (is_cast(tensor) and is_cast(query)):
        raise RegardError(
            name,
            got=f"{describe(tensor)}, while query is {describe(query)}",
            needed="query, key and value of one dtype",
            repair=f"Convert one of them, for example {name}.to(query.dtype).",
        )
    if tensor.device != query.device:
        raise RegardError(
            name,
            got=f"{describe(tensor)}, while query is {describe(query)}",
            needed="query, key and value on one device",
            repair=f"Move one of them, for example {name}.to(query.device).",
        )
