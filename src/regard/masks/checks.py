"""What a mask refuses: the checks of its tensors, alone and against the sizes of a call."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.checks import check_int, describe
from regard.errors import RegardError

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# What to write instead of a floating-point mask, by the number of its last axes that are not batch axes.
FLOAT_REPAIRS = {
    1: "If it holds only 0 and -inf, write Mask.keys(m == 0). Other numbers are a bias: pass them as bias=, with axes "
    "of size 1 for heads and queries, for example bias=m[:, None, None].",
    2: "If it holds only 0 and -inf, write Mask.keep(m == 0). Other numbers are a bias: pass them as bias=.",
}


class CallSizes(NamedTuple):
    """The sizes of one call.

    first_query: the position of query 0 counted in keys, where it is known. has_heads: the last batch axis is heads
    that a layer made.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    device: torch.device
    first_query: int | None = None
    has_heads: bool = False


def check_sizes(batch: Sequence[int], queries: int, keys: int) -> None:
    """Refuse what are no sizes of a call that is not there yet."""
    if not isinstance(batch, Sequence) or isinstance(batch, str):
        raise RegardError(
            "batch",
            got=repr(batch),
            needed="a sequence with the size of each batch axis",
            repair="Write for example (2, 8); () is no batch.",
        )
    for size in batch:
        check_int("batch", size, least=0)
    for argument, number in (("queries", queries), ("keys", keys)):
        check_int(argument, number, least=0)


def not_a_mask(argument: str, value: object) -> RegardError:
    """The error for anything that is not a Mask, with the word that its owner was looking for."""
    if not isinstance(value, Tensor):
        repair = "Write Mask.causal(), Mask.lengths(t), Mask.keep(m), …; mask=None allows everything."
    elif value.dtype == torch.bool:
        repair = (
            "Write Mask.keep(m) if True means may attend, Mask.drop(m) if True means must not; for one entry "
            "per key, Mask.keys(m) if True means a real token, ~Mask.keys(m) if True means padding."
        )
    elif value.dtype in INTEGERS:
        repair = "Write Mask.lengths(t) for numbers of keys, Mask.keys(m.bool()) for zeros and ones."
    else:
        repair = (
            "If it holds only 0 and -inf, write Mask.keys(m == 0) for one entry per key, Mask.keep(m == 0) for one "
            "entry per query and key. Other numbers are a bias: pass them as bias=."
        )
    needed = "a Mask, because a bare value does not say what True means"
    return RegardError(argument, got=describe(value), needed=needed, repair=repair)


def check_bool(argument: str, tensor: Tensor, shape: str, rank: int, repair: str) -> None:
    """Refuse anything but a boolean tensor of at least `rank` axes."""
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        cure = "Convert it first, for example torch.as_tensor(m, dtype=torch.bool)."
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            cure = FLOAT_REPAIRS[rank]
        raise RegardError(argument, got=describe(tensor), needed=f"a boolean tensor {shape}", repair=cure)
    if tensor.ndim < rank:
        raise RegardError(argument, got=describe(tensor), needed=f"a boolean tensor {shape}", repair=repair)


def check_integer(argument: str, tensor: Tensor, shape: str, rank: int) -> None:
    """Refuse anything but an integer tensor of at least `rank` axes."""
    if not isinstance(tensor, Tensor):
        repair = "Convert it first, for example torch.tensor(...)."
    elif tensor.dtype not in INTEGERS:
        repair = "Convert it first, for example .long()."
        if tensor.dtype == torch.bool:
            repair = "For booleans write Mask.keep, Mask.drop or Mask.keys."
    elif tensor.ndim < rank:
        repair = "Add the missing last axis."
    else:
        return
    raise RegardError(argument, got=describe(tensor), needed=f"an integer tensor {shape}", repair=repair)


def align_leading(argument: str, tensor: Tensor, call: CallSizes, axis: str, tail: tuple[int, ...]) -> Tensor:
    """Align a tensor with the leading batch axes; later ones (heads) become size 1.

    Args:
        argument: the word of the mask, for errors.
        tensor: (*leading batch), or (*leading batch, axis).
        call: the sizes.
        axis: "queries", "keys", or "" where there is no such last axis.
        tail: the last two axes of the result.

    Returns:
        The same numbers as (*batch | 1, *tail).
    """
    check_device(argument, tensor, call)
    shape = tuple(tensor.shape)
    leading = shape[:-1] if axis else shape
    if axis and shape[-1] != (call.queries if axis == "queries" else call.keys):
        raise RegardError(
            argument,
            got=f"{describe(tensor)} in a call with {call.queries} queries and {call.keys} keys",
            needed=f"a last axis with one entry for each of the {axis}",
            repair=f"Pass the mask that belongs to these {axis}.",
        )
    if len(leading) > len(call.batch) or not _fits(leading, call.batch):
        raise RegardError(
            argument,
            got=f"{describe(tensor)} in a call with batch axes {call.batch}",
            needed="the leading batch axes in order, each equal or 1" + (f", then {axis}" if axis else ""),
            repair="Reorder the axes, or give size 1 to a shared one; heads at the end may be missing.",
        )
    return tensor.view(leading + (1,) * (len(call.batch) - len(leading)) + tail)


def align_right(argument: str, tensor: Tensor, call: CallSizes) -> Tensor:
    """Align (…, queries, keys) from the right, as broadcasting does: (*batch | 1, queries | 1, keys | 1)."""
    check_device(argument, tensor, call)
    shape, full = tuple(tensor.shape), (*call.batch, call.queries, call.keys)
    missing = len(full) - len(shape)
    if missing < 0 or not _fits(shape, full[missing:]):
        raise RegardError(
            argument,
            got=f"{describe(tensor)} in a call of (*batch, queries, keys) = {full}",
            needed="axes that match from the right, each equal or 1",
            repair="Give a shared axis size 1: m[:, None] makes (batch, 1, queries, keys), for all heads.",
        )
    if call.has_heads and 0 < missing < len(full) - 2 and shape[-3] != 1:
        raise RegardError(
            argument,
            got=f"{describe(tensor)}, which may mean rows of the batch or heads of the layer",
            needed=f"all axes of (*batch, heads, queries, keys) = {full}, or queries and keys alone",
            repair="Write m[:, None] for a mask of each row of the batch, m[None] for one of each head.",
        )
    return tensor.view((1,) * missing + shape) if missing else tensor


def check_device(argument: str, tensor: Tensor, call: CallSizes) -> None:
    """Refuse a mask that lives elsewhere than the query."""
    if tensor.device != call.device:
        raise RegardError(
            argument,
            got=describe(tensor),
            needed=f"the device of the query, {call.device}",
            repair="Move the mask first: mask.to(query.device).",
        )


def _fits(shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    # A loop, because a generator costs a microsecond on every call.
    for size, full in zip(shape, sizes, strict=False):  # noqa: SIM110
        if size not in (1, full):
            return False
    return True
