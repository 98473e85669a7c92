"""One call of additive attention as the kernels take it: two batch axes, strides instead of copies, whole blocks."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.fused.additive import tables
from regard.backends.fused.batches import fold, groups_of
from regard.backends.fused.conditions import ANYWHERE, conditions_of
from regard.backends.fused.launch import Operand
from regard.checks import common_batch
from regard.masks.bound import unflatten

# Hidden units share a reciprocal in fours.
GROUP = 4


class Statics(NamedTuple):
    """What is known before any number: what is in the list of tensors, dropout; rank 0 is the exact form.

    mask, numbers: what a mask is beside its tensors, its text and the ends of its bands.
    """

    has_bias: bool
    has_seed: bool
    mask: str
    numbers: Sequence[int]
    dropout: float
    rank: int
    query_reach: float
    key_reach: float


class View(NamedTuple):
    """A slab as one side sees it: its own tokens and the others, as many of each, and the steps to the next of each."""

    first_own: int
    first_other: int
    own_rows: int
    other_rows: int
    own_step: int
    other_step: int


class Slab(NamedTuple):
    """Some rows of some consecutive batch elements against all keys; first_row and rows are whole blocks."""

    first_batch: int
    elements: int
    first_row: int
    rows: int
    is_last: bool

    def views(self, columns: int) -> tuple[View, View]:
        """The slab (elements, rows, columns) as queries see it, and as keys do."""
        of_query = View(self.first_row, 0, self.rows, columns, columns, 1)
        return of_query, View(0, self.first_row, columns, self.rows, 1, columns)


class Call(NamedTuple):
    """query, key: (outer or 1, inner or 1, tokens, units); weight: (.., .., units) in float32; value as it came.

    key_bias: (.., .., columns) in float32, minus infinity for keys that nobody may see. bias, allowed: (.., .., queries
    or 1, keys or 1). seed: of dropout, one or more, of the batch's first axes. units are padded to a multiple of 4 with
    weights of 0.
    """

    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    key_bias: Tensor | None
    bias: Tensor | None
    allowed: Tensor | None
    seed: Tensor | None
    band: tuple[int, int, int, int]
    outer: int
    inner: int
    statics: Statics

    @property
    def batch(self) -> int:
        """How many batch elements there are."""
        return self.outer * self.inner

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.key.shape[-2]

    @property
    def units(self) -> int:
        """Number of hidden units, a multiple of 4."""
        return self.query.shape[-1]

    def slabs(self) -> Iterator[Slab]:
        """Slabs of bounded size; those of the same elements follow each other."""
        height, width = columns_of(self.queries), columns_of(self.keys)
        pairs = tables.SLAB[self.statics.rank > 0]
        elements = max(min(pairs // (height * width), self.inner), 1)
        fitting = max(pairs // width // tables.BLOCK, 1) * tables.BLOCK
        rows = height if elements > 1 else min(fitting, height)
        for outer in range(self.outer):
            for first in range(0, self.inner, elements):
                batch = outer * self.inner + first
                for row in range(0, height, rows):
                    count = min(rows, height - row)
                    yield Slab(batch, min(elements, self.inner - first), row, count, row + count == height)

    def settings(self) -> dict:
        """The arguments that the kernels over a slab of scores have alike."""
        is_banded = self.band != ANYWHERE
        return {
            "inner": self.inner,
            "queries": self.queries,
            "keys": self.keys,
            "columns": columns_of(self.keys),
            "dropout": self.statics.dropout,
            "band": self.band if is_banded else None,
            "bias": None if self.bias is None else spread(self.bias),
            "allowed": None if self.allowed is None else spread(self.allowed),
            "seed": None if self.seed is None else (self.seed, self.batch // self.seed.numel()),
            "HAS_BIAS": self.bias is not None,
            "HAS_MASK": self.allowed is not None,
            "HAS_BAND": is_banded,
            "HAS_DROPOUT": self.statics.dropout > 0,
            "LIFTED": self.statics.rank > 0,
            "UNITS": self.units,
            "PADDED": padded(self.units),
            "VALUE_DIM": self.value.shape[-1],
        }


def call_of(tensors: Sequence[Tensor], statics: Statics) -> Call:
    """tensors: query, key, weight, value, perhaps bias and seed, then the mask's; of the rank of the batch plus two."""
    query, key, weight, value, *rest = tensors
    bias = rest.pop(0) if statics.has_bias else None
    seed = rest.pop(0) if statics.has_seed else None
    mask = unflatten(statics.mask, rest, statics.numbers) if statics.mask else None
    conditions = None if mask is None else conditions_of(mask)
    allowed, key_bias, band = None, None, ANYWHERE
    if mask is not None and conditions is None:
        allowed = mask.tile(slice(0, query.shape[-2]), slice(0, key.shape[-2]), value.device)
    if conditions is not None:
        band = conditions.band
        for condition in conditions.keys:
            seen = condition.tile(slice(0, 1), slice(0, key.shape[-2]), value.device)
            key_bias = torch.where(seen, 0.0 if key_bias is None else key_bias, -math.inf)
    some = bias, allowed, key_bias
    together = [query, key, weight, value, *(x for x in some if x is not None)]
    batch = common_batch(*together)
    groups = groups_of(batch, together)
    if seed is not None:
        # Each example that a call is mapped over has its own seed, or all share one.
        seed = seed.expand(batch[: seed.ndim]).contiguous()
    sizes = [math.prod(batch[axis] for axis in group) for group in groups]
    outer, inner = [1, 1][: 2 - len(sizes)] + sizes
    query, key, weight, value = (fold(x, groups) for x in (query, key, weight, value))
    bias, allowed, key_bias = (None if x is None else fold(x, groups) for x in some)
    weight = weight.squeeze(-2).float()
    if missing := -query.shape[-1] % GROUP:
        query, key, weight = (functional.pad(x, (0, missing)) for x in (query, key, weight))
    if key_bias is not None:
        key_bias = functional.pad(key_bias.squeeze(-2).float(), (0, columns_of(key.shape[-2]) - key.shape[-2]))
    return Call(query, key, weight.contiguous(), value, key_bias, bias, allowed, seed, band, outer, inner, statics)


def columns_of(count: int) -> int:
    """Tokens in whole blocks."""
    return -(-count // tables.BLOCK) * tables.BLOCK


def padded(size: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def spread(tensor: Tensor) -> Operand:
    """A tensor (outer or 1, inner or 1, rows or 1, columns or 1) with its strides, 0 along axes of size 1."""
    return tensor, *(0 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
