"""Masks bound to the sizes of one call. Backends read them tile by tile.

A bound mask is a tree: its leaves are `Band`, `Dense`, `Lengths` and `SameDocument`, its inner nodes `And`, `Or` and
`Not`. Every tensor has one axis for each batch axis and two more; a shared axis has size 1. All tensors therefore have
the same rank, and torch.vmap can add one leading axis to each of them.

Two functions fill caches. `cached` stores one result per CUDA stream; it is for the cache of a `Mask`, which calls on
several streams share. `computed_once` is for the caches of a bound mask and of its `Padding`: a bound mask is itself
stored per stream, so only one stream uses them.
"""
# ruff: noqa: D102 - the methods are documented once, on `BoundMask`

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.checks import Rows
from regard.torch_compat import (
    call_for_reuse,
    call_outside_modes,
    can_read_values,
    current_stream,
    is_exporting,
    is_traced,
)

T = TypeVar("T")
# The rows of a padding bias are aligned to this many elements; otherwise torch's CUDA kernels copy it on every call.
BIAS_ALIGNMENT = 8
# Largest number of entries in a cache. A decoder adds a key in each step, so older entries are not used again.
MAX_CACHED = 8
# On this type of device, cached tensors are not shared between streams.
DEVICE_WITH_STREAMS = "cuda"


class BoundMask(ABC):
    """A mask bound to the sizes of one call; True means "may attend"."""

    __slots__ = ()

    @property
    def is_causal(self) -> bool:
        """Whether query i may attend to exactly the keys 0 to i, as with `is_causal` of torch's kernels."""
        return False

    @property
    @abstractmethod
    def varies_by_query(self) -> bool:
        """Whether the allowed keys depend on the query; False for a condition on keys alone."""

    @abstractmethod
    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        """Return which of the keys `cols` the queries `rows` may attend to.

        Args:
            rows: positions of queries.
            cols: positions of keys.
            device: the device of the result.

        Returns:
            bool, broadcastable to (*batch, rows, cols); a shared axis keeps size 1.
        """

    @abstractmethod
    def coverage(self, rows: slice, cols: slice) -> bool | None:
        """Return True if every pair of a tile is allowed, False if none is, None if mixed or unknown.

        Reads the values of CPU tensors, so call it inside a custom operator and never in a traced function. Values on a
        GPU are not read, because that would wait for the GPU.

        Args:
            rows: positions of queries.
            cols: positions of keys.

        Returns:
            True, False or None. A condition on tensors is unknown if one of them is not on a CPU or has no entries.
        """

    @abstractmethod
    def restrict(self, rows: slice, cols: slice) -> "BoundMask":
        """Return the mask of a block.

        Args:
            rows: positions of queries.
            cols: positions of keys.

        Returns:
            The mask of these queries and keys, both renumbered from 0.
        """

    def padding(self, keys: int, device: torch.device) -> "Padding | None":
        """Return the keys that a condition on keys alone hides from every query.

        Args:
            keys: number of keys.
            device: device of the result.

        Returns:
            The padding, or None if the mask has no condition on keys alone.
        """
        return None if self.varies_by_query else self._padding(keys, device)

    def _padding(self, keys: int, device: torch.device) -> "Padding":
        """Return the padding of a condition on keys alone."""
        return Padding(self.tile(slice(0, 1), slice(0, keys), device).mT)

    def parts(self) -> list[Any]:
        """Return the fields: masks, tensors, numbers and None."""
        # pyrefly does not know that every subclass is a dataclass.
        return [getattr(self, part.name) for part in fields(self) if part.init]  # pyrefly: ignore

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
        """Return the same mask with `change` applied to every tensor."""
        changed: list[Any] = []
        for part in self.parts():
            if isinstance(part, Tensor):
                changed.append(change(part))
            else:
                changed.append(part.map(change) if isinstance(part, BoundMask) else part)
        return type(self)(*changed)


class Padding:
    """The keys that no query may attend to.

    Tensors that backends derive from the padding are computed once.

    Attributes:
        real: bool (*batch or 1, keys, 1), False at padding.
    """

    __slots__ = ("_cache", "real")

    def __init__(self, real: Tensor) -> None:
        self.real = real
        self._cache: dict[Any, Any] = {}

    def zero(self, tokens: Tensor) -> Tensor:
        """Return tokens with 0 at padding.

        Tokens that several batch elements share are set to 0 only if they are padding in all of these elements.

        Args:
            tokens: (*batch, keys, dim).

        Returns:
            (*batch, keys, dim).
        """
        real, missing = self.real, tokens.ndim - self.real.ndim
        if missing:  # the mask has no batch axes, because the whole batch shares it
            real = real.reshape((1,) * missing + real.shape)
        token_sizes, mask_sizes = tokens.shape, real.shape
        for axis in range(tokens.ndim - 2):
            if token_sizes[axis] == 1 < mask_sizes[axis]:
                real = real.amax(axis, keepdim=True)
        # Cache the 0 as a tensor, because torch.where would convert a number on every call.
        zero = computed_once(self._cache, "zero", lambda: self.real.new_zeros((), dtype=torch.float32))
        # Not a product with 0, because a projection may have turned finite padding into infinity.
        return torch.where(real, tokens, zero)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return a bias that hides padding: 0 for real keys, minus infinity for padding, (*batch or 1, 1, keys)."""
        return computed_once(self._cache, dtype, lambda: self._new_bias(dtype))

    def empty_examples(self) -> Tensor | None:
        """Return which examples have no real key.

        Returns:
            bool (*batch or 1, 1, 1), or None if every example is known to have a real key. On a GPU and while a call is
            traced it is not known, because the values are not read.
        """
        empty, may_have_any = computed_once(self._cache, "empty", self._find_empty_examples)
        return empty if may_have_any else None

    def _find_empty_examples(self) -> tuple[Tensor, bool]:
        """Return which examples have no real key, and whether there may be any."""
        empty = ~self.real.any(-2, keepdim=True)
        return empty, not can_read_values(empty) or bool(empty.any())

    def _new_bias(self, dtype: torch.dtype) -> Tensor:
        hidden, keys = ~self.real.mT, self.real.shape[-2]
        if not is_traced() and keys % BIAS_ALIGNMENT:
            hidden = functional.pad(hidden, (0, BIAS_ALIGNMENT - keys % BIAS_ALIGNMENT))
        return hidden.new_zeros((), dtype=dtype).masked_fill(hidden, -torch.inf)[..., :keys]


@dataclass(frozen=True, slots=True, eq=False)
class Band(BoundMask):
    """Allowed where low <= key index - query index <= high; None is unbounded."""

    low: int | None
    high: int | None

    @property
    def is_causal(self) -> bool:
        if self.low is not None or self.high is None:
            return False
        if is_exporting():
            # One exported program must accept every length, so sizes that are equal by chance must not decide.
            from torch.fx.experimental.symbolic_shapes import statically_known_true

            return statically_known_true(self.high == 0)
        # An if statement, because the comparison of symbolic sizes is symbolic, too, and kernels need a bool.
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
            return torch.ones_like(key, dtype=torch.bool)[None] if self.high is None else key <= query + self.high
        above = key >= query + self.low
        return above if self.high is None else above & (key <= query + self.high)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        # The bounds of key index - query index in the tile.
        smallest, largest = cols.start - (rows.stop - 1), (cols.stop - 1) - rows.start
        low = smallest if self.low is None else self.low
        high = largest if self.high is None else self.high
        if max(low, smallest) > min(high, largest):
            return False
        return True if low <= smallest and largest <= high else None

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        shift = rows.start - cols.start
        low = None if self.low is None else self.low + shift
        high = None if self.high is None else self.high + shift
        return Band(low, high)


@dataclass(frozen=True, slots=True, eq=False)
class Dense(BoundMask):
    """Allowed where a matrix is True.

    Attributes:
        allowed: bool (*batch or 1, queries or 1, keys or 1).
        cache: tensors derived from the matrix; None if the caller may change the matrix.
    """

    allowed: Tensor
    cache: dict[Any, Any] | None = field(default=None, init=False)

    @classmethod
    def of_constant(cls, allowed: Tensor) -> "Dense":
        """Return the mask of a matrix that never changes, with a cache of derived tensors."""
        mask = cls(allowed)
        object.__setattr__(mask, "cache", {})
        return mask

    @property
    def varies_by_query(self) -> bool:
        return self.allowed.shape[-2] != 1

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return narrow_pairs(self.allowed, rows, cols)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        tile = narrow_pairs(self.allowed, rows, cols)
        if not _has_cpu_values(tile):
            return None
        all_allowed, any_allowed = (bool(extreme) for extreme in tile.aminmax())
        return all_allowed if all_allowed == any_allowed else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        if self.varies_by_query or self.cache is None:
            return BoundMask.padding(self, keys, device)
        return computed_once(self.cache, "padding", lambda: self._padding(keys, device))

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return Dense(narrow_pairs(self.allowed, rows, cols))


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(BoundMask):
    """Allowed where the key position is less than a length.

    Attributes:
        lengths: integer (*batch or 1, queries or 1, 1); never changes.
        cache: tensors derived from the lengths.
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
        if not _has_cpu_values(lengths):
            return None
        shortest, longest = (int(extreme) for extreme in lengths.aminmax())
        if cols.stop <= shortest:
            return True
        return False if cols.start >= longest else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        if self.varies_by_query:
            return None
        return computed_once(self.cache, "padding", lambda: self._padding(keys, device))

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        # Convert to int64, because the difference may be negative and the lengths may be unsigned.
        return Lengths(_pick(self.lengths, -2, rows).long() - cols.start)


@dataclass(frozen=True, slots=True, eq=False)
class SameDocument(BoundMask):
    """Allowed where query and key have equal document ids.

    Attributes:
        query_ids: integer (*batch or 1, queries or 1, 1).
        key_ids: integer (*batch or 1, 1, keys or 1).
    """

    query_ids: Tensor
    key_ids: Tensor

    @property
    def varies_by_query(self) -> bool:
        return self.query_ids.shape[-2] != 1

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return _pick(self.query_ids, -2, rows) == _pick(self.key_ids, -1, cols)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        query, key = _pick(self.query_ids, -2, rows), _pick(self.key_ids, -1, cols)
        if not _has_cpu_values(query) or not _has_cpu_values(key):
            return None
        # Compare the ranges of ids for each batch element, because documents begin at different positions in each.
        min_query, max_query = query.aminmax(dim=-2, keepdim=True)
        min_key, max_key = key.aminmax(dim=-1, keepdim=True)
        if bool(((max_query < min_key) | (max_key < min_query)).all()):
            return False
        one_document = (min_query == max_key) & (max_query == min_key)
        return True if bool(one_document.all()) else None

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return SameDocument(_pick(self.query_ids, -2, rows), _pick(self.key_ids, -1, cols))


@dataclass(frozen=True, slots=True, eq=False)
class And(BoundMask):
    """Allowed where both masks allow."""

    left: BoundMask
    right: BoundMask

    @property
    def varies_by_query(self) -> bool:
        return self.left.varies_by_query or self.right.varies_by_query

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return self.left.tile(rows, cols, device) & self.right.tile(rows, cols, device)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        left = self.left.coverage(rows, cols)
        if left is False:
            return False
        right = self.right.coverage(rows, cols)
        if right is False:
            return False
        return True if left and right else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        left, right = self.left.padding(keys, device), self.right.padding(keys, device)
        if left is None:
            return right
        return left if right is None else Padding(left.real & right.real)

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return And(self.left.restrict(rows, cols), self.right.restrict(rows, cols))


@dataclass(frozen=True, slots=True, eq=False)
class Or(BoundMask):
    """Allowed where at least one of the masks allows."""

    left: BoundMask
    right: BoundMask

    @property
    def varies_by_query(self) -> bool:
        return self.left.varies_by_query or self.right.varies_by_query

    def tile(self, rows: Rows, cols: Rows, device: torch.device) -> Tensor:
        return self.left.tile(rows, cols, device) | self.right.tile(rows, cols, device)

    def coverage(self, rows: slice, cols: slice) -> bool | None:
        left = self.left.coverage(rows, cols)
        if left:
            return True
        right = self.right.coverage(rows, cols)
        if right:
            return True
        return False if left is False and right is False else None

    def padding(self, keys: int, device: torch.device) -> Padding | None:
        left, right = self.left.padding(keys, device), self.right.padding(keys, device)
        return None if left is None or right is None else Padding(left.real | right.real)

    def restrict(self, rows: slice, cols: slice) -> BoundMask:
        return Or(self.left.restrict(rows, cols), self.right.restrict(rows, cols))


@dataclass(frozen=True, slots=True, eq=False)
class Not(BoundMask):
    """Allowed where the inner mask forbids."""

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
    a CUDA graph is captured, make() is always called, so that the graph computes the result again at each replay.

    Args:
        cache: holds at most MAX_CACHED results.
        name: identifies the result within the cache.
        device: the device whose current stream is used.
        make: computes the result.

    Returns:
        The stored or the new result.
    """
    if torch.compiler.is_compiling():  # checked first, because torch.compile cannot trace current_stream
        return make()
    stream = current_stream(device) if device.type == DEVICE_WITH_STREAMS else 0
    if stream is None:
        return make()
    result = cache.get((name, stream))
    if result is None:
        if is_traced():
            return make()
        if len(cache) >= MAX_CACHED:
            cache.clear()
        result = cache[name, stream] = call_outside_modes(make)
    return result


def computed_once(cache: dict[Any, Any], name: object, make: Callable[[], T]) -> T:
    """Return make(), computed once for each name.

    Only for caches that are used in one CUDA stream, such as the cache of an object that `cached` stores for each
    stream. Nothing is stored while torch traces or transforms the call.

    Args:
        cache: holds the results.
        name: identifies the result within the cache.
        make: computes the result.

    Returns:
        The stored or the new result.
    """
    result = cache.get(name)
    if result is None:
        result = call_for_reuse(make)
        if not is_traced():
            cache[name] = result
    return result


def conjunction(left: BoundMask, right: BoundMask) -> BoundMask:
    """Return the mask that allows what both masks allow.

    Two bands become one band, so that kernels recognise a causal window.

    Args:
        left: a mask.
        right: a mask bound to the same sizes.

    Returns:
        A `Band` for two bands, otherwise an `And`.
    """
    if not (isinstance(left, Band) and isinstance(right, Band)):
        return And(left, right)
    return Band(_tighter(max, left.low, right.low), _tighter(min, left.high, right.high))


def _tighter(choose: Callable[[int, int], int], left: int | None, right: int | None) -> int | None:
    """Return the tighter of two bounds: the maximum of lower bounds, the minimum of upper bounds; None is unbounded."""
    if left is None:
        return right
    return left if right is None else choose(left, right)


def negate(mask: BoundMask) -> BoundMask:
    """Return the mask that allows what the given mask forbids.

    `Not` is moved to the leaves, so that the padding in `~(padding | future)` is recognised.
    """
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
    """Return the mask without bands that allow every pair.

    For example, a decoder step has one query at the position of the last key and needs no causal mask. Bands inside of
    `Or` and `Not` stay. While torch compiles the call, or if the sizes are symbolic, nothing is removed, because the
    compiled program must accept other sizes.

    Args:
        mask: a mask bound to these sizes.
        queries: number of queries.
        keys: number of keys.

    Returns:
        The mask, or None if nothing is left.
    """
    if torch.compiler.is_compiling() or not isinstance(keys, int):
        return mask
    if isinstance(mask, And):
        left = without_full_bands(mask.left, queries, keys)
        right = without_full_bands(mask.right, queries, keys)
        if left is None:
            return right
        if right is None:
            return left
        return mask if left is mask.left and right is mask.right else And(left, right)
    if not isinstance(mask, Band):
        return mask
    # The bounds of key index - query index.
    smallest, largest = 1 - queries, keys - 1
    is_full = (mask.low is None or mask.low <= smallest) and (mask.high is None or mask.high >= largest)
    return None if is_full else mask


def key_condition(mask: BoundMask) -> tuple[Lengths | Dense | None, bool]:
    """Split a mask into one condition on keys alone and, optionally, a causal mask.

    Args:
        mask: the mask of a call.

    Returns:
        (condition, False) for a condition on keys alone; (condition, True) for such a condition and a causal mask;
        (None, True) for a causal mask and another condition; (None, False) for every other mask.
    """
    if isinstance(mask, And):
        left_is_causal = mask.left.is_causal
        if not left_is_causal and not mask.right.is_causal:
            return None, False
        return _as_key_condition(mask.right if left_is_causal else mask.left), True
    return _as_key_condition(mask), False


def _as_key_condition(mask: BoundMask) -> Lengths | Dense | None:
    """Return the mask if it is a leaf that is a condition on keys alone, else None."""
    return mask if isinstance(mask, Lengths | Dense) and not mask.varies_by_query else None


def flatten(mask: BoundMask) -> tuple[str, list[Tensor], list[int]]:
    """Turn a mask into values that a custom operator accepts as arguments.

    Args:
        mask: the mask of a call.

    Returns:
        Its structure as JSON, its tensors and its numbers. The numbers are not part of the JSON, because they are
        symbolic in a traced call.
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
        # torch.jit.trace turns sizes into tensors, and a list of integers must not contain tensors.
        numbers.append(int(part) if torch.jit.is_tracing() else part)  # pyrefly: ignore
        return '"number"'

    return encode(mask), tensors, numbers


def unflatten(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> BoundMask:
    """Return the mask whose structure, tensors and numbers `flatten` returned.

    Args:
        text: the structure.
        tensors: the tensors.
        numbers: the numbers.

    Returns:
        The mask.
    """
    return _decode(json.loads(text), iter(tensors), iter(numbers))


def _decode(node: Any, tensors: Iterator[Tensor], numbers: Iterator[int]) -> Any:
    if isinstance(node, list):
        class_name, *parts = node
        return _CLASSES[class_name](*(_decode(part, tensors, numbers) for part in parts))
    return None if node is None else next(tensors if node == "tensor" else numbers)


_CLASSES = {cls.__name__: cls for cls in (Band, Dense, Lengths, SameDocument, And, Or, Not)}


def narrow_pairs(pairs: Tensor, rows: Rows, cols: Rows) -> Tensor:
    """Return a block of a tensor with one entry for each pair; a shared axis keeps size 1.

    Args:
        pairs: (*batch, queries or 1, keys or 1).
        rows: positions of queries.
        cols: positions of keys.

    Returns:
        (*batch, rows or 1, cols or 1).
    """
    return _pick(_pick(pairs, -2, rows), -1, cols)


def _has_cpu_values(tensor: Tensor) -> bool:
    """Return whether a tensor is on a CPU and has entries, so that `coverage` can read them."""
    return tensor.device.type == "cpu" and tensor.numel() > 0


def _positions(positions: Rows, device: torch.device) -> Tensor:
    """Return positions as an int64 tensor."""
    if isinstance(positions, slice):
        return torch.arange(positions.start, positions.stop, device=device)
    return positions


def _pick(tensor: Tensor, axis: int, positions: Rows) -> Tensor:
    """Return the entries at some positions of an axis; a shared axis keeps size 1."""
    size = tensor.shape[axis]
    if size == 1:
        return tensor
    if isinstance(positions, slice):
        if positions.start == 0 and positions.stop == size:
            return tensor
        return tensor.narrow(axis, positions.start, positions.stop - positions.start)
    return tensor.index_select(axis, positions)
