"""The words that carry tensors: lengths, keys, matrices and documents, and how they follow a memory."""
# ruff: noqa: D102 - the methods are described once, on `Word`

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.keeping import find, hold, stream_of
from regard.masks import placed
from regard.masks.checks import Call, check_device, lead, right_align
from regard.masks.words import Told, Word
from regard.shapes import describe
from regard.watched import is_plain, is_readable, is_watched

# The layers of a model and the steps of a decoder ask for the same padding again and again, and it never changes: on a
# CPU it is a matrix if it has so many rows and entries at most.
MOST_ROWS, MOST_ENTRIES = 256, 2**14
# Such matrices, found by their lengths, whichever mask has them.
SHORT: dict[Any, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Lengths(Word):
    """Key j is allowed where j < length; lengths: integer (*leading batch), or with a last axis queries.

    is_recorded: made while a CUDA graph was recorded, whose replays read the tensor anew. kept: what was made of it, to
    find it again in the next call with the same mask.
    """

    lengths: Tensor
    per_query: bool
    is_recorded: bool = False
    kept: dict[Any, Any] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, lengths: Tensor, *, per_query: bool) -> "Lengths":
        """The word for a tensor of the caller's, which may change later."""
        own, is_recorded = _own(lengths)
        return cls(own, per_query, is_recorded)

    def __reduce__(self) -> tuple:
        """A copy begins anew: what is kept, here and by backends, belongs to this process and its streams."""
        return Lengths, (self.lengths, self.per_query, self.is_recorded)

    @property
    def name(self) -> str:
        """The public word."""
        return "Mask.lengths_per_query" if self.per_query else "Mask.lengths"

    def place(self, call: Call) -> placed.Placed:
        if self.per_query:
            return placed.Lengths(lead(self.name, self.lengths, call, "queries", (call.queries, 1)))
        if is_watched():
            return self._aligned(call)
        if self._is_short(call):
            found_by = tuple(self.lengths.tolist()), call.batch, call.keys
            return find(SHORT, found_by, call.device, partial(self._evaluated, call))
        check_device(self.name, self.lengths, call)
        return _once(self, self.lengths, call)

    def _aligned(self, call: Call) -> placed.Lengths:
        return placed.Lengths(lead(self.name, self.lengths, call, "", (1, 1)))

    def _is_short(self, call: Call) -> bool:
        """Whether a matrix of it, found again by the values of its lengths, is faster to ask than the lengths are."""
        lengths = self.lengths
        is_here = lengths.device == call.device and call.device.type == "cpu" and is_plain(lengths)
        rows = lengths.shape[0] if lengths.ndim == 1 else MOST_ROWS + 1
        return is_here and rows <= MOST_ROWS and rows * call.keys <= MOST_ENTRIES

    def _evaluated(self, call: Call) -> placed.Dense:
        return placed.Dense(torch.arange(call.keys, device=call.device) < self._aligned(call).lengths)

    def select(self, rows: Tensor, batch_axes: int | None) -> Word:
        return Lengths(_choose(self.lengths, rows, self.lengths.ndim - self.per_query), self.per_query)

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> Word:
        if self.per_query:
            raise _cannot_grow(self.name, old_keys, new_keys)
        known = torch.arange(old_keys, device=self.lengths.device) < self.lengths[..., None]
        return Keys(known).grow(old_keys, new_keys, fill)

    def to(self, device: torch.device) -> Word:
        return Lengths(self.lengths.to(device), self.per_query)

    def told(self) -> Told:
        shape = tuple(self.lengths.shape)
        if self.per_query:
            return Told(shape[:-1], queries=shape[-1], device=self.lengths.device)
        return Told(shape, device=self.lengths.device)

    def __str__(self) -> str:
        return f"{self.name}({describe(self.lengths)})"


@dataclass(frozen=True, slots=True, eq=False)
class Keys(Word):
    """Key j is allowed where real[…, j]; real: bool (*leading batch, keys). is_recorded, kept: as of lengths."""

    real: Tensor
    is_recorded: bool = False
    kept: dict[Any, Any] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, real: Tensor) -> "Keys":
        """The word for a tensor of the caller's, which may change later."""
        return cls(*_own(real))

    def __reduce__(self) -> tuple:
        """A copy begins anew, as that of lengths does."""
        return Keys, (self.real, self.is_recorded)

    def place(self, call: Call) -> placed.Placed:
        check_device("Mask.keys", self.real, call)
        return self._aligned(call) if is_watched() else _once(self, self.real, call)

    def _aligned(self, call: Call) -> placed.Dense:
        return placed.Dense(lead("Mask.keys", self.real, call, "keys", (1, call.keys)))

    def select(self, rows: Tensor, batch_axes: int | None) -> Word:
        return Keys(_choose(self.real, rows, self.real.ndim - 1))

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> Word:
        if self.real.shape[-1] != old_keys:
            raise RegardError(
                "Mask.keys",
                got=describe(self.real),
                needed=f"a last axis of {old_keys} keys, as many as there were",
                repair="Grow the mask together with its keys.",
            )
        return Keys(torch.cat([self.real, self.real.new_full((*self.real.shape[:-1], new_keys), fill)], -1))

    def to(self, device: torch.device) -> Word:
        return Keys(self.real.to(device))

    def told(self) -> Told:
        return Told(tuple(self.real.shape[:-1]), keys=self.real.shape[-1], device=self.real.device)

    def __str__(self) -> str:
        return f"Mask.keys({describe(self.real)})"


@dataclass(frozen=True, slots=True, eq=False)
class Matrix(Word):
    """Pair by pair; matrix: bool (…, queries, keys), aligned from the right; True keeps, or drops."""

    matrix: Tensor
    keeps: bool

    @property
    def name(self) -> str:
        """The public word."""
        return "Mask.keep" if self.keeps else "Mask.drop"

    def place(self, call: Call) -> placed.Placed:
        dense = placed.Dense(right_align(self.name, self.matrix, call))
        return dense if self.keeps else placed.Not(dense)

    def select(self, rows: Tensor, batch_axes: int | None) -> Word:
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

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> Word:
        raise _cannot_grow(self.name, old_keys, new_keys)

    def to(self, device: torch.device) -> Word:
        return Matrix(self.matrix.to(device), self.keeps)

    def told(self) -> Told:
        *batch, queries, keys = self.matrix.shape
        return Told(tuple(batch), queries, keys, self.matrix.device, is_leading=False)

    def __str__(self) -> str:
        return f"{self.name}({describe(self.matrix)})"


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Word):
    """Allowed inside one document; ids: integer (*leading batch, queries) and (*leading batch, keys)."""

    query_ids: Tensor
    key_ids: Tensor

    def place(self, call: Call) -> placed.Placed:
        query_ids = lead("Mask.documents", self.query_ids, call, "queries", (call.queries, 1))
        return placed.Same(query_ids, lead("Mask.documents", self.key_ids, call, "keys", (1, call.keys)))

    def select(self, rows: Tensor, batch_axes: int | None) -> Word:
        query_ids = _choose(self.query_ids, rows, self.query_ids.ndim - 1)
        return Documents(query_ids, _choose(self.key_ids, rows, self.key_ids.ndim - 1))

    def grow(self, old_keys: int, new_keys: int, fill: bool) -> Word:
        raise _cannot_grow("Mask.documents", old_keys, new_keys)

    def to(self, device: torch.device) -> Word:
        return Documents(self.query_ids.to(device), self.key_ids.to(device))

    def told(self) -> Told:
        (*queries, own), (*keys, other) = self.query_ids.shape, self.key_ids.shape
        return Told(tuple(queries), queries=own, device=self.query_ids.device).join(Told(tuple(keys), keys=other))

    def __str__(self) -> str:
        return f"Mask.documents({describe(self.query_ids)}, {describe(self.key_ids)})"


def _own(tensor: Tensor) -> tuple[Tensor, bool]:
    """A copy that nobody can change; or, while a CUDA graph is recorded, the tensor itself, and that it is so."""
    if is_watched():
        return tensor.clone(), False
    if stream_of(tensor.device) is None:
        return tensor, True
    if not torch.is_inference_mode_enabled():
        return tensor.clone(), False
    with torch.inference_mode(False):  # a backward pass may meet it later
        return tensor.clone(), False


def _once(word: Lengths | Keys, tensor: Tensor, call: Call) -> placed.Placed:
    """The same record for calls of the same size, so that a backend finds what it has kept with it."""
    if not word.is_recorded and stream_of(call.device) is None:
        hold(tensor)
    return find(word.kept, (call.batch, call.keys), call.device, partial(word._aligned, call))


def _choose(tensor: Tensor, rows: Tensor, batch_axes: int) -> Tensor:
    """Rows of the first batch axis; a tensor without it, or with size 1, is shared and stays."""
    if batch_axes == 0 or tensor.shape[0] == 1:
        return tensor
    if rows.device != tensor.device:
        raise RegardError(
            "rows",
            got=describe(rows),
            needed=f"the device of the mask, {tensor.device}",
            repair="Move one of them: rows.to(device), mask.to(device).",
        )
    if is_readable(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < tensor.shape[0]:
        raise RegardError(
            "rows",
            got=f"rows from {int(rows.min())} to {int(rows.max())}",
            needed=f"numbers from 0 to {tensor.shape[0] - 1}, the rows of the mask",
            repair="Number the rows as the mask has them, from 0.",
        )
    return tensor.index_select(0, rows)


def _cannot_grow(name: str, old_keys: int, new_keys: int) -> RegardError:
    return RegardError(
        name,
        got=f"{new_keys} keys appended to {old_keys}",
        needed="a mask that says who may see keys to come; this one lists what was there",
        repair="Use Mask.lengths, Mask.keys, Mask.causal or Mask.window, or remember again with a new mask.",
    )
