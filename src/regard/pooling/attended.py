"""The record of a pooling: its output and log_mass, and everything else on demand, streamed by rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends import equations
from regard.backends.blocked.checkpointed import by_rows
from regard.backends.problem import Index, Problem
from regard.errors import RegardError
from regard.masks.checks import INTEGERS
from regard.watched import is_readable

Rows = int | slice | Sequence[int] | Tensor
Batch = int | slice | tuple[int | slice, ...]
Chosen = slice | Tensor | None

# A mass computed twice, by two backends, differs by a few roundings of the scores.
ROUNDINGS = 8


class Top(NamedTuple):
    """The k largest weights of each query and the keys they belong to, (*batch, queries, k) both."""

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Attended:
    """What a pooling gave: output (*batch, queries, value_dim) and log_mass (*batch, queries).

    log_mass is the logarithm of eq. 3's denominator, over scores with bias: minus infinity for a query that may see
    no key. Scores and weights are computed when asked for, for the rows asked for, before dropout; all of it is
    differentiable. A record made by hand from output and log_mass can be merged, but knows no weights.
    """

    output: Tensor
    log_mass: Tensor
    _sources: tuple[Problem, ...] = field(default=())
    _has_sink: bool = False

    def scores(self, rows: Rows | None = None, batch: Batch | None = None) -> Tensor:
        """Score plus bias, minus infinity where the mask forbids; (*batch, rows, keys).

        Args:
            rows: which queries; all by default. An int is kept as an axis of size 1.
            batch: an index into the batch axes, heads included, for example (0, 2) or (slice(None), 2).
        """
        return self._look(Attended._row_scores, rows, batch)

    def weights(self, rows: Rows | None = None, batch: Batch | None = None) -> Tensor:
        """Attention weights of eq. 3, (*batch, rows, keys): zero in a row that may see no key."""
        return self._look(Attended._row_weights, rows, batch)

    def entropy(self) -> Tensor:
        """-sum p log p of the weights of each query, (*batch, queries), in nats; 0 in a row that may see no key."""

        def entropy(rows: Chosen) -> tuple[Tensor, ...]:
            log_weights = self._row_log_weights(rows)
            # A key without weight adds 0; its logarithm is replaced before the product, or 0 * inf would be NaN.
            return (-(log_weights.exp() * _finite(log_weights)).sum(-1),)

        return self._by_rows(entropy, -1)[0]

    def top(self, k: int) -> Top:
        """The k keys with the largest weights for each query."""
        keys = sum(problem.keys for problem in self._problems())
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= keys:
            raise RegardError(
                "k",
                got=repr(k),
                needed=f"a whole number from 1 to the number of keys, {keys}",
                repair=f"Pass min(k, {keys})." if keys else "Without keys there is nothing to choose from.",
            )
        return Top(*self._by_rows(lambda rows: tuple(self._row_weights(rows).topk(k, dim=-1)), -2))

    def key_mass(self) -> Tensor:
        """The weight each key gets, summed over the queries, (*batch, keys)."""
        parts = by_rows(lambda rows: (self._row_weights(rows).sum(-2),), *self._problems())
        return torch.stack([part for (part,) in parts]).sum(0)

    def _look(self, what: Callable[["Attended", Chosen], Tensor], rows: Rows | None, batch: Batch | None) -> Tensor:
        """Scores or weights of the chosen rows, computed for the chosen part of the batch only."""
        positions = _positions(rows, self.log_mass)
        if batch is None:
            return what(self, positions)
        index = self._batch_index(batch)
        problems = self._problems()
        if any(problem.is_code for problem in problems):
            return what(self, positions)[index]
        chosen = tuple(problem.at(index) for problem in problems)
        # The output is not looked at; that of a layer has no axis of heads.
        return what(Attended(self.output, self.log_mass[index], chosen), positions)

    def _batch_index(self, batch: Batch) -> Index:
        given = batch if isinstance(batch, tuple) else (batch,)
        sizes = tuple(self.log_mass.shape[:-1])
        index = tuple(_index(i, size) for i, size in zip(given, sizes, strict=False))
        if len(given) > len(sizes) or None in index:
            raise RegardError(
                "batch",
                got=repr(batch),
                needed=f"at most one number or slice for each batch axis of {sizes}",
                repair="Pass for example batch=(0, 2); rows= chooses queries.",
            )
        return tuple(i for i in index if i is not None)

    def _row_scores(self, rows: Chosen) -> Tensor:
        """rows: a slice with both its ends, positions, or None for all."""
        with equations.full_precision(self.log_mass.device):
            parts = [equations.scores(problem, rows) for problem in self._problems()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _row_weights(self, rows: Chosen) -> Tensor:
        return self._row_log_weights(rows).exp()

    def _row_log_weights(self, rows: Chosen) -> Tensor:
        """score - log_mass (eq. 3), both measured from the largest score: a large number would swallow the digits.

        The mass is that of these very scores, unless the record's differs by more than rounding: a sink, or keys that
        are elsewhere, have a share in it.
        """
        scores = self._row_scores(rows)
        log_mass = _finite(self.log_mass if rows is None else self.log_mass[..., rows]).unsqueeze(-1)
        if not scores.shape[-1]:
            return scores
        peak = _finite(scores.detach().amax(-1, keepdim=True))
        apart = scores - peak
        mass = apart.exp().sum(-1, keepdim=True)
        own, whole = mass.masked_fill(mass == 0, 1.0).log(), log_mass - peak
        rounding = ROUNDINGS * torch.finfo(scores.dtype).eps * torch.maximum(peak.abs(), log_mass.detach().abs())
        return apart - torch.where((own - whole).abs() <= rounding, own, whole)

    def _by_rows(self, function, axis: int) -> list[Tensor]:
        parts = by_rows(function, *self._problems())
        return [torch.cat(pieces, dim=axis) for pieces in zip(*parts, strict=True)]

    def _problems(self) -> tuple[Problem, ...]:
        if not self._sources:
            raise RegardError(
                "Attended",
                got="a record made from output and log_mass alone",
                needed="a record returned by inspect, or a merge of such records",
                repair="Call regard.inspect(...) where the weights are wanted.",
            )
        return self._sources

    def __repr__(self) -> str:
        """Shapes, not numbers."""
        return f"Attended(output={tuple(self.output.shape)}, log_mass={tuple(self.log_mass.shape)})"


def _index(given: object, size: int) -> int | slice | None:
    """A number or a slice of an axis of that size, as tensors take it; None for anything else."""
    if isinstance(given, slice):
        return given if _indices("batch", given, size)[2] > 0 else None
    if not isinstance(given, Integral) or isinstance(given, bool) or not -size <= int(given) < size:
        return None
    return int(given)


def _finite(logarithms: Tensor) -> Tensor:
    return logarithms.masked_fill(logarithms == -math.inf, 0.0)


def _positions(rows: Rows | None, log_mass: Tensor) -> Chosen:
    """Rows as a slice with both ends, or as a tensor of positions; None for all."""
    queries = log_mass.shape[-1]
    if rows is None:
        return None
    if isinstance(rows, slice):
        start, stop, step = _indices("rows", rows, queries)
        if step == 1:
            return slice(start, max(start, stop))
        return torch.tensor(range(start, stop, step), dtype=torch.int64, device=log_mass.device)
    positions = _whole_numbers(rows, log_mass.device)
    if _are_outside(rows, positions, queries):
        raise RegardError(
            "rows",
            got=f"{rows!r:.60}",
            needed=f"numbers from {-queries} to {queries - 1}",
            repair="Ask for queries that exist.",
        )
    return positions % max(queries, 1)


def _are_outside(rows: object, positions: Tensor, queries: int) -> bool:
    """Whether there are no such queries; numbers in a tensor that somebody watches are not looked at."""
    if isinstance(rows, int | Sequence):
        return any(not -queries <= row < queries for row in ([rows] if isinstance(rows, int) else rows))
    return is_readable(positions) and bool(((positions < -queries) | (positions >= queries)).any())


def _indices(argument: str, given: slice, size: int) -> tuple[int, int, int]:
    """Start, stop and step of a slice of an axis of that size."""
    try:
        return given.indices(size)
    except (TypeError, ValueError):
        raise RegardError(
            argument,
            got=f"{given!r:.60}",
            needed="a slice of whole numbers, whose step is not 0",
            repair="Pass for example slice(0, 4).",
        ) from None


def _whole_numbers(rows: object, device: torch.device) -> Tensor:
    """int64 (rows)."""
    try:
        positions = torch.as_tensor(rows, device=device)
    except (TypeError, ValueError, RuntimeError):
        positions = None
    if isinstance(rows, Sequence) and len(rows) == 0:  # an empty list has no dtype of its own
        positions = torch.empty(0, dtype=torch.int64, device=device)
    if positions is None or positions.dtype not in INTEGERS or positions.ndim > 1:
        raise RegardError(
            "rows",
            got=f"{rows!r:.60}",
            needed="a query's number, a list of numbers, or a slice",
            repair="Pass for example rows=[0, 3].",
        )
    return positions.reshape(-1).long()
