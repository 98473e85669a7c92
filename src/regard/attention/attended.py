"""`Attended`, the record of a call that computes weights, entropy and more on demand, and `merge` of such records."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from regard.backends import dispatch
from regard.backends.base import BatchIndex, Problem, full_precision
from regard.backends.reference import masked_scores, softmax
from regard.backends.row_blocks import map_rows
from regard.checks import Rows, describe
from regard.errors import RegardError
from regard.masks.checks import INTEGERS
from regard.torch_compat import can_read_values

RowIndex = int | slice | Sequence[int] | Tensor
"""Positions of queries as the user gives them."""

# Log masses that two backends compute from the same scores may differ by this many roundings.
MAX_ROUNDINGS = 8


class Top(NamedTuple):
    """The largest weights of each query and their keys, as `Attended.top` returns them.

    Attributes:
        weights: (*batch, queries, k), in descending order.
        keys: int64 (*batch, queries, k), the positions of the keys.
    """

    weights: Tensor
    keys: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Attended:
    """The result of a call, as `regard.inspect` returns it. Scores and weights are computed when a method is called.

    Weights and all that is computed from them are those before dropout. Every result is differentiable. A query without
    allowed keys has log_mass minus infinity and weights 0. A record created from output and log_mass alone can be
    merged, but its methods raise an error.

    Attributes:
        output: (*batch, queries, value_dim).
        log_mass: (*batch, queries), the logarithm of the denominator of eq. 3, over scores with bias.

    >>> import torch, regard
    >>> x = torch.zeros(2, 3)
    >>> record = regard.inspect(x, x, x, mask=regard.Mask.causal())
    >>> record
    Attended(output=(2, 3), log_mass=(2,))
    >>> record.weights()
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """

    output: Tensor
    log_mass: Tensor
    _problems: tuple[Problem, ...] = field(default=())

    @classmethod
    def of(cls, problem: Problem, backend: str = "auto") -> "Attended":
        """Run a problem and return its record.

        Args:
            problem: the call after preparation.
            backend: "auto", or the name of the backend that must run it.

        Returns:
            The record.

        Raises:
            RegardError: if the named backend refuses the problem.
        """
        problem = dispatch.zero_padding(problem)
        output, log_mass, _ = dispatch.run(problem, backend, "log_mass")
        assert log_mass is not None
        return cls(output, log_mass, (problem,))

    def scores(self, rows: RowIndex | None = None, batch: int | slice | BatchIndex | None = None) -> Tensor:
        """Return the scores plus bias, minus infinity where the mask forbids a pair.

        Args:
            rows: positions of the queries; None for all queries. An int selects one query and keeps its axis.
            batch: index into the batch axes, to which heads belong, for example (0, 2) or (slice(None), 2); None for
                the whole batch.

        Returns:
            (*batch, rows, keys); an int in `batch` removes its axis.

        Raises:
            RegardError: if an index does not fit, or if the record was created from output and log_mass alone.
        """
        # The plain function, because `_select` may call it on the record of a part of the batch.
        return self._select(Attended._row_scores, rows, batch)

    def weights(self, rows: RowIndex | None = None, batch: int | slice | BatchIndex | None = None) -> Tensor:
        """Return the attention weights of eq. 3.

        Args:
            rows: as for `scores`.
            batch: as for `scores`.

        Returns:
            (*batch, rows, keys). The weights of a row sum to 1, or to less if the score has a sink. A row without
            allowed keys is 0.

        Raises:
            RegardError: as for `scores`.
        """
        return self._select(Attended._row_weights, rows, batch)

    def entropy(self) -> Tensor:
        """Return -sum p log p of the weights p of each query, in nats.

        Returns:
            (*batch, queries); 0 for a query without allowed keys.

        Raises:
            RegardError: if the record was created from output and log_mass alone.
        """

        def entropy(rows: Rows | None) -> tuple[Tensor, ...]:
            log_weights = self._row_log_weights(rows)
            # A weight of 0 adds nothing. Its logarithm is replaced before the product, because 0 * inf is NaN.
            return (-(log_weights.exp() * _replace_neginf(log_weights)).sum(-1),)

        return self._compute_by_blocks(entropy, -1)[0]

    def top(self, k: int) -> Top:
        """Return the k largest weights of each query and the positions of their keys.

        Args:
            k: number of keys, from 1 to the number of keys of the call.

        Returns:
            Weights and keys, both (*batch, queries, k).

        Raises:
            RegardError: if there are not k keys, or if the record was created from output and log_mass alone.
        """
        keys = sum(problem.keys for problem in self._known_problems())
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= keys:
            raise RegardError(
                "k",
                got=repr(k),
                needed=f"a whole number from 1 to the number of keys, {keys}",
                repair=f"Pass min(k, {keys})." if keys else "Call top only on records of calls with at least one key.",
            )
        return Top(*self._compute_by_blocks(lambda rows: tuple(self._row_weights(rows).topk(k, dim=-1)), -2))

    def key_mass(self) -> Tensor:
        """Return the weight of each key, summed over the queries.

        Returns:
            (*batch, keys).

        Raises:
            RegardError: if the record was created from output and log_mass alone.
        """
        parts = map_rows(lambda rows: (self._row_weights(rows).sum(-2),), *self._known_problems())
        return torch.stack([part for (part,) in parts]).sum(0)

    @property
    def _has_sink(self) -> bool:
        """Whether a score of the record has an attention sink."""
        return any(problem.sink is not None for problem in self._problems)

    def _select(
        self,
        compute: Callable[["Attended", Rows | None], Tensor],
        rows: RowIndex | None,
        batch: int | slice | BatchIndex | None,
    ) -> Tensor:
        """Return scores or weights of the selected rows and batch elements, and compute no others.

        A callable score or bias is computed for the whole batch, because it expects the whole batch.
        """
        selected_rows = _to_rows(rows, self.log_mass)
        if batch is None:
            return compute(self, selected_rows)
        index = self._check_batch_index(batch)
        problems = self._known_problems()
        if any(problem.uses_callable for problem in problems):
            return compute(self, selected_rows)[index]
        selected = tuple(problem.select_batch(index) for problem in problems)
        # `compute` does not read the output. The output of a multi-head layer has no axis of heads to select from.
        return compute(Attended(self.output, self.log_mass[index], selected), selected_rows)

    def _check_batch_index(self, batch: int | slice | BatchIndex) -> BatchIndex:
        """Return the index as a tuple; raise if it does not fit the batch axes."""
        given = batch if isinstance(batch, tuple) else (batch,)
        sizes = tuple(self.log_mass.shape[:-1])
        index = tuple(_check_axis_index(entry, size) for entry, size in zip(given, sizes, strict=False))
        if len(given) > len(sizes) or None in index:
            raise RegardError(
                "batch",
                got=repr(batch),
                needed=f"at most one index for each batch axis of {sizes}: an int or a slice with a positive step",
                repair="Pass for example batch=(0, 2), and select queries with rows=.",
            )
        return tuple(entry for entry in index if entry is not None)

    def _row_scores(self, rows: Rows | None) -> Tensor:
        """Return the scores plus bias of these rows, over the keys of all problems."""
        with full_precision(self.log_mass.device):
            parts = [masked_scores(problem, rows) for problem in self._known_problems()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _row_weights(self, rows: Rows | None) -> Tensor:
        """Return the weights of these rows."""
        return self._row_log_weights(rows).exp()

    def _row_log_weights(self, rows: Rows | None) -> Tensor:
        """Return log weights, score - log_mass (eq. 3), of these rows.

        The log mass is recomputed from these scores, so that a row sums to exactly 1. If the recorded one differs by
        more than rounding (a sink, a merge), the recorded one is used. The row maximum is subtracted from both first;
        otherwise large scores lose precision.
        """
        scores = self._row_scores(rows)
        log_mass = _replace_neginf(self.log_mass if rows is None else self.log_mass[..., rows]).unsqueeze(-1)
        if not scores.shape[-1]:
            return scores
        peak = _replace_neginf(scores.detach().amax(-1, keepdim=True))
        shifted = scores - peak
        mass = shifted.exp().sum(-1, keepdim=True)
        computed, recorded = mass.masked_fill(mass == 0, 1.0).log(), log_mass - peak
        rounding = MAX_ROUNDINGS * torch.finfo(scores.dtype).eps * torch.maximum(peak.abs(), log_mass.detach().abs())
        return shifted - torch.where((computed - recorded).abs() <= rounding, computed, recorded)

    def _compute_by_blocks(self, function: Callable[[Rows | None], tuple[Tensor, ...]], axis: int) -> list[Tensor]:
        """Return the results of a function of rows, computed in blocks of rows that are joined along `axis`."""
        parts = map_rows(function, *self._known_problems())
        return [torch.cat(blocks, dim=axis) for blocks in zip(*parts, strict=True)]

    def _known_problems(self) -> tuple[Problem, ...]:
        """Return the problems whose keys the record covers; raise if it does not know them."""
        if not self._problems:
            raise RegardError(
                "Attended",
                got="a record created from output and log_mass alone",
                needed="a record returned by inspect, or a merge of such records",
                repair="Call regard.inspect to get a record that can compute scores and weights.",
            )
        return self._problems

    def __repr__(self) -> str:
        """Return the shapes."""
        return f"Attended(output={tuple(self.output.shape)}, log_mass={tuple(self.log_mass.shape)})"


def _check_axis_index(index: object, size: int) -> int | slice | None:
    """Return an index into an axis if it is an int in range or a slice with a positive step, else None."""
    if isinstance(index, slice):
        return index if _slice_indices("batch", index, size)[2] > 0 else None
    if not isinstance(index, Integral) or isinstance(index, bool) or not -size <= int(index) < size:
        return None
    return int(index)


def _replace_neginf(logarithms: Tensor) -> Tensor:
    """Replace minus infinity by 0."""
    return logarithms.masked_fill(logarithms == -math.inf, 0.0)


def _to_rows(rows: RowIndex | None, log_mass: Tensor) -> Rows | None:
    """Return positions of queries as a slice with start and stop or as an int64 tensor; None stays None."""
    queries = log_mass.shape[-1]
    if rows is None:
        return None
    if isinstance(rows, slice):
        start, stop, step = _slice_indices("rows", rows, queries)
        if step == 1:
            return slice(start, max(start, stop))
        return torch.tensor(range(start, stop, step), dtype=torch.int64, device=log_mass.device)
    positions = _to_int64(rows, log_mass.device)
    if _is_out_of_range(rows, positions, queries):
        raise RegardError(
            "rows",
            got=f"{rows!r:.60}",
            needed=f"positions from {-queries} to {queries - 1}",
            repair=f"Pass positions of the {queries} queries of this call.",
        )
    return positions % max(queries, 1)


def _is_out_of_range(rows: object, positions: Tensor, queries: int) -> bool:
    """Return whether a position is out of range; a tensor whose values cannot be read is not checked."""
    if isinstance(rows, int | Sequence):
        return any(not -queries <= row < queries for row in ([rows] if isinstance(rows, int) else rows))
    return can_read_values(positions) and bool(((positions < -queries) | (positions >= queries)).any())


def _slice_indices(argument: str, given: slice, size: int) -> tuple[int, int, int]:
    """Return start, stop and step of a slice of an axis."""
    try:
        return given.indices(size)
    except (TypeError, ValueError):
        raise RegardError(
            argument,
            got=f"{given!r:.60}",
            needed="a slice of whole numbers whose step is not 0",
            repair="Pass for example slice(0, 4).",
        ) from None


def _to_int64(rows: object, device: torch.device) -> Tensor:
    """Return positions as an int64 tensor with one axis."""
    try:
        positions = torch.as_tensor(rows, device=device)
    except (TypeError, ValueError, RuntimeError):
        positions = None
    if isinstance(rows, Sequence) and len(rows) == 0:  # torch makes an empty list a float tensor
        positions = torch.empty(0, dtype=torch.int64, device=device)
    if positions is None or positions.dtype not in INTEGERS or positions.ndim > 1:
        raise RegardError(
            "rows",
            got=f"{rows!r:.60}",
            needed="a position, a sequence or integer tensor of positions, or a slice",
            repair="Pass for example rows=[0, 3].",
        )
    return positions.reshape(-1).long()


def run_with_weights(problem: Problem, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Run a problem with few queries, such as a step of a decoder, and return its output and its weights.

    The weights of all pairs are materialised. The reference computes both in one pass. If another backend is named, its
    record computes the weights.

    Args:
        problem: the call after preparation.
        backend: "auto", or the name of the backend that must run it.

    Returns:
        Output (*batch, queries, value_dim) and weights (*batch, queries, keys).

    Raises:
        RegardError: if the named backend refuses the problem.
    """
    if backend in ("auto", "reference"):
        output, _, weights = dispatch.run(problem, backend, "weights")
        assert weights is not None
        return output, weights
    record = Attended.of(problem, backend)
    return record.output, record.weights()


def merge(parts: Sequence[Attended]) -> Attended:
    """Return the record over the keys of all parts, computed from records of the same queries over different keys.

    The output is the sum of the parts' outputs, each weighted by its share of the mass, exp(log_mass - total log mass).
    The keys of the merged record are those of the first part, then those of the second, and so on.

    Args:
        parts: records whose outputs have one shape, dtype and device.

    Returns:
        The record. It can compute weights if every part can.

    Raises:
        RegardError: if there are no parts, if they do not fit together, or if a score has a sink.

    >>> import torch, regard
    >>> query, key = torch.randn(5, 3), torch.randn(7, 3)
    >>> parts = [regard.inspect(query, some, some) for some in key.split(4)]
    >>> torch.allclose(regard.merge(parts).output, regard.attend(query, key, key), atol=1e-6)
    True
    """
    parts = _check_parts(parts)
    shares, log_mass = softmax(torch.stack([part.log_mass for part in parts]).movedim(0, -1))
    outputs = torch.stack([part.output for part in parts])
    output = (outputs.to(shares.dtype) * shares.movedim(-1, 0).unsqueeze(-1)).sum(0).to(outputs.dtype)
    if not all(part._problems for part in parts):
        return Attended(output, log_mass)
    return Attended(output, log_mass, tuple(problem for part in parts for problem in part._problems))


def _check_parts(given: Sequence[Attended]) -> list[Attended]:
    """Return the records as a list; raise if they cannot be merged."""
    parts = list(given) if isinstance(given, Iterable) else []
    if not parts:
        raise RegardError(
            "parts",
            got="no records" if isinstance(given, Iterable) else f"one {type(given).__name__}",
            needed="a sequence of at least one Attended",
            repair="Pass the records that regard.inspect returns for each set of keys.",
        )
    first = parts[0]
    for part in parts:
        _check_part(part)
        if (
            part.output.shape != first.output.shape
            or part.output.dtype != first.output.dtype
            or part.output.device != first.output.device
        ):
            raise RegardError(
                "parts",
                got=f"outputs {describe(first.output)} and {describe(part.output)}",
                needed="outputs of the same queries, with one shape and dtype, on one device",
                repair="Compute each part with the same queries and another set of keys.",
            )
    return parts


def _check_part(part: object) -> None:
    """Raise unless `part` is a record with one log mass for each row of its output, and without a sink."""
    if not isinstance(part, Attended):
        raise RegardError(
            "parts",
            got=f"{type(part).__name__}",
            needed="records returned by regard.inspect",
            repair="Call inspect instead of attend, because merge needs the log mass of each output.",
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
            needed="one log mass for each row of the output",
            repair="For records of a multi-head layer, merge the heads: merge([r.heads for r in records]).",
        )
    if part._has_sink:
        raise RegardError(
            "parts",
            got="a record whose score has a sink",
            needed="records without a sink, because the merge would count the sink once for each part",
            repair="Compute each part without a sink. Add one part with output 0 and the sink's logit as log_mass.",
        )
