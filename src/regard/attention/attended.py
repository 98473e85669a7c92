"""The record of a pooling: its output and log_mass, and everything else on demand, streamed by rows."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends import dispatch
from regard.backends.base import BatchIndex, Problem, full_precision
from regard.backends.reference import masked_scores
from regard.backends.row_blocks import map_rows
from regard.checks import describe
from regard.errors import RegardError
from regard.masks.checks import INTEGERS
from regard.torch_compat import can_read_values

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

    @classmethod
    def of(cls, problem: Problem, backend: str = "auto") -> "Attended":
        """Run a problem for its record."""
        problem = dispatch.zero_padding(problem)
        output, log_mass, _ = dispatch.run(problem, backend, "log_mass")
        assert log_mass is not None
        return cls(output, log_mass, (problem,), problem.sink is not None)

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
        parts = map_rows(lambda rows: (self._row_weights(rows).sum(-2),), *self._problems())
        return torch.stack([part for (part,) in parts]).sum(0)

    def _look(self, what: Callable[["Attended", Chosen], Tensor], rows: Rows | None, batch: Batch | None) -> Tensor:
        """Scores or weights of the chosen rows, computed for the chosen part of the batch only."""
        positions = _positions(rows, self.log_mass)
        if batch is None:
            return what(self, positions)
        index = self._batch_index(batch)
        problems = self._problems()
        if any(problem.uses_callable for problem in problems):
            return what(self, positions)[index]
        chosen = tuple(problem.select_batch(index) for problem in problems)
        # The output is not looked at; that of a layer has no axis of heads.
        return what(Attended(self.output, self.log_mass[index], chosen), positions)

    def _batch_index(self, batch: Batch) -> BatchIndex:
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
        with full_precision(self.log_mass.device):
            parts = [masked_scores(problem, rows) for problem in self._problems()]
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
        parts = map_rows(function, *self._problems())
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
    return can_read_values(positions) and bool(((positions < -queries) | (positions >= queries)).any())


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


def with_weights(problem: Problem, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Return output and weights: from one pass of the reference, or by the record of a backend that was named.

    The weights of all pairs are materialised, which is for the few queries of a decoder's step.
    """
    if backend in ("auto", "reference"):
        output, _, weights = dispatch.run(problem, backend, "weights")
        assert weights is not None
        return output, weights
    record = Attended.of(problem, backend)
    return record.output, record.weights()


def merge(parts: Sequence[Attended]) -> Attended:
    """What one pooling over all keys of all parts would have given, from the parts alone.

    Each part has pooled the same queries over its own keys; its share of the whole is exp(log_mass - total). Keys
    of the merged record are numbered part after part.
    """
    parts = _check_parts(parts)
    log_masses = torch.stack([part.log_mass for part in parts])
    # logsumexp that stays differentiable where every part is empty.
    peak = log_masses.detach().amax(0)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    masses = (log_masses - peak).exp()
    total = masses.sum(0)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    shares = (masses / total).unsqueeze(-1)
    outputs = torch.stack([part.output for part in parts])
    output = (outputs.to(shares.dtype) * shares).sum(0).to(outputs.dtype)
    log_mass = (total.log() + peak).masked_fill(empty, -math.inf)
    known = all(part._sources for part in parts)
    sources = tuple(problem for part in parts for problem in part._sources) if known else ()
    return Attended(output, log_mass, sources)


def _check_parts(parts: Sequence[Attended]) -> list[Attended]:
    given = parts
    parts = list(parts) if isinstance(parts, Iterable) else []
    if not parts:
        raise RegardError(
            "parts",
            got="no records" if isinstance(given, Iterable) else f"one {type(given).__name__}",
            needed="a sequence of at least one Attended",
            repair="Collect the records of regard.inspect over each set of keys.",
        )
    first = parts[0]
    for part in parts:
        if not isinstance(part, Attended):
            raise RegardError(
                "parts",
                got=f"{type(part).__name__}",
                needed="records of regard.inspect",
                repair="Use inspect instead of attend: an output alone does not know its mass.",
            )
        if not isinstance(part.output, Tensor) or not isinstance(part.log_mass, Tensor):
            raise RegardError(
                "parts",
                got=f"output {describe(part.output)} with log_mass {describe(part.log_mass)}",
                needed="tensors",
                repair="Convert them with torch.as_tensor.",
            )
        if part.output.shape[:-1] != part.log_mass.shape:
            raise RegardError(
                "parts",
                got=f"output {describe(part.output)} with log_mass {describe(part.log_mass)}",
                needed="one mass for each row of the output",
                repair="Of a multi-head layer's records merge the heads: merge([r.heads for r in records]).",
            )
        if part._has_sink:
            raise RegardError(
                "parts",
                got="a record whose score has a sink",
                needed="records without one: merging would count it once for each part",
                repair="Pool each part without a sink; its logit is a part of its own, with output 0.",
            )
        one, other = part.output, first.output
        if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
            raise RegardError(
                "parts",
                got=f"outputs {describe(first.output)} and {describe(part.output)}",
                needed="poolings of the same queries, of one shape and dtype, on one device",
                repair="Pool the same queries over each set of keys.",
            )
    return parts
