"""The statements a mask is made of, before the sizes of a call are known."""
# ruff: noqa: D102 - the methods are described once, on `Expression`

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.masks import bound
from regard.masks.bound import BoundMask
from regard.masks.checks import CallSizes, align_leading, align_right
from regard.torch_compat import call_for_reuse, can_read_values

ALIGNMENTS = ("top_left", "lower_right")
# A larger side of a window means the same as this one, and an operator can carry this number.
MAX_SIDE = 2**62


class KnownSizes(NamedTuple):
    """Sizes that follow from the tensors of a mask; None if unknown.

    is_leading: whether `batch` is the first axes of a call's batch, as for lengths, or the last, as for a matrix.
    """

    batch: tuple[int, ...] = ()
    queries: int | None = None
    keys: int | None = None
    device: torch.device | None = None
    is_leading: bool = True

    def join(self, other: "KnownSizes") -> "KnownSizes":
        """Return the sizes that follow from both."""
        longer, shorter = (self, other) if len(self.batch) >= len(other.batch) else (other, self)
        missing = (1,) * (len(longer.batch) - len(shorter.batch))
        batch = shorter.batch + missing if shorter.is_leading else missing + shorter.batch
        return KnownSizes(
            batch=tuple(one if two == 1 else two for one, two in zip(longer.batch, batch, strict=True)),
            queries=max(self.queries or 0, other.queries or 0) or None,
            keys=max(self.keys or 0, other.keys or 0) or None,
            device=self.device or other.device,
            is_leading=longer.is_leading,
        )


class Expression(ABC):
    """One statement about which keys a query may attend to."""

    __slots__ = ()

    @abstractmethod
    def bind(self, call: CallSizes) -> BoundMask:
        """Return the statement on the sizes of one call; traceable, and never waits for a device."""

    def select(self, rows: Tensor, batch_axes: int | None) -> "Expression":
        """Return the statement for the chosen rows of the first batch axis."""
        return self

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> "Expression":
        """Return the statement after keys were appended, all of which are allowed, or all forbidden."""
        return self

    def to(self, device: torch.device) -> "Expression":
        """Return the statement with its tensors on another device."""
        return self

    def known_sizes(self) -> KnownSizes:
        """Return the sizes that follow from the tensors."""
        return KnownSizes()


@dataclass(frozen=True, slots=True, eq=False)
class Band(Expression):
    """Query i may attend to the keys i - left .. i + right; None is unbounded."""

    left: int | None
    right: int | None
    align: str | None

    def bind(self, call: CallSizes) -> BoundMask:
        offset = call.first_query
        if offset is None:
            offset = self._offset(call)
        low = None if self.left is None else offset - min(self.left, MAX_SIDE)
        return bound.Band(low, None if self.right is None else offset + min(self.right, MAX_SIDE))

    def _offset(self, call: CallSizes) -> int:
        """Return the key position of query 0."""
        if self.align is None and call.queries != call.keys:
            raise RegardError(
                f"{self}",
                got=f"{call.queries} queries and {call.keys} keys",
                needed="as many queries as keys, or align=",
                repair=(
                    'Write align="lower_right" if the last query stands at the last key (decoding), '
                    'align="top_left" if query 0 stands at key 0.'
                ),
            )
        return call.keys - call.queries if self.align == "lower_right" else 0

    def __str__(self) -> str:
        align = f'align="{self.align}"' if self.align else ""
        if self.left is None and self.right == 0:
            return f"Mask.causal({align})"
        return f"Mask.window({self.left}, {self.right}{', ' if align else ''}{align})"


@dataclass(frozen=True, slots=True, eq=False)
class And(Expression):
    """Allowed where both statements allow."""

    left: Expression
    right: Expression

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.conjunction(self.left.bind(call), self.right.bind(call))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return type(self)(self.left.select(rows, batch_axes), self.right.select(rows, batch_axes))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        left = self.left.extend(old_keys, new_keys, allowed)
        return type(self)(left, self.right.extend(old_keys, new_keys, allowed))

    def to(self, device: torch.device) -> Expression:
        return type(self)(self.left.to(device), self.right.to(device))

    def known_sizes(self) -> KnownSizes:
        return self.left.known_sizes().join(self.right.known_sizes())

    def __str__(self) -> str:
        return f"({self.left} & {self.right})"


@dataclass(frozen=True, slots=True, eq=False)
class Or(And):
    """Allowed where one of the statements allows."""

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.Or(self.left.bind(call), self.right.bind(call))

    def __str__(self) -> str:
        return f"({self.left} | {self.right})"


@dataclass(frozen=True, slots=True, eq=False)
class Not(Expression):
    """Allowed where the statement forbids."""

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
    """Key j is allowed where j < length; lengths: integer (*leading batch), or with a last axis queries.

    The tensor is a copy, which never changes.
    """

    lengths: Tensor
    per_query: bool

    @classmethod
    def of(cls, lengths: Tensor, *, per_query: bool) -> "Lengths":
        """Return the statement for a tensor of the caller's, which may change later."""
        return cls(_copy(lengths), per_query)

    @property
    def name(self) -> str:
        """The public name."""
        return "Mask.lengths_per_query" if self.per_query else "Mask.lengths"

    def bind(self, call: CallSizes) -> BoundMask:
        if self.per_query:
            return bound.Lengths(align_leading(self.name, self.lengths, call, "queries", (call.queries, 1)))
        return bound.Lengths(align_leading(self.name, self.lengths, call, "", (1, 1)))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return Lengths(_choose(self.lengths, rows, self.lengths.ndim - self.per_query), self.per_query)

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        if self.per_query:
            raise _cannot_extend(self.name, old_keys, new_keys)
        known = torch.arange(old_keys, device=self.lengths.device) < self.lengths[..., None]
        return Keys(known).extend(old_keys, new_keys, allowed)

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
    """Key j is allowed where real[..., j]; real: bool (*leading batch, keys). The tensor is a copy."""

    real: Tensor

    @classmethod
    def of(cls, real: Tensor) -> "Keys":
        """Return the statement for a tensor of the caller's, which may change later."""
        return cls(_copy(real))

    def bind(self, call: CallSizes) -> BoundMask:
        return bound.Dense.of_copy(align_leading("Mask.keys", self.real, call, "keys", (1, call.keys)))

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        return Keys(_choose(self.real, rows, self.real.ndim - 1))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        if self.real.shape[-1] != old_keys:
            raise RegardError(
                "Mask.keys",
                got=describe(self.real),
                needed=f"a last axis of {old_keys} keys, as many as there were",
                repair="Grow the mask together with its keys.",
            )
        return Keys(torch.cat([self.real, self.real.new_full((*self.real.shape[:-1], new_keys), allowed)], -1))

    def to(self, device: torch.device) -> Expression:
        return Keys(self.real.to(device))

    def known_sizes(self) -> KnownSizes:
        return KnownSizes(tuple(self.real.shape[:-1]), keys=self.real.shape[-1], device=self.real.device)

    def __str__(self) -> str:
        return f"Mask.keys({describe(self.real)})"


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(Expression):
    """Pair by pair; matrix: bool (..., queries, keys), aligned from the right; True keeps, or drops."""

    matrix: Tensor
    keeps: bool

    @property
    def name(self) -> str:
        """The public name."""
        return "Mask.keep" if self.keeps else "Mask.drop"

    def bind(self, call: CallSizes) -> BoundMask:
        dense = bound.Dense(align_right(self.name, self.matrix, call))
        return dense if self.keeps else bound.Not(dense)

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        # Aligned from the right, only the number of batch axes tells whether the first axis is the first one.
        if batch_axes is None and self.matrix.ndim > 2:
            raise RegardError(
                "batch_axes",
                got=f"None, with {self}",
                needed="the number of batch axes, because this mask is aligned from the right",
                repair="Write mask.select(rows, batch_axes=2) for (batch, heads).",
            )
        if batch_axes is None or self.matrix.ndim < batch_axes + 2:
            return self
        return Matrix(_choose(self.matrix, rows, batch_axes), self.keeps)

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
    """Allowed inside one document; ids: integer (*leading batch, queries) and (*leading batch, keys)."""

    query_ids: Tensor
    key_ids: Tensor

    def bind(self, call: CallSizes) -> BoundMask:
        query_ids = align_leading("Mask.documents", self.query_ids, call, "queries", (call.queries, 1))
        return bound.SameDocument(
            query_ids, align_leading("Mask.documents", self.key_ids, call, "keys", (1, call.keys))
        )

    def select(self, rows: Tensor, batch_axes: int | None) -> Expression:
        query_ids = _choose(self.query_ids, rows, self.query_ids.ndim - 1)
        return Documents(query_ids, _choose(self.key_ids, rows, self.key_ids.ndim - 1))

    def extend(self, old_keys: int, new_keys: int, allowed: bool) -> Expression:
        raise _cannot_extend("Mask.documents", old_keys, new_keys)

    def to(self, device: torch.device) -> Expression:
        return Documents(self.query_ids.to(device), self.key_ids.to(device))

    def known_sizes(self) -> KnownSizes:
        (*batch, queries), (*key_batch, keys) = self.query_ids.shape, self.key_ids.shape
        own = KnownSizes(tuple(batch), queries=queries, device=self.query_ids.device)
        return own.join(KnownSizes(tuple(key_batch), keys=keys))

    def __str__(self) -> str:
        return f"Mask.documents({describe(self.query_ids)}, {describe(self.key_ids)})"


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy that the caller cannot change, and that a later backward pass may use."""
    return call_for_reuse(tensor.clone)


def _choose(tensor: Tensor, rows: Tensor, batch_axes: int) -> Tensor:
    """Return rows of the first batch axis; a tensor without that axis, or with size 1, is shared and stays."""
    if batch_axes == 0 or tensor.shape[0] == 1:
        return tensor
    if rows.device != tensor.device:
        raise RegardError(
            "rows",
            got=describe(rows),
            needed=f"the device of the mask, {tensor.device}",
            repair="Move one of them: rows.to(device), mask.to(device).",
        )
    if can_read_values(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < tensor.shape[0]:
        raise RegardError(
            "rows",
            got=f"rows from {int(rows.min())} to {int(rows.max())}",
            needed=f"numbers from 0 to {tensor.shape[0] - 1}, the rows of the mask",
            repair="Number the rows as the mask has them, from 0.",
        )
    return tensor.index_select(0, rows)


def _cannot_extend(name: str, old_keys: int, new_keys: int) -> RegardError:
    return RegardError(
        name,
        got=f"{new_keys} keys appended to {old_keys}",
        needed="a mask that also covers appended keys; this one covers only the existing keys",
        repair="Use Mask.lengths, Mask.keys, Mask.causal or Mask.window, or remember again with a new mask.",
    )
