"""The expression that a mask holds: conditions on queries and keys, before the sizes of a call are known."""
# ruff: noqa: D102 - the methods are documented once, on `Expression`

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.masks import bound
from regard.masks.bound import BoundMask
from regard.masks.checks import CallSizes, align_leading, align_right
from regard.torch_compat import call_for_reuse, can_read_values

ALIGNMENTS = ("top_left", "lower_right")
# Larger sides of a window are reduced to this size, because a custom operator takes 64-bit integers only.
MAX_SIDE = 2**62


class KnownSizes(NamedTuple):
    """Sizes that follow from the tensors of a mask; None if unknown.

    Attributes:
        batch: sizes of the batch axes; empty if unknown.
        queries: number of queries.
        keys: number of keys.
        device: device of the tensors.
        is_leading: whether `batch` is aligned with the first batch axes of a call, as for lengths, or with the last
            ones, as for a matrix.
    """

    batch: tuple[int, ...] = ()
    queries: int | None = None
    keys: int | None = None
    device: torch.device | None = None
    is_leading: bool = True

    def join(self, other: "KnownSizes") -> "KnownSizes":
        """Return the sizes that follow from two masks together."""
        longer, shorter = (self, other) if len(self.batch) >= len(other.batch) else (other, self)
        missing = (1,) * (len(longer.batch) - len(shorter.batch))
        batch = shorter.batch + missing if shorter.is_leading else missing + shorter.batch
        return KnownSizes(
            batch=tuple(right if left == 1 else left for left, right in zip(longer.batch, batch, strict=True)),
            queries=_join_sizes(self.queries, other.queries),
            keys=_join_sizes(self.keys, other.keys),
            device=self.device or other.device,
            is_leading=longer.is_leading,
        )


def _join_sizes(left: int | None, right: int | None) -> int | None:
    """Return the size that two sizes of an axis broadcast to; None is unknown."""
    if left is None or right is None:
        return right if left is None else left
    return right if left == 1 else left


class Expression(ABC):
    """A condition that says which keys a query may attend to."""

    __slots__ = ()

    @abstractmethod
    def bind(self, call: CallSizes) -> BoundMask:
        """Return the condition bound to the sizes of a call.

        Can be traced, and never waits for a GPU.

        Args:
            call: the sizes of the call.

        Returns:
            The bound mask.

        Raises:
            RegardError: if a tensor does not fit the sizes or the device, or if an alignment is missing.
        """

    def select(self, rows: Tensor, batch_axes: int | None) -> "Expression":
        """Return the condition for selected rows of the first batch axis.

        Args:
            rows: int64 (rows,).
            batch_axes: number of batch axes of a call, or None if unknown.

        Returns:
            The condition; the same one if the batch shares it.

        Raises:
            RegardError: if a row does not exist, or if the condition needs `batch_axes`.
        """
        return self

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> "Expression":
        """Return the condition after keys were appended.

        Args:
            old_keys: number of keys before.
            new_keys: number of appended keys.
            allowed: whether the condition allows the appended keys.

        Returns:
            The condition on `old_keys + new_keys` keys.

        Raises:
            RegardError: if the condition covers only the existing keys.
        """
        return self

    def to(self, device: torch.device) -> "Expression":
        """Return the condition with its tensors on another device."""
        return self

    def known_sizes(self) -> KnownSizes:
        """Return the sizes that follow from the tensors."""
        return KnownSizes()


@dataclass(frozen=True, slots=True, eq=False)
class Band(Expression):
    """The query at position i may attend to the keys i - left to i + right; None is unbounded."""

    left: int | None
    right: int | None
    align: str | None

    def bind(self, call: CallSizes) -> BoundMask:
        offset = self._offset(call)
        low = None if self.left is None else offset - min(self.left, MAX_SIDE)
        high = None if self.right is None else offset + min(self.right, MAX_SIDE)
        return bound.Band(low, high)

    def _offset(self, call: CallSizes) -> int:
        """Return the position of query 0 among the keys."""
        if call.first_query is not None:
            return call.first_query
        if self.align is None and call.queries != call.keys:
            raise RegardError(
                f"{self}",
                got=f"{call.queries} queries and {call.keys} keys",
                needed="equal numbers of queries and keys, or align=",
                repair=(
                    'Write align="lower_right" if the last query is at the position of the last key, as in decoding, '
                    'or align="top_left" if query 0 is at the position of key 0.'
                ),
            )
        return call.keys - call.queries if self.align == "lower_right" else 0

    def __str__(self) -> str:
        align = f'align="{self.align}"' if self.align else ""
        if self.left is None and self.right == 0:
            return f"Mask.causal({align})"
        return f"Mask.window({self.left}, {self.right}{', ' if align else ''}{align})"


@dataclass(frozen=True, slots=True, eq=False)
class _Combination(Expression):
    """Base class of conditions made of two conditions."""

    left: Expression
    right: Expression

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return type(self)(self.left.select(rows, batch_axes), self.right.select(rows, batch_axes))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        left = self.left.extend(old_keys, new_keys, allowed)
        return type(self)(left, self.right.extend(old_keys, new_keys, allowed))

    def to(self, device: torch.device) -> Expression:
        return type(self)(self.left.to(device), self.right.to(device))

    def known_sizes(self) -> KnownSizes:
        return self.left.known_sizes().join(self.right.known_sizes())


@dataclass(frozen=True, slots=True, eq=False)
class And(_Combination):
    """Allowed where both conditions allow."""

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.conjunction(self.left.bind(call), self.right.bind(call))

    def __str__(self) -> str:
        return f"({self.left} & {self.right})"


@dataclass(frozen=True, slots=True, eq=False)
class Or(_Combination):
    """Allowed where at least one of the conditions allows."""

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.Or(self.left.bind(call), self.right.bind(call))

    def __str__(self) -> str:
        return f"({self.left} | {self.right})"


@dataclass(frozen=True, slots=True, eq=False)
class Not(Expression):
    """Allowed where the inner condition forbids."""

    inner: Expression

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.negate(self.inner.bind(call))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return Not(self.inner.select(rows, batch_axes))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        return Not(self.inner.extend(old_keys, new_keys, not allowed))

    def to(self, device: torch.device) -> Expression:
        return Not(self.inner.to(device))

    def known_sizes(self) -> KnownSizes:
        return self.inner.known_sizes()

    def __str__(self) -> str:
        return f"~{self.inner}"


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(Expression):
    """Key j is allowed if j < length.

    Attributes:
        lengths: integer (*batch), or (*batch, queries) if `per_query`; never changes.
        per_query: whether each query has its own length.
    """

    lengths: Tensor
    per_query: bool

    @classmethod
    def from_tensor(cls, lengths: Tensor, *, per_query: bool) -> "Lengths":
        """Return the condition for a copy of the caller's tensor."""
        return cls(_copy(lengths), per_query)

    @property
    def name(self) -> str:
        """Name of the constructor."""
        return "Mask.lengths_per_query" if self.per_query else "Mask.lengths"

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.Lengths(align_leading(self.name, self.lengths, call, "queries" if self.per_query else None))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return Lengths(_select_rows(self.lengths, rows, self.lengths.ndim - self.per_query), self.per_query)

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        if self.per_query:
            raise _cannot_extend(self.name, old_keys, new_keys)
        real = torch.arange(old_keys, device=self.lengths.device) < self.lengths[..., None]
        return Keys(real).extend(old_keys, new_keys, allowed)

    def to(self, device: torch.device) -> Expression:
        return Lengths(self.lengths.to(device), self.per_query)

    def known_sizes(self) -> KnownSizes:
        shape = tuple(self.lengths.shape)
        if self.per_query:
            return KnownSizes(shape[:-1], queries=shape[-1], device=self.lengths.device)
        return KnownSizes(shape, device=self.lengths.device)

    def __str__(self) -> str:
        return f"{self.name}({describe(self.lengths)})"


@dataclass(frozen=True, slots=True, eq=False)
class Keys(Expression):
    """Key j is allowed if it is a real token.

    Attributes:
        real: bool (*batch, keys); never changes.
    """

    name: ClassVar[str] = "Mask.keys"

    real: Tensor

    @classmethod
    def from_tensor(cls, real: Tensor) -> "Keys":
        """Return the condition for a copy of the caller's tensor."""
        return cls(_copy(real))

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.Dense.of_constant(align_leading(self.name, self.real, call, "keys"))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return Keys(_select_rows(self.real, rows, self.real.ndim - 1))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        if self.real.shape[-1] != old_keys:
            raise RegardError(
                self.name,
                got=describe(self.real),
                needed=f"a last axis of size {old_keys}, the number of existing keys",
                repair="Call grow each time that keys are appended.",
            )
        return Keys(torch.cat([self.real, self.real.new_full((*self.real.shape[:-1], new_keys), allowed)], -1))

    def to(self, device: torch.device) -> Expression:
        return Keys(self.real.to(device))

    def known_sizes(self) -> KnownSizes:
        return KnownSizes(tuple(self.real.shape[:-1]), keys=self.real.shape[-1], device=self.real.device)

    def __str__(self) -> str:
        return f"{self.name}({describe(self.real)})"


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(Expression):
    """Allowed where a matrix is True, or where it is False.

    Attributes:
        matrix: bool, broadcastable to (*batch, queries, keys); the caller may change it.
        keeps: whether True means "may attend"; otherwise it means "must not attend".
    """

    matrix: Tensor
    keeps: bool

    @property
    def name(self) -> str:
        """Name of the constructor."""
        return "Mask.keep" if self.keeps else "Mask.drop"

    def bind(self, call: CallSizes) -> BoundMask:
        dense = bound.Dense(align_right(self.name, self.matrix, call))
        return dense if self.keeps else bound.Not(dense)

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        # The axes are aligned from the right, so the first one is the first batch axis only if none is missing.
        if batch_axes is None and self.matrix.ndim > 2:
            raise RegardError(
                "batch_axes",
                got=f"None, with {self}",
                needed="the number of batch axes, because this mask is aligned from the right",
                repair="Write mask.select(rows, batch_axes=2) for (batch, heads).",
            )
        if batch_axes is None or self.matrix.ndim < batch_axes + 2:
            return self
        return Matrix(_select_rows(self.matrix, rows, batch_axes), self.keeps)

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        raise _cannot_extend(self.name, old_keys, new_keys)

    def to(self, device: torch.device) -> Expression:
        return Matrix(self.matrix.to(device), self.keeps)

    def known_sizes(self) -> KnownSizes:
        *batch, queries, keys = self.matrix.shape
        return KnownSizes(tuple(batch), queries, keys, self.matrix.device, is_leading=False)

    def __str__(self) -> str:
        return f"{self.name}({describe(self.matrix)})"


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Expression):
    """Allowed where query and key are in the same document.

    Attributes:
        query_ids: integer (*batch, queries).
        key_ids: integer (*batch, keys).
    """

    name: ClassVar[str] = "Mask.documents"

    query_ids: Tensor
    key_ids: Tensor

    def bind(self, call: CallSizes) -> BoundMask:
        query_ids = align_leading(self.name, self.query_ids, call, "queries")
        return bound.SameDocument(query_ids, align_leading(self.name, self.key_ids, call, "keys"))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        query_ids = _select_rows(self.query_ids, rows, self.query_ids.ndim - 1)
        return Documents(query_ids, _select_rows(self.key_ids, rows, self.key_ids.ndim - 1))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        raise _cannot_extend(self.name, old_keys, new_keys)

    def to(self, device: torch.device) -> Expression:
        return Documents(self.query_ids.to(device), self.key_ids.to(device))

    def known_sizes(self) -> KnownSizes:
        (*batch, queries), (*key_batch, keys) = self.query_ids.shape, self.key_ids.shape
        query_sizes = KnownSizes(tuple(batch), queries=queries, device=self.query_ids.device)
        return query_sizes.join(KnownSizes(tuple(key_batch), keys=keys))

    def __str__(self) -> str:
        return f"{self.name}({describe(self.query_ids)}, {describe(self.key_ids)})"


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy that the caller cannot change and that a later backward pass can save."""
    return call_for_reuse(tensor.clone)


def _select_rows(tensor: Tensor, rows: Tensor, batch_axes: int) -> Tensor:
    """Return rows of the first batch axis.

    Args:
        tensor: has the batch axes first.
        rows: int64 (rows,).
        batch_axes: number of batch axes of the tensor.

    Returns:
        The selected rows; the same tensor if the batch shares it.
    """
    if batch_axes == 0 or tensor.shape[0] == 1:
        return tensor
    if rows.device != tensor.device:
        raise RegardError(
            "rows",
            got=describe(rows),
            needed=f"the device of the mask, {tensor.device}",
            repair="Move one of them, for example rows.to(device) or mask.to(device).",
        )
    if can_read_values(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < tensor.shape[0]:
        raise RegardError(
            "rows",
            got=f"rows from {int(rows.min())} to {int(rows.max())}",
            needed=f"row numbers from 0 to {tensor.shape[0] - 1}, because the mask has {tensor.shape[0]} rows",
            repair="Pass positions along the first batch axis of the mask.",
        )
    return tensor.index_select(0, rows)


def _cannot_extend(name: str, old_keys: int, new_keys: int) -> RegardError:
    """Return the error for a condition that covers only the existing keys."""
    return RegardError(
        name,
        got=f"{new_keys} keys appended to {old_keys}",
        needed="a mask that also covers appended keys; this one covers only the existing keys",
        repair="Use Mask.lengths, Mask.keys, Mask.causal or Mask.window, or call remember again with a new mask.",
    )
