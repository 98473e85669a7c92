"""Checks of a mask's tensors: when a mask is built, and against the sizes of a call."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.checks import check_int, describe
from regard.errors import RegardError

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""The supported dtypes of lengths and document ids."""


def float_repair(condition: str, bias: str = "pass them as bias=") -> str:
    """Return how to fix a floating-point mask, which is added to the scores in other libraries.

    Args:
        condition: what to do if the mask only allows and forbids.
        bias: what to do with other numbers.

    Returns:
        Two sentences for an error message.
    """
    return f"If it holds only 0 and -inf, {condition}. Other numbers are a bias: {bias}."


# How to fix a floating-point mask, by its number of axes that are not batch axes.
FLOAT_REPAIRS = {
    1: float_repair(
        "write Mask.keys(m == 0)",
        "pass them as bias=, with axes of size 1 for heads and queries, for example bias=m[:, None, None]",
    ),
    2: float_repair("write Mask.keep(m == 0)"),
}


class CallSizes(NamedTuple):
    """The sizes and the device of one call.

    Attributes:
        batch: sizes of the batch axes, heads included.
        queries: number of queries.
        keys: number of keys.
        device: device of the query.
        first_query: position of query 0 among the keys, or None if the call does not know it.
        has_heads: whether the last batch axis is the heads of a layer.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    device: torch.device
    first_query: int | None = None
    has_heads: bool = False


def check_sizes(batch: Sequence[int], queries: int, keys: int) -> None:
    """Raise unless the arguments are valid sizes of a call.

    Args:
        batch: sizes of the batch axes.
        queries: number of queries.
        keys: number of keys.

    Raises:
        RegardError: if `batch` is not a sequence, or if a size is not an int or is negative.
    """
    if not isinstance(batch, Sequence) or isinstance(batch, str):
        raise RegardError(
            "batch",
            got=repr(batch),
            needed="a sequence with the size of each batch axis",
            repair="Pass for example (2, 8), or () if there are no batch axes.",
        )
    for size in batch:
        check_int("batch", size, least=0)
    for argument, number in (("queries", queries), ("keys", keys)):
        check_int(argument, number, least=0)


def not_a_mask_error(argument: str, value: object) -> RegardError:
    """Return the error for a value that is not a Mask; it names the constructor to use.

    Args:
        argument: name of the argument for the error message.
        value: the value that was given.

    Returns:
        The error.
    """
    if not isinstance(value, Tensor):
        repair = (
            "Write Mask.causal(), Mask.lengths(t), Mask.keep(m) or another constructor; mask=None allows every key."
        )
    elif value.dtype == torch.bool:
        repair = (
            'Write Mask.keep(m) if True means "may attend", or Mask.drop(m) if True means "must not attend". For one '
            "entry per key, write Mask.keys(m) if True means a real token, or ~Mask.keys(m) if True means padding."
        )
    elif value.dtype in INTEGERS:
        repair = "Write Mask.lengths(t) if it holds numbers of keys, or Mask.keys(m.bool()) if it holds zeros and ones."
    else:
        repair = float_repair(
            "write Mask.keys(m == 0) for one entry per key, or Mask.keep(m == 0) for one entry per query and key"
        )
    needed = "a Mask, because a bare value does not say what True means"
    return RegardError(argument, got=describe(value), needed=needed, repair=repair)


def check_bool(argument: str, tensor: Tensor, shape: str, rank: int, rank_repair: str) -> None:
    """Raise unless `tensor` is a boolean tensor with at least `rank` axes.

    Args:
        argument: name of the argument for the error message.
        tensor: the value to check.
        shape: the needed shape, for the error message.
        rank: the smallest number of axes.
        rank_repair: how to fix a tensor with fewer axes.

    Raises:
        RegardError: if type, dtype or rank does not fit.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            repair = FLOAT_REPAIRS[rank]
        else:
            repair = "Convert it first, for example torch.as_tensor(m, dtype=torch.bool)."
    elif tensor.ndim < rank:
        repair = rank_repair
    else:
        return
    raise RegardError(argument, got=describe(tensor), needed=f"a boolean tensor {shape}", repair=repair)


def check_integer(argument: str, name: str, tensor: Tensor, shape: str, rank: int) -> None:
    """Raise unless `tensor` is an integer tensor with at least `rank` axes.

    Args:
        argument: name of the constructor for the error message.
        name: name of its argument for the error message.
        tensor: the value to check.
        shape: the needed shape, for the error message.
        rank: the smallest number of axes.

    Raises:
        RegardError: if type, dtype or rank does not fit.
    """
    if not isinstance(tensor, Tensor):
        repair = f"Convert {name} first, for example torch.as_tensor({name})."
    elif tensor.dtype not in INTEGERS:
        repair = f"Convert {name} first, for example {name}.long()."
        if tensor.dtype == torch.bool:
            repair = "For a boolean tensor, use Mask.keep, Mask.drop or Mask.keys."
    elif tensor.ndim < rank:
        repair = f"Add the missing last axis to {name}."
    else:
        return
    raise RegardError(argument, got=describe(tensor), needed=f"an integer tensor {shape}", repair=repair)


def align_leading(
    argument: str, tensor: Tensor, call: CallSizes, axis: Literal["queries", "keys"] | None = None
) -> Tensor:
    """Align the batch axes of a tensor with the first batch axes of a call.

    Args:
        argument: name of the constructor for the error message.
        tensor: (*batch), or (*batch, queries) or (*batch, keys); batch axes at the end, such as heads, may be missing.
        call: the sizes of the call.
        axis: the last axis of the tensor; None if it has batch axes only.

    Returns:
        The same numbers as (*batch or 1, queries, 1), (*batch or 1, 1, keys) or (*batch or 1, 1, 1).

    Raises:
        RegardError: if the device or a size does not fit.
    """
    _check_device(argument, tensor, call)
    leading, tail = tuple(tensor.shape), (1, 1)
    if axis is not None:
        *leading, last = tensor.shape
        size = call.queries if axis == "queries" else call.keys
        if last != size:
            raise RegardError(
                argument,
                got=f"{describe(tensor)} in a call with {call.queries} queries and {call.keys} keys",
                needed=f"a last axis with one entry for each of the {axis}",
                repair=f"Pass the mask that belongs to these {axis}.",
            )
        tail = (size, 1) if axis == "queries" else (1, size)
    if len(leading) > len(call.batch) or not _fits(leading, call.batch):
        raise RegardError(
            argument,
            got=f"{describe(tensor)} in a call with batch axes {call.batch}",
            needed="the first batch axes of the call in order, each of equal size or 1"
            + ("" if axis is None else f", then one axis for the {axis}"),
            repair="Reorder the axes, or give size 1 to a shared axis. Batch axes at the end, such as heads, may be "
            "left out.",
        )
    missing = (1,) * (len(call.batch) - len(leading))
    return tensor.view(*leading, *missing, *tail)


def align_right(argument: str, tensor: Tensor, call: CallSizes) -> Tensor:
    """Align a tensor with the axes (*batch, queries, keys) of a call from the right, as broadcasting does.

    Args:
        argument: name of the constructor for the error message.
        tensor: broadcastable to (*batch, queries, keys).
        call: the sizes of the call.

    Returns:
        The same entries as (*batch or 1, queries or 1, keys or 1).

    Raises:
        RegardError: if the device or a size does not fit, or if an axis may mean either the batch or the heads.
    """
    _check_device(argument, tensor, call)
    shape, full = tuple(tensor.shape), (*call.batch, call.queries, call.keys)
    missing = len(full) - len(shape)
    if missing < 0 or not _fits(shape, full[missing:]):
        raise RegardError(
            argument,
            got=f"{describe(tensor)} in a call with (*batch, queries, keys) = {full}",
            needed="axes that match these from the right, each of equal size or 1",
            repair="Give size 1 to a shared axis, for example m[:, None] for a (batch, queries, keys) mask that all "
            "heads share.",
        )
    # With some batch axes missing, axis -3 could be the batch or the heads.
    if call.has_heads and 0 < missing < len(full) - 2 and shape[-3] != 1:
        raise RegardError(
            argument,
            got=f"{describe(tensor)}, whose first axis may be the batch or the heads",
            needed=f"all axes of (*batch, heads, queries, keys) = {full}, or only queries and keys",
            repair="Write m[:, None] for one mask per example, or m[None] for one mask per head.",
        )
    return tensor.view((1,) * missing + shape) if missing else tensor


def _check_device(argument: str, tensor: Tensor, call: CallSizes) -> None:
    """Raise unless the tensor of a mask is on the device of the query."""
    if tensor.device != call.device:
        raise RegardError(
            argument,
            got=describe(tensor),
            needed=f"the device of the query, {call.device}",
            repair="Move the mask first, for example mask.to(query.device).",
        )


def _fits(shape: Sequence[int], sizes: tuple[int, ...]) -> bool:
    """Return whether each axis, from the left, has size 1 or the size of the call.

    `checks.can_broadcast` compares from the right instead.
    """
    # A loop, because a generator costs a microsecond on every call.
    for size, full in zip(shape, sizes, strict=False):  # noqa: SIM110
        if size not in (1, full):
            return False
    return True
