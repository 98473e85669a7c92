"""A mask as a backend sees it: placed on the sizes of one call, carried as text, asked tile by tile.

The set is closed: the leaves `Band`, `Dense`, `Lengths`, `Same`, joined by `Both`, `Either`, `Not`.
"""
# ruff: noqa: D102 - the methods are described once, on `Placed`

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from regard.masks.leaves import Band, Dense, Lengths, Placed, Same, Span

__all__ = [
    "Band",
    "Both",
    "Dense",
    "Either",
    "Lengths",
    "Not",
    "Placed",
    "Same",
    "both",
    "condition_on_keys",
    "decode",
    "map_tensors",
    "negate",
]


@dataclass(frozen=True, slots=True, eq=False)
class Both(Placed):
    """Allowed where left and right allow."""

    left: Placed
    right: Placed

    @property
    def varies_by_query(self) -> bool:
        return self.left.varies_by_query or self.right.varies_by_query

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        return self.left.tile(rows, cols, device) & self.right.tile(rows, cols, device)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        left = self.left.covers(rows, cols)
        right = False if left is False else self.right.covers(rows, cols)
        return False if right is False else True if left and right else None

    def unseen_keys(self, keys: int, device: torch.device) -> Tensor | None:
        left, right = self.left.unseen_keys(keys, device), self.right.unseen_keys(keys, device)
        return right if left is None else left if right is None else left | right

    def tensors(self) -> list[Tensor]:
        return self.left.tensors() + self.right.tensors()

    def numbers(self) -> list[int]:
        return self.left.numbers() + self.right.numbers()

    def encode(self, first: int = 0) -> str:
        return f'["both",{_encode_pair(self.left, self.right, first)}]'


@dataclass(frozen=True, slots=True, eq=False)
class Either(Placed):
    """Allowed where left or right allows."""

    left: Placed
    right: Placed

    @property
    def varies_by_query(self) -> bool:
        return self.left.varies_by_query or self.right.varies_by_query

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        return self.left.tile(rows, cols, device) | self.right.tile(rows, cols, device)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        left = self.left.covers(rows, cols)
        right = True if left is True else self.right.covers(rows, cols)
        return True if right is True else False if left is False and right is False else None

    def unseen_keys(self, keys: int, device: torch.device) -> Tensor | None:
        left, right = self.left.unseen_keys(keys, device), self.right.unseen_keys(keys, device)
        return None if left is None or right is None else left & right

    def tensors(self) -> list[Tensor]:
        return self.left.tensors() + self.right.tensors()

    def numbers(self) -> list[int]:
        return self.left.numbers() + self.right.numbers()

    def encode(self, first: int = 0) -> str:
        return f'["either",{_encode_pair(self.left, self.right, first)}]'


@dataclass(frozen=True, slots=True, eq=False)
class Not(Placed):
    """Allowed where inner forbids."""

    inner: Placed

    @property
    def varies_by_query(self) -> bool:
        return self.inner.varies_by_query

    def tile(self, rows: Span, cols: Span, device: torch.device) -> Tensor:
        return ~self.inner.tile(rows, cols, device)

    def covers(self, rows: slice, cols: slice) -> bool | None:
        inner = self.inner.covers(rows, cols)
        return None if inner is None else not inner

    def tensors(self) -> list[Tensor]:
        return self.inner.tensors()

    def numbers(self) -> list[int]:
        return self.inner.numbers()

    def encode(self, first: int = 0) -> str:
        return f'["not",{self.inner.encode(first)}]'


def both(left: Placed, right: Placed) -> Placed:
    """`Both`, where two bands are one band: a causal window stays a thing that kernels know."""
    if not (isinstance(left, Band) and isinstance(right, Band)):
        return Both(left, right)
    low = left.low if right.low is None else right.low if left.low is None else max(left.low, right.low)
    high = left.high if right.high is None else right.high if left.high is None else min(left.high, right.high)
    return Band(low, high)


def negate(node: Placed) -> Placed:
    """`Not`, pushed down to the leaves, so that `~(padding | future)` still shows its padding."""
    if isinstance(node, Not):
        return node.inner
    if isinstance(node, Both):
        return Either(negate(node.left), negate(node.right))
    if isinstance(node, Either):
        return both(negate(node.left), negate(node.right))
    if isinstance(node, Band) and node.low is None and node.high is not None:
        return Band(node.high + 1, None)
    if isinstance(node, Band) and node.high is None and node.low is not None:
        return Band(None, node.low - 1)
    return Not(node)


def condition_on_keys(mask: Placed) -> tuple[Lengths | Dense | None, bool]:
    """The one condition on keys, the same for every query, that a mask is, and whether it is causal beside it."""
    if isinstance(mask, Both):
        left_is_causal = mask.left.is_plain_causal
        if not left_is_causal and not mask.right.is_plain_causal:
            return None, False
        return _condition(mask.right if left_is_causal else mask.left), True
    return _condition(mask), False


def _condition(mask: Placed) -> Lengths | Dense | None:
    return mask if isinstance(mask, Lengths | Dense) and not mask.varies_by_query else None


def map_tensors(node: Placed, change: Callable[[Tensor], Tensor]) -> Placed:
    """The same mask with each of its tensors changed: each has the rank of the batch plus two, with sizes or 1."""
    parts = [getattr(node, field.name) for field in fields(node) if field.init]  # pyrefly: ignore
    return type(node)(*(_map_part(part, change) for part in parts))


def _map_part(part: object, change: Callable[[Tensor], Tensor]) -> object:
    if isinstance(part, Tensor):
        return change(part)
    return map_tensors(part, change) if isinstance(part, Placed) else part


def decode(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Placed:
    """The inverse of `encode`, `tensors` and `numbers`."""
    return _build(json.loads(text), tensors, iter(numbers))


_LEAVES = {"dense": Dense, "lengths": Lengths, "same": Same}
_COMBINATORS = {"both": Both, "either": Either, "not": Not}


def _build(node: list, tensors: Sequence[Tensor], numbers: Iterator[int]) -> Placed:
    kind, *parts = node
    if kind == "band":
        return Band(*(next(numbers) if is_bounded else None for is_bounded in parts))
    if kind in _LEAVES:
        return _LEAVES[kind](*(tensors[number] for number in parts))
    return _COMBINATORS[kind](*(_build(part, tensors, numbers) for part in parts))


def _encode_pair(left: Placed, right: Placed, first: int) -> str:
    return f"{left.encode(first)},{right.encode(first + len(left.tensors()))}"
