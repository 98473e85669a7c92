"""A mask on the sizes of one call: what backends ask, tile by tile.

The set is closed: the leaves `Band`, `Dense`, `Lengths` and `SameDocument`, joined by `And`, `Or` and `Not`. Every
tensor has one axis for each batch axis and two more, of size 1 where it is shared, so that one leading axis can be
added to all of them (torch.vmap).
"""
# ruff: noqa: D102 - the methods are described once, on `BoundMask`

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.torch_compat import (
    call_for_reuse,
    call_outside_modes,
    can_read_values,
    current_stream,
    is_exporting,
    is_traced,
)

T = TypeVar("T")
Rows = slice | Tensor
"""Positions along an axis: a slice with start and stop, or an int64 tensor."""
# Rows of a bias begin at multiples of so many numbers; otherwise the CUDA kernels of torch copy it on every call.
ALIGNMENT = 8
# Entries of one cache. A decoder asks for one more key at each step, so old entries are of no use.
MAX_CACHED = 8
DEVICE_WITH_STREAMS = "cuda"


class BoundMask(ABC):
    """A mask on the sizes of one call; True means "may attend"."""

    __slots__ = ()

    @property
    def is_causal(self) -> bool:
        """Whether query i may attend to exactly the keys 0..i, as the causal mode of torch's kernels has it."""
        return False

    @property
    @abstractmethod
    def varies_by_query(self) -> bool:
        """Whether queries differ; False for a condition on keys alone."""

    @abstractmethod
    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        """Return which keys `cols` the queries `rows` may attend to.

        Returns:
            bool, broadcastable to (*batch, rows, cols); a shared axis keeps size 1.
        """

    @abstractmethod
    def coverage(self, rows: slice, cols: slice) -> bool | None:
        """Return True if the whole tile is allowed, False if none of it is, None if it is mixed or unknown.

        Reads values of CPU tensors, so call it inside an operator and never in a traced function. Values on a GPU are
        not read, because that would wait for the GPU.
        """

    @abstractmethod
    def restrict(self, rows: slice, cols: slice) -> "BoundMask":
        """Return the mask of the queries `rows` and the keys `cols`, both counted from 0."""

    def padding(self, keys: int, device: torch.device) -> "Padding | None":
        """Return the keys that a condition on keys alone hides from every query; None if there is no condition."""
        return None if self.varies_by_query else self._padding(keys, device)

    def _padding(self, keys: int, device: torch.device) -> "Padding":
        return Padding(self.tile(slice(0, 1), slice(0, keys), device).mT)

    def parts(self) -> list[Any]:
        """Return the fields: masks, tensors, and numbers or None."""
        return [getattr(self, field.name) for field in fields(self) if field.init]  # pyrefly: ignore

    def tensors(self) -> list[Tensor]:
        """Return all tensors, from left to right."""
        found: list[Tensor] = []
        for part in self.parts():
            if isinstance(part, BoundMask):
                found += part.tensors()
            elif isinstance(part, Tensor):
                found.append(part)
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same mask with every tensor changed."""
        changed: list[Any] = []
        for part in self.parts():
            if isinstance(part, Tensor):
                changed.append(change(part))
            else:
                changed.append(part.map(change) if isinstance(part, BoundMask) else part)
        return type(self)(*changed)


class Padding:
    """Keys that no query may attend to, and what kernels need to know of them.

    Attributes:
        real: bool (*batch or 1, keys, 1), False at padding.
    """

    __slots__ = ("_cache", "real")

    def __init__(self, real: Tensor) -> None:
        """Compute nothing yet."""
        self.real = real
        self._cache: dict[Any, Any] = {}

    def zero(self, tokens: Tensor) -> Tensor:
        """Return tokens (*batch, keys, dim) with 0 at padding.

        Tokens that several batch elements share become 0 only if they are padding in all of them. Multiplying by 0
        would not do, because a projection may have turned finite padding into infinity.
        """
        real, missing = self.real, tokens.ndim - self.real.ndim
        if missing:  # a mask without batch axes of its own is shared by the whole batch
            real = real.reshape((1,) * missing + real.shape)
        sizes, own = tokens.shape, real.shape
        for axis in range(tokens.ndim - 2):
            if sizes[axis] == 1 < own[axis]:
                real = real.amax(axis, keepdim=True)
        # A tensor, because torch.where would make one of a number on every call.
        zero = computed_once(self._cache, "zero", lambda: self.real.new_zeros((), dtype=torch.float32))
        return torch.where(real, tokens, zero)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return 0 for real keys and minus infinity for padding, (*batch or 1, 1, keys)."""
        return computed_once(self._cache, dtype, lambda: self._new_bias(dtype))

    def empty(self) -> Tensor | None:
        """Return which examples have padding only, bool (*batch or 1, 1, 1); None if it is known that none has."""
        empty, has_any = computed_once(self._cache, "empty", self._find_empty)
        return empty if has_any else None

    def _find_empty(self) -> tuple[Tensor, bool]:
        empty = ~self.real.any(-2, keepdim=True)
        return empty, not can_read_values(empty) or bool(empty.any())

    def _new_bias(self, dtype: torch.dtype) -> Tensor:
        hidden, keys = ~self.real.mT, self.real.shape[-2]
        if not is_traced() and keys % ALIGNMENT:
            hidden = functional.pad(hidden, (0, ALIGNMENT - keys % ALIGNMENT))
        return hidden.new_zeros((), dtype=dtype).masked_fill(hidden, -torch.inf)[..., :keys]


@dataclass(frozen=True, slots=True, eq=False)
class Band(BoundMask):
    """Allowed where low <= key position - query index <= high; None is unbounded."""

    low: int | None
    high: int | None

    @property
    def is_causal(self) -> bool:
        if self.low is not None or self.high is None:
            return False
        if is_exporting():
            # One exported program serves every length, so sizes that happen to be equal must not decide.
            from torch.fx.experimental.symbolic_shapes import statically_known_true

            return statically_known_true(self.high == 0)
        # A branch, because with symbolic sizes the comparison is symbolic too, and kernels need True or False.
        if self.high == 0:  # noqa: SIM103
            return True
        return False

    @property
    def varies_by_query(self) -> bool:
        return self.low is not None or self.high is not None

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        query, key = _positions(rows, device)[:, None], _positions(cols, device)
        # Compare two vectors. Subtracting them would allocate an int64 matrix.
        if self.low is None:
            return torch.ones_like(key[None] >= 0) if self.high is None else key <= query + self.high
        above = key >= query + self.low
        return above if self.high is None else above & (key <= query + self.high)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        nearest, farthest = cols.start - (rows.stop - 1), (cols.stop - 1) - rows.start
        low = nearest if self.low is None else self.low
        high = farthest if self.high is None else self.high
        if max(low, nearest) > min(high, farthest):
            return False
        return True if low <= nearest and farthest <= high else None

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        shift = rows.start - cols.start
        return Band(None if self.low is None else self.low + shift, None if self.high is None else self.high + shift)


@dataclass(frozen=True, slots=True, eq=False)
class Dense(BoundMask):
    """Allowed where a matrix says so; allowed: bool (*batch or 1, queries or 1, keys or 1).

    cache: of tensors derived from the matrix; None if the matrix belongs to the caller, who may change it.
    """

    allowed: Tensor
    cache: dict[Any, Any] | None = field(default=None, init=False)

    @classmethod
    def of_copy(cls, allowed: Tensor) -> "Dense":
        """Return the mask of a matrix that never changes."""
        mask = cls(allowed)
        object.__setattr__(mask, "cache", {})
        return mask

    @property
    def varies_by_query(self) -> bool:
        return self.allowed.shape[-2] != 1

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return _pick(_pick(self.allowed, -2, rows), -1, cols)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        if self.allowed.device.type != "cpu":
            return None
        tile = self.tile(rows, cols, self.allowed.device)
        if not tile.numel():
            return True
        low, high = (bool(end) for end in tile.aminmax())
        return low if low == high else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        if self.varies_by_query or self.cache is None:
            return BoundMask.padding(self, keys, device)
        return computed_once(self.cache, "padding", lambda: self._padding(keys, device))

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return Dense(narrow_pairs(self.allowed, rows, cols))


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(BoundMask):
    """Allowed where the key position is below a length; lengths: integer (*batch or 1, queries or 1, 1).

    The tensor never changes. cache: of tensors derived from it.
    """

    lengths: Tensor
    cache: dict[Any, Any] = field(default_factory=dict, init=False)

    @property
    def varies_by_query(self) -> bool:
        return self.lengths.shape[-2] != 1

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return _positions(cols, device) < _pick(self.lengths, -2, rows)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        lengths = _pick(self.lengths, -2, rows)
        if lengths.device.type != "cpu" or lengths.numel() == 0:
            return None
        shortest, longest = (int(end) for end in lengths.aminmax())
        return True if cols.stop <= shortest else False if cols.start >= longest else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        if self.varies_by_query:
            return None
        return computed_once(self.cache, "padding", lambda: self._padding(keys, device))

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        # As int64, because an unsigned length minus the first position may be below 0.
        return Lengths(_narrow(self.lengths, -2, rows).long() - cols.start)


@dataclass(frozen=True, slots=True, eq=False)
class SameDocument(BoundMask):
    """Allowed where two ids are equal; (*batch or 1, queries or 1, 1) and (*batch or 1, 1, keys or 1)."""

    query_ids: Tensor
    key_ids: Tensor

    @property
    def varies_by_query(self) -> bool:
        return self.query_ids.shape[-2] != 1

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return _pick(self.query_ids, -2, rows) == _pick(self.key_ids, -1, cols)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        query, key = _pick(self.query_ids, -2, rows), _pick(self.key_ids, -1, cols)
        if query.device.type != "cpu" or key.device.type != "cpu" or not query.numel() or not key.numel():
            return None
        # Ranges are compared for each batch element: packed sequences need not break at the same places.
        first_query, last_query = query.aminmax(dim=-2, keepdim=True)
        first_key, last_key = key.aminmax(dim=-1, keepdim=True)
        if bool(((last_query < first_key) | (last_key < first_query)).all()):
            return False
        one_document = (first_query == last_key) & (last_query == first_key)
        return True if bool(one_document.all()) else None

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return SameDocument(_narrow(self.query_ids, -2, rows), _narrow(self.key_ids, -1, cols))


@dataclass(frozen=True, slots=True, eq=False)
class And(BoundMask):
    """Allowed where left and right allow."""

    left: BoundMask
    right: BoundMask

    @property
    def varies_by_query(self) -> bool:
        return self.left.varies_by_query or self.right.varies_by_query

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return self.left.tile(rows, cols, device) & self.right.tile(rows, cols, device)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        left = self.left.coverage(rows, cols)
        right = False if left is False else self.right.coverage(rows, cols)
        return False if right is False else True if left and right else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        left, right = self.left.padding(keys, device), self.right.padding(keys, device)
        if left is None or right is None:
            return right if left is None else left
        return Padding(left.real & right.real)

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return And(self.left.restrict(rows, cols), self.right.restrict(rows, cols))


@dataclass(frozen=True, slots=True, eq=False)
class Or(BoundMask):
    """Allowed where left or right allows."""

    left: BoundMask
    right: BoundMask

    @property
    def varies_by_query(self) -> bool:
        return self.left.varies_by_query or self.right.varies_by_query

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return self.left.tile(rows, cols, device) | self.right.tile(rows, cols, device)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        left = self.left.coverage(rows, cols)
        right = True if left is True else self.right.coverage(rows, cols)
        return True if right is True else False if left is False and right is False else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        left, right = self.left.padding(keys, device), self.right.padding(keys, device)
        return None if left is None or right is None else Padding(left.real | right.real)

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return Or(self.left.restrict(rows, cols), self.right.restrict(rows, cols))


@dataclass(frozen=True, slots=True, eq=False)
class Not(BoundMask):
    """Allowed where inner forbids."""

    inner: BoundMask

    @property
    def varies_by_query(self) -> bool:
        return self.inner.varies_by_query

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return ~self.inner.tile(rows, cols, device)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        inner = self.inner.coverage(rows, cols)
        return None if inner is None else not inner

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return Not(self.inner.restrict(rows, cols))


def cached(cache: dict[Any, Any], name: object, device: torch.device, make: Callable[[], T]) -> T:
    """Return make(), computed once for each name and CUDA stream.

    Nothing is stored while torch traces or transforms the call, because a tensor made then belongs to the trace. While
    a CUDA graph is captured nothing is looked up either: the graph computes the result again at each replay.
    """
    if torch.compiler.is_compiling():  # first, because torch.compile cannot trace the question for the stream
        return make()
    stream = current_stream(device) if device.type == DEVICE_WITH_STREAMS else 0
    if stream is None:
        return make()
    found = cache.get((name, stream))
    if found is None:
        if is_traced():
            return make()
        if len(cache) >= MAX_CACHED:
            cache.clear()
        found = cache[name, stream] = call_outside_modes(make)
    return found


def computed_once(cache: dict[Any, Any], name: object, make: Callable[[], T]) -> T:
    """Return make(), computed once for each name, for what belongs to a tensor that `cached` has made for one stream.

    Nothing is stored while torch traces or transforms the call.
    """
    found = cache.get(name)
    if found is None:
        found = call_for_reuse(make)
        if not is_traced():
            cache[name] = found
    return found


def conjunction(left: BoundMask, right: BoundMask) -> BoundMask:
    """Return `And`; of two bands one band, so that kernels still recognise a causal window."""
    if not (isinstance(left, Band) and isinstance(right, Band)):
        return And(left, right)
    low = left.low if right.low is None else right.low if left.low is None else max(left.low, right.low)
    high = left.high if right.high is None else right.high if left.high is None else min(left.high, right.high)
    return Band(low, high)


def negate(mask: BoundMask) -> BoundMask:
    """Return `Not`, moved to the leaves, so that `~(padding | future)` still shows its padding."""
    if isinstance(mask, Not):
        return mask.inner
    if isinstance(mask, And):
        return Or(negate(mask.left), negate(mask.right))
    if isinstance(mask, Or):
        return conjunction(negate(mask.left), negate(mask.right))
    if isinstance(mask, Band) and mask.low is None and mask.high is not None:
        return Band(mask.high + 1, None)
    if isinstance(mask, Band) and mask.high is None and mask.low is not None:
        return Band(None, mask.low - 1)
    return Not(mask)


def without_full_bands(mask: BoundMask, queries: int, keys: int) -> BoundMask | None:
    """Return the mask without bands that allow every pair; None if nothing is left.

    A decoder's step, one query at the end of the keys, sees all of them, so it needs no causal mask.
    """
    if torch.compiler.is_compiling() or not isinstance(keys, int):  # symbolic sizes must not decide
        return mask
    if isinstance(mask, And):
        left, right = (without_full_bands(part, queries, keys) for part in (mask.left, mask.right))
        return right if left is None else left if right is None else mask
    if not isinstance(mask, Band):
        return mask
    # From the last query to the first key, and from the first query to the last key.
    reaches_first, reaches_last = 1 - queries, keys - 1
    is_full = (mask.low is None or mask.low <= reaches_first) and (mask.high is None or mask.high >= reaches_last)
    return None if is_full else mask


def key_condition(mask: BoundMask) -> tuple[Lengths | Dense | None, bool]:
    """Return the one condition on keys that a mask consists of, and whether the mask is causal beside it."""
    if type(mask) is And:
        left_is_causal = mask.left.is_causal
        if not left_is_causal and not mask.right.is_causal:
            return None, False
        return _leaf_on_keys(mask.right if left_is_causal else mask.left), True
    return _leaf_on_keys(mask), False


def _leaf_on_keys(mask: BoundMask) -> Lengths | Dense | None:
    return mask if isinstance(mask, Lengths | Dense) and not mask.varies_by_query else None


def flatten(mask: BoundMask) -> tuple[str, list[Tensor], list[int]]:
    """Return the structure of a mask as text, its tensors and its numbers, which is what a custom operator can carry.

    Numbers are not part of the text, because the sizes of a traced call are symbols.
    """
    tensors: list[Tensor] = []
    numbers: list[int] = []

    def encode(part: BoundMask | Tensor | int | None) -> str:
        if isinstance(part, BoundMask):
            parts = ",".join(map(encode, part.parts()))
            return f'["{type(part).__name__}",{parts}]'
        if part is None:
            return "null"
        if isinstance(part, Tensor) and part.ndim:
            tensors.append(part)
            return '"tensor"'
        # torch.jit.trace turns sizes into tensors, and a list of numbers must not have any.
        numbers.append(int(part) if torch.jit.is_tracing() else part)  # pyrefly: ignore
        return '"number"'

    return encode(mask), tensors, numbers


def unflatten(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> BoundMask:
    """Return the mask that `flatten` wrote."""
    return _decode(json.loads(text), iter(tensors), iter(numbers))


def _decode(node: Any, tensors: Iterator[Tensor], numbers: Iterator[int]) -> Any:
    if isinstance(node, list):
        kind, *parts = node
        return _KINDS[kind](*(_decode(part, tensors, numbers) for part in parts))
    return None if node is None else next(tensors if node == "tensor" else numbers)


_KINDS = {kind.__name__: kind for kind in (Band, Dense, Lengths, SameDocument, And, Or, Not)}


def narrow_pairs(pairs: Tensor, rows: slice, cols: slice) -> Tensor:
    """Return a block of (*batch, queries or 1, keys or 1); a shared axis keeps size 1."""
    return _narrow(_narrow(pairs, -2, rows), -1, cols)


def _narrow(tensor: Tensor, axis: int, span: slice) -> Tensor:
    return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, span.start, span.stop - span.start)


def _positions(span: Rows, device: torch.device) -> Tensor:
    return torch.arange(span.start, span.stop, device=device) if isinstance(span, slice) else span


def _pick(tensor: Tensor, axis: int, span: Rows) -> Tensor:
    """Return the positions `span` of an axis; an axis of size 1 is shared by all of them."""
    size = tensor.shape[axis]
    if size == 1:
        return tensor
    if isinstance(span, slice):
        if span.start == 0 and span.stop == size:
            return tensor
        return tensor.narrow(axis, span.start, span.stop - span.start)
    return tensor.index_select(axis, span)
