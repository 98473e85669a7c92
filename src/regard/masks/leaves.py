"""The leaves of a placed mask: bands, matrices, lengths and ids, each answering tile by tile.

Every tensor in here has rank len(batch) + 2, so that one leading axis can be added to all of them (vmap).
"""
# ruff: noqa: D102 - the methods are described once, on `Placed`

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.watched import is_exporting

Span = slice | Tensor
"""Positions along one axis: a slice with explicit start and stop, or a LongTensor (positions)."""


class Placed(ABC):
    """One node: `True` in a tile means "may attend"."""

    __slots__ = ()

    @property
    def is_plain_causal(self) -> bool:
        """Whether query i sees exactly the keys 0..i, which every fused kernel knows."""
        return False

    @property
    @abstractmethod
    def varies_by_query(self) -> bool:
        """False when the mask is a statement about keys alone, the same for every query."""

    @abstractmethod
    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        """Which keys `cols` the queries `rows` may attend to.

        Returns:
            bool, broadcastable to (*batch, rows, cols); an axis that is shared stays of size 1.
        """

    @abstractmethod
    def covers(self, rows: slice, cols: slice) -> bool | None:
        """True: the whole tile is allowed; False: none of it; None: mixed, or unknown without waiting.

        It reads values of CPU tensors, so it belongs inside an opaque operator, never into a traced function.
        """

    def unseen_keys(self, keys: int, device: torch.device) -> Tensor | None:
        """Keys that no query may attend to because of a statement about keys alone, such as padding.

        Returns:
            bool, broadcastable to (*batch, keys, 1), or None where there is no such statement.
        """
        if self.varies_by_query:
            return None
        return ~self.tile(slice(0, 1), slice(0, keys), device).transpose(-1, -2)

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """The tensors, in the order in which `encode` numbers them."""

    def numbers(self) -> list[int]:
        """The ends of bands, from left to right: apart from the text, because a tracer's sizes are no text."""
        return []

    @abstractmethod
    def encode(self, first: int = 0) -> str:
        """JSON text of the structure, tensors by number from `first` on: what an operator can carry."""


@dataclass(frozen=True, slots=True, eq=False)
class Band(Placed):
    """Allowed where low <= key position - query index <= high; None is unbounded."""

    low: int | None
    high: int | None

    @property
    def is_plain_causal(self) -> bool:
        if self.low is not None or self.high is None:
            return False
        if is_exporting():
            # One program for every length: sizes that happen to be equal may not decide.
            from torch.fx.experimental.symbolic_shapes import statically_known_true

            return statically_known_true(self.high == 0)
        # A branch: while sizes are symbols of a compiler the comparison is one too, and kernels want True or False.
        if self.high == 0:  # noqa: SIM103
            return True
        return False

    @property
    def varies_by_query(self) -> bool:
        return self.low is not None or self.high is not None

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        query, key = _positions(rows, device)[:, None], _positions(cols, device)
        # Vectors are compared: their difference would be an integer matrix, eight times the size of the mask.
        if self.low is None:
            return torch.ones_like(key[None] >= 0) if self.high is None else key <= query + self.high
        above = key >= query + self.low
        return above if self.high is None else above & (key <= query + self.high)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        nearest, farthest = cols.start - (rows.stop - 1), (cols.stop - 1) - rows.start
        low = nearest if self.low is None else self.low
        high = farthest if self.high is None else self.high
        if max(low, nearest) > min(high, farthest):
            return False
        return True if low <= nearest and farthest <= high else None

    def tensors(self) -> list[Tensor]:
        return []

    def numbers(self) -> list[int]:
        ends = [end for end in (self.low, self.high) if end is not None]
        # torch.jit.trace makes tensors of sizes, and wants none in a list of numbers.
        return [int(end) for end in ends] if torch.jit.is_tracing() else ends

    def encode(self, first: int = 0) -> str:
        low, high = ("false" if end is None else "true" for end in (self.low, self.high))
        return f'["band",{low},{high}]'


@dataclass(frozen=True, slots=True, eq=False)
class Dense(Placed):
    """Allowed where the matrix says so; allowed: bool (*batch | 1, queries | 1, keys | 1).

    kept: what calls have made of the matrix, to find it again in the next call with the same mask.
    """

    allowed: Tensor
    kept: dict[Any, Any] = field(default_factory=dict, init=False)

    @property
    def varies_by_query(self) -> bool:
        return self.allowed.shape[-2] != 1

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        return _pick(_pick(self.allowed, -2, rows), -1, cols)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        if self.allowed.device.type != "cpu":
            return None
        tile = self.tile(rows, cols, self.allowed.device)
        return True if bool(tile.all()) else None if bool(tile.any()) else False

    def tensors(self) -> list[Tensor]:
        return [self.allowed]

    def encode(self, first: int = 0) -> str:
        return f'["dense",{first}]'


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(Placed):
    """Allowed where the key position is below a length; lengths: integer (*batch | 1, queries | 1, 1).

    kept: what calls have made of the lengths, to find it again in the next call with the same mask.
    """

    lengths: Tensor
    kept: dict[Any, Any] = field(default_factory=dict, init=False)

    @property
    def varies_by_query(self) -> bool:
        return self.lengths.shape[-2] != 1

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        return _positions(cols, device) < _pick(self.lengths, -2, rows)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        lengths = _pick(self.lengths, -2, rows)
        if lengths.device.type != "cpu" or lengths.numel() == 0:
            return None
        shortest, longest = (int(end) for end in lengths.aminmax())
        return True if cols.stop <= shortest else False if cols.start >= longest else None

    def tensors(self) -> list[Tensor]:
        return [self.lengths]

    def encode(self, first: int = 0) -> str:
        return f'["lengths",{first}]'


@dataclass(frozen=True, slots=True, eq=False)
class Same(Placed):
    """Allowed where two ids are equal; (*batch | 1, queries | 1, 1) against (*batch | 1, 1, keys | 1)."""

    query_ids: Tensor
    key_ids: Tensor

    @property
    def varies_by_query(self) -> bool:
        return self.query_ids.shape[-2] != 1

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        return _pick(self.query_ids, -2, rows) == _pick(self.key_ids, -1, cols)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        query, key = _pick(self.query_ids, -2, rows), _pick(self.key_ids, -1, cols)
        if query.device.type != "cpu" or key.device.type != "cpu" or not query.numel() or not key.numel():
            return None
        # Ranges are compared per batch element: packed sequences need not break at the same places.
        first_query, last_query = query.aminmax(dim=-2, keepdim=True)
        first_key, last_key = key.aminmax(dim=-1, keepdim=True)
        if bool(((last_query < first_key) | (last_key < first_query)).all()):
            return False
        one_document = (first_query == last_key) & (last_query == first_key)
        return True if bool(one_document.all()) else None

    def tensors(self) -> list[Tensor]:
        return [self.query_ids, self.key_ids]

    def encode(self, first: int = 0) -> str:
        return f'["same",{first},{first + 1}]'


def _positions(span: Span, device: torch.device) -> Tensor:
    return torch.arange(span.start, span.stop, device=device) if isinstance(span, slice) else span


def _pick(tensor: Tensor, axis: int, span: Span) -> Tensor:
    """The positions `span` along an axis; an axis of size 1 is shared by all of them."""
    size = tensor.shape[axis]
    if size == 1:
        return tensor
    if isinstance(span, slice):
        if span.start == 0 and span.stop == size:
            return tensor
        return tensor.narrow(axis, span.start, span.stop - span.start)
    return tensor.index_select(axis, span)
