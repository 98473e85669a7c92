"""The words behind `Mask`: what a word must answer, the bands by position, and the joining of words."""
# ruff: noqa: D102 - the methods are described once, on `Word`

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.masks import placed
from regard.masks.checks import Call

ALIGNMENTS = ("top_left", "lower_right")
# A side that reaches further is as good as this one, which an operator's numbers can hold.
FAR = 2**62


class Told(NamedTuple):
    """What a mask knows of a call before there is one; None where it knows nothing.

    is_leading: whether batch is the first axes of the call's, as lengths have them, or the last, as a matrix has.
    """

    batch: tuple[int, ...] = ()
    queries: int | None = None
    keys: int | None = None
    device: torch.device | None = None
    is_leading: bool = True

    def join(self, other: "Told") -> "Told":
        """What both know."""
        longer, shorter = (self, other) if len(self.batch) >= len(other.batch) else (other, self)
        missing = (1,) * (len(longer.batch) - len(shorter.batch))
        batch = shorter.batch + missing if shorter.is_leading else missing + shorter.batch
        return Told(
            batch=tuple(one if two == 1 else two for one, two in zip(longer.batch, batch, strict=True)),
            queries=max(self.queries or 0, other.queries or 0) or None,
            keys=max(self.keys or 0, other.keys or 0) or None,
            device=self.device or other.device,
            is_leading=longer.is_leading,
        )


class Word(ABC):
    """One statement about who may attend to whom."""

    __slots__ = ()

    @abstractmethod
    def place(self, call: Call) -> placed.Placed:
        """The same statement on the sizes of one call; traces, and never waits for a device."""

    def select(self, rows: Tensor, batch_axes: int | None) -> "Word":
        """The statement for the chosen rows of the first batch axis."""
        return self

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> "Word":
        """The statement after keys were appended, which are all allowed (fill) or all forbidden."""
        return self

    def to(self, device: torch.device) -> "Word":
        """The statement with its tensors on another device."""
        return self

    def told(self) -> Told:
        """What the tensors tell about a call."""
        return Told()


@dataclass(frozen=True, slots=True, eq=False)
class Band(Word):
    """Query i sees keys i - left .. i + right; None is unbounded."""

    left: int | None
    right: int | None
    align: str | None

    def place(self, call: Call) -> placed.Placed:
        offset = call.first_query
        if offset is None:
            offset = self._offset(call)
        low = None if self.left is None else offset - min(self.left, FAR)
        return placed.Band(low, None if self.right is None else offset + min(self.right, FAR))

    def _offset(self, call: Call) -> int:
        """Which key query 0 stands at; sizes are compared where nothing else says it."""
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
class Both(Word):
    """Allowed where both words allow."""

    left: Word
    right: Word

    def place(self, call: Call) -> placed.Placed:
        return placed.both(self.left.place(call), self.right.place(call))

    def select(self, rows: Tensor, batch_axes: int | None) -> Word:
        return type(self)(self.left.select(rows, batch_axes), self.right.select(rows, batch_axes))

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> Word:
        left = self.left.grow(old_keys, new_keys, fill)
        return type(self)(left, self.right.grow(old_keys, new_keys, fill))

    def to(self, device: torch.device) -> Word:
        return type(self)(self.left.to(device), self.right.to(device))

    def told(self) -> Told:
        return self.left.told().join(self.right.told())

    def __str__(self) -> str:
        return f"({self.left} & {self.right})"


@dataclass(frozen=True, slots=True, eq=False)
class Either(Both):
    """Allowed where one of the words allows."""

    def place(self, call: Call) -> placed.Placed:
        return placed.Either(self.left.place(call), self.right.place(call))

    def __str__(self) -> str:
        return f"({self.left} | {self.right})"


@dataclass(frozen=True, slots=True, eq=False)
class Not(Word):
    """Allowed where the word forbids."""

    inner: Word

    def place(self, call: Call) -> placed.Placed:
        return placed.negate(self.inner.place(call))

    def select(self, rows: Tensor, batch_axes: int | None) -> Word:
        return Not(self.inner.select(rows, batch_axes))

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> Word:
        return Not(self.inner.grow(old_keys, new_keys, not fill))

    def to(self, device: torch.device) -> Word:
        return Not(self.inner.to(device))

    def told(self) -> Told:
        return self.inner.told()

    def __str__(self) -> str:
        return f"~{self.inner}"
