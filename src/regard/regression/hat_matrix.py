"""Rows of the hat matrix, block by block over nearby keys, and local lines (local linear regression).

At a query q, with the weights p of eq. 4, the weighted least squares line through (k_j - q, y_j) has the slope C^-1 c,
where C is the covariance of the keys under p and c that of keys and values. Its value at q is mean - first' slope,
where `first` is the mean of k - q. In a direction in which the keys do not vary the slope is 0: with one key in the
window the estimate is that of degree 0.

Lines follow in near-linear time from the moments of the kernel sums (`solve_lines`). Where these have cancelled too
many digits, they are computed from the weights themselves (`local_lines`).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard import Mask, inspect
from regard.regression.sums import Observations, Pool, PoolTask
from regard.regression.sums.all_pairs import as_score
from regard.regression.sums.observations import Moments, SortedData

# Entries of the hat matrix in a block: 2^21 float64 numbers are 16 MiB, and a handful of such blocks exist at once.
ENTRIES_PER_BLOCK = 2**21
# exp(-MAX_EXPONENT) is 0 in float64.
MAX_EXPONENT = 750.0


class LocalLine(NamedTuple):
    """The local line of each query.

    Attributes:
        mean: (queries, outputs), its value at the query.
        slope: (queries, dim, outputs).
        leverage_factor: (queries,), the leverage of an observation at the query divided by that at degree 0.
        needs_exact: (queries,). From moments: whether they have cancelled too many digits. From weights: whether no
            key has any weight.
    """

    mean: Tensor
    slope: Tensor
    leverage_factor: Tensor
    needs_exact: Tensor


def solve_lines(pooled: Pool) -> LocalLine:
    """Return the lines from the moments of the kernel sums."""
    assert pooled.moments is not None
    first, _, cross = pooled.moments
    inverse, accurate = covariance_inverse(pooled.moments)
    slope = inverse @ (cross - first.unsqueeze(-1) * pooled.mean.unsqueeze(-2))
    mean = pooled.mean - torch.einsum("qd,qdo->qo", first, slope)
    leverage_factor = 1 + (first * (inverse @ first.unsqueeze(-1)).squeeze(-1)).sum(-1)
    return LocalLine(mean, slope, leverage_factor, ~accurate & pooled.log_mass.isfinite())


def covariance_inverse(moments: Moments) -> tuple[Tensor, Tensor]:
    """Return C^-1 of each query, (queries, dim, dim), and whether it is accurate, (queries,)."""
    first, second, _ = moments
    # C = second - first first' loses the digits in which the two agree: at most this share of them is given away.
    smallest_allowed = torch.finfo(first.dtype).eps ** 0.2
    covariance = second - first.unsqueeze(-1) * first.unsqueeze(-2)
    inverse, smallest = invert(covariance, second.diagonal(dim1=-2, dim2=-1))
    return inverse, smallest >= smallest_allowed


def invert(covariance: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Invert each covariance, with 0 in directions in which the keys do not vary.

    Args:
        covariance: (queries, dim, dim).
        unit: (queries, dim), squared units in which the coordinates become comparable. A coordinate whose unit is 0,
            or so small that its inverse overflows, does not vary: it gets no slope.

    Returns:
        The inverses, and the smallest eigenvalue of each in these units over the coordinates that vary; 1 if none does.
    """
    varies = unit >= 4 * torch.finfo(unit.dtype).tiny
    root = torch.where(varies, unit, 1.0).sqrt()
    scaled = covariance / root.unsqueeze(-1) / root.unsqueeze(-2)
    if covariance.shape[-1] == 1:
        found = scaled[..., 0, 0]
        kept = varies[..., 0] & (found > 0)
        inverse = torch.where(kept, 1 / torch.where(kept, found, 1.0), 0.0)[..., None, None]
        smallest = torch.where(varies[..., 0], found, 1.0)
    else:
        eigenvalues, vectors = torch.linalg.eigh(scaled)
        kept = eigenvalues > 16 * torch.finfo(unit.dtype).eps * scaled.shape[-1]
        inverted = torch.where(kept, 1 / torch.where(kept, eigenvalues, 1.0), 0.0)
        inverse = (vectors * inverted.unsqueeze(-2)) @ vectors.mT
        # A coordinate that does not vary adds an eigenvalue of exactly 0: skip as many as there are.
        ordered = torch.cat([eigenvalues, torch.ones_like(eigenvalues[..., :1])], -1)
        smallest = ordered.gather(-1, (~varies).sum(-1, keepdim=True)).squeeze(-1)
    return inverse / root.unsqueeze(-1) / root.unsqueeze(-2), smallest


# --- Blocks of nearby keys ---------------------------------------------------------------------------------------


class KeyBlock(NamedTuple):
    """Keys of a block of queries, among which is every key that can have non-zero weight there.

    All queries share them: then `data` is the observations and `row` is (keys,). Or each query has its own, in a table:
    then `data` has one more axis at the front, `row` is (queries, keys), and `padding` (queries, keys) tells which
    entries of the table are none.
    """

    data: Observations
    row: Tensor
    padding: Tensor | None = None


def take_queries(task: PoolTask, rows: Tensor) -> PoolTask:
    """Return the same task for some of its queries."""
    width = task.width[rows] if isinstance(task.width, Tensor) and task.has_width_per_query else task.width
    return task._replace(query=task.query[rows], width=width)


def all_keys(data: Observations) -> KeyBlock:
    """Return all keys."""
    return KeyBlock(data, torch.arange(len(data.key), device=data.key.device))


def nearby_keys(task: PoolTask, *, hidden: int = 0) -> Iterator[tuple[Tensor, KeyBlock]]:
    """Yield blocks of queries, by their positions, each with its keys; with one dimension those nearby.

    Args:
        task: its queries, data, kernel and width.
        hidden: how many keys at most do not count at a query, because it leaves them out.
    """
    queries, data = len(task.query), task.data
    rows = torch.arange(queries, device=task.query.device)
    windows = _windows(task, hidden) if queries and data.is_sortable and not task.query.requires_grad else None
    if windows is None or int((windows[1] - windows[0]).sum()) > task.pairs // 2:
        block = all_keys(data)
        yield from ((some, block) for some in rows.split(data.queries_per_block(ENTRIES_PER_BLOCK)))
        return
    first, after = windows
    size = after - first
    # Windows of similar size share a table, so that it is at most half empty.
    exponent = size.clamp(min=1).double().log2_().ceil_()
    numbers = 1 + data.value.shape[-1]
    for power in exponent.unique().tolist():
        members = (exponent == power).nonzero().squeeze(-1)
        longest = max(int(size[members].max()), 1)
        for some in members.split(max(ENTRIES_PER_BLOCK // (longest * numbers), 1)):
            yield some, _table(data, first[some], after[some], longest)


def _table(data: Observations, first: Tensor, after: Tensor, longest: int) -> KeyBlock:
    """Return the keys from `first` to before `after` of each query, (queries, longest)."""
    index = first.unsqueeze(-1) + torch.arange(longest, device=first.device)
    padding = index >= after.unsqueeze(-1)
    row = data.sorted.order[index.masked_fill_(padding, 0)].long()
    return KeyBlock(data.take(row), row, padding)


def _windows(task: PoolTask, hidden: int) -> tuple[Tensor, Tensor] | None:
    """Return the sorted keys that can have weight at each query, from `first` to before `after`; None if unknown."""
    width, data = task.width, task.data.sorted
    if isinstance(width, Tensor) and not task.has_width_per_query:
        if width.numel() != 1:
            return None
        width = width.item()
    query = task.query[:, 0].double()
    width = width[:, 0].double() if isinstance(width, Tensor) else torch.full_like(query, width)
    if task.kernel.is_compact:
        reach = width
    else:
        cutoff = MAX_EXPONENT + data.log_weight_ratio
        nearest = _nearest_distance(query, data, hidden)
        if task.kernel.name == "laplacian":
            reach = nearest + cutoff * width
        else:
            reach = nearest.hypot(math.sqrt(2 * cutoff) * width)
    # Some roundings more, also those of a width in the dtype of the data; keys without weight get none.
    reach = reach * (1 + 4 * torch.finfo(task.data.key.dtype).eps + 2.0**-20) + 2.0**-50 * query.abs()
    return torch.searchsorted(data.key, query - reach), torch.searchsorted(data.key, query + reach, right=True)


def _nearest_distance(query: Tensor, data: SortedData, hidden: int) -> Tensor:
    """Return a bound of the distance to the nearest key that counts: at most `hidden` places on each side do not."""
    right = torch.searchsorted(data.key, query) + hidden
    distances = []
    for beside in (right - 2 * hidden - 1, right):
        exists = (beside >= 0) & (beside < len(data.key))
        distance = (query - data.key[beside.clamp(0, len(data.key) - 1)]).abs()
        distances.append(distance.masked_fill(~exists, torch.inf))
    return torch.minimum(*distances)


# --- Rows of the hat matrix --------------------------------------------------------------------------------------


class HatRows(NamedTuple):
    """The estimates of a block of queries as weighted sums of the values.

    Attributes:
        weight: (queries, keys), mean = weight @ value; 0 in an empty window.
        slope_weight: (queries, keys, dim), the weights of the slopes of degree 1; None at degree 0.
    """

    weight: Tensor
    slope_weight: Tensor | None = None


def hat_rows(task: PoolTask, degree: int, block: KeyBlock | None = None) -> HatRows:
    """Return the rows of the queries over the keys of the block, by default all keys."""
    block = all_keys(task.data) if block is None else block
    weight = _weights(task, block, None)
    if degree == 0:
        return HatRows(weight)
    away, centred, inverse, _ = _about_pivot(task.query, block, weight)
    slope_weight = torch.einsum("qde,qke->qkd", inverse, centred) * weight.unsqueeze(-1)
    return HatRows(weight + torch.einsum("qd,qkd->qk", away, slope_weight), slope_weight)


def local_lines(task: PoolTask, row: Tensor | None = None) -> LocalLine:
    """Return the local lines of the queries, without the cancellation of moments about a far query.

    Keys are relative to the key of the largest weight and values to their mean, so that a line through two keys is
    exact even where one of them has nearly all the weight.

    Args:
        task: what to pool; `leave_out` counts if `row` is given.
        row: (queries,), the row of the data that each query is and leaves out; or None.
    """
    parts, found = [], []
    hidden = 0 if row is None else 2 * (task.leave_out or 0) + 1
    for some, block in nearby_keys(task, hidden=hidden):
        part = take_queries(task, some)
        weight = _weights(part, block, None if row is None else row[some])
        away, centred, inverse, mean = _about_pivot(part.query, block, weight)
        deviation = weight.unsqueeze(-1) * (block.data.value - mean.unsqueeze(-2))
        slope = inverse @ torch.einsum("qkd,qko->qdo", centred, deviation)
        factor = 1 + (away * (inverse @ away.unsqueeze(-1)).squeeze(-1)).sum(-1)
        line = mean + torch.einsum("qd,qdo->qo", away, slope)
        parts.append((line, slope, factor, weight.sum(-1) == 0))
        found.append(some)
    order = torch.cat(found).argsort()
    return LocalLine(*(torch.cat(pieces)[order] for pieces in zip(*parts, strict=True)))


def row_blocks(data: Observations, queries: int) -> Iterator[slice]:
    """Yield slices of the queries whose rows may exist at once; one empty slice if there are no queries."""
    height = data.queries_per_block(ENTRIES_PER_BLOCK)
    for start in range(0, max(queries, 1), height):
        yield slice(start, min(start + height, queries))


def _weights(task: PoolTask, block: KeyBlock, row: Tensor | None) -> Tensor:
    """Return the weights p of eq. 4, (queries, keys)."""
    data, weight = block.data, block.data.weight
    bias = None if weight is None else weight.log()
    hidden = block.padding
    if row is not None:
        leave_out = task.leave_out or 0
        left_out = (block.row - row.unsqueeze(-1)).abs() <= leave_out
        if leave_out == 0 and weight is not None:
            # Weights count repetitions: one copy of the row is left out, the others remain.
            remaining = weight - weight.clamp(max=1)
            left_out = left_out & (remaining == 0)
            log_remaining = torch.where(remaining > 0, remaining, 1.0).log()
            bias = torch.where(block.row == row.unsqueeze(-1), log_remaining, weight.log())
        hidden = left_out if hidden is None else hidden | left_out
    query, key, value, width = task.query, data.key, data.value, task.width
    if block.row.ndim == 2:
        # A table: each query is a batch of its own.
        query = query.unsqueeze(1)
        hidden, bias = (None if part is None else part.unsqueeze(1) for part in (hidden, bias))
        width = width.unsqueeze(1) if isinstance(width, Tensor) and task.has_width_per_query else width
    elif bias is not None and bias.ndim == 1:
        bias = bias.unsqueeze(0)
    score = as_score(task.kernel, width)
    mask = None if hidden is None else Mask.drop(hidden)
    weights = inspect(query, key, value, score=score, mask=mask, bias=bias).weights().to(value.dtype)
    return weights.squeeze(1) if block.row.ndim == 2 else weights


def _about_pivot(query: Tensor, block: KeyBlock, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what a line is made of, from differences to the key of the largest weight.

    Returns:
        The query less the mean of its keys (queries, dim), the keys less that mean (queries, keys, dim), the inverse of
        their covariance (queries, dim, dim), and the mean of the values (queries, outputs).
    """
    key, value = block.data.key, block.data.value
    shared = block.row.ndim == 1
    pivot = weight.argmax(-1)
    if shared:
        heaviest, mean = key[pivot], weight @ value
    else:
        heaviest = key.gather(1, pivot[:, None, None].expand(-1, 1, key.shape[-1])).squeeze(1)
        mean = torch.einsum("qk,qko->qo", weight, value)
    difference = key - heaviest.unsqueeze(-2)
    middle = torch.einsum("qk,qkd->qd", weight, difference)
    centred = difference - middle.unsqueeze(-2)
    # Once more: the inverse may be huge, and what is left of the mean would be multiplied by it.
    centred = centred - torch.einsum("qk,qkd->qd", weight, centred).unsqueeze(-2)
    covariance = torch.einsum("qkd,qke->qde", centred * weight.unsqueeze(-1), centred)
    inverse, _ = invert(covariance, covariance.diagonal(dim1=-2, dim2=-1))
    return query - heaviest - middle, centred, inverse, mean
