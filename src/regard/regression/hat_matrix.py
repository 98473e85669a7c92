"""Local lines and rows of the hat matrix: from moments, or block by block over nearby keys."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard import Mask, inspect
from regard.regression import sums
from regard.regression.sums import Observations, Pool
from regard.regression.sums.all_pairs import as_score
from regard.regression.sums.line import SortedData
from regard.regression.sums.observations import Moments
from regard.scores.kernels import KERNELS

if TYPE_CHECKING:
    from regard.regression.smoother import Smoother


class LocalLine(NamedTuple):
    """The local line of each query.

    mean: (queries, outputs), its value at the query. slope: (queries, dim, outputs). inflation: (queries,), by how
    much the weight of a key at the query itself is larger than at degree 0. lost: (queries,), True where the line is
    not to be trusted: the moments about the query have cancelled too many digits, or no key is left.
    """

    mean: Tensor
    slope: Tensor
    inflation: Tensor
    lost: Tensor


def solve_lines(pooled: Pool) -> LocalLine:
    """Lines from moments about each query."""
    assert pooled.moments is not None
    shift, _, cross = pooled.moments
    inverse, trusted = covariance_inverse(pooled.moments)
    slope = inverse @ (cross - shift.unsqueeze(-1) * pooled.mean.unsqueeze(-2))
    pull = (inverse @ shift.unsqueeze(-1)).squeeze(-1)
    mean = pooled.mean - torch.einsum("qd,qdo->qo", shift, slope)
    inflation = 1 + (shift * pull).sum(-1)
    return LocalLine(mean, slope, inflation, ~trusted & pooled.log_mass.isfinite())


def covariance_inverse(moments: Moments) -> tuple[Tensor, Tensor]:
    """C^-1 of each query, (queries, dim, dim), and whether it is to be trusted, (queries,)."""
    shift, spread, _ = moments
    # C = spread - shift shift' loses the digits in which the two agree: at most this share of them is given away.
    trusted = torch.finfo(shift.dtype).eps ** 0.2
    covariance = spread - shift.unsqueeze(-1) * shift.unsqueeze(-2)
    inverse, smallest = invert_covariance(covariance, spread.diagonal(dim1=-2, dim2=-1))
    return inverse, smallest >= trusted


def invert_covariance(covariance: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of each covariance (queries, dim, dim), 0 in directions without spread, and its smallest eigenvalue.

    unit: (queries, dim), squared units in which the coordinates become comparable; a coordinate whose unit is 0, or so
    small that its inverse overflows, does not vary, gets no slope, and does not count for the smallest eigenvalue,
    which is 1 where no coordinate varies.
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


# Neighbours that share their keys: any number of queries with narrow windows, wherever they lie, are compared with
# less than so many times all keys together.
NEIGHBOURS = 128
# e to minus this is 0, in float64 too.
FAINT = 750.0


class KeyBlock(NamedTuple):
    """Keys that queries are compared with, and which rows of the data they are, (keys,)."""

    data: Observations
    row: Tensor


def all_keys(data: Observations) -> KeyBlock:
    """All keys."""
    return KeyBlock(data, torch.arange(len(data.key), device=data.key.device))


def nearby_keys(
    smoother: "Smoother", query: Tensor, *, hidden: int = 0, pairs: int | None = None
) -> Iterator[tuple[Tensor, KeyBlock]]:
    """The numbers of all queries, (some,) at a time, with the keys that they see.

    query: (queries, dim), in the coordinates of the keys. hidden: from how many keys, at most, each query is hidden.
    pairs: how many there may be at once; None for any number.
    """
    line = smoother.prepared
    kernel = None if smoother.adapts else smoother.kernel_at(query)
    if (
        not len(query)
        or kernel is None
        or not isinstance(line, SortedData)
        or not sums.can_pool_on_line(query, kernel, None)
    ):
        yield from _cut(torch.arange(len(query), device=query.device), all_keys(smoother.data), pairs)
        return
    place = query[:, 0].double()
    # Some roundings more: what has no weight after all gets none.
    reach = _reach(kernel.name, sums.width_of(kernel, line), place, line, hidden) * (1 + 2.0**-20)
    reach += 2.0**-50 * place.abs()
    for block in place.argsort().split(NEIGHBOURS):
        ends = torch.stack([(place[block] - reach[block]).amin(), (place[block] + reach[block]).amax()])
        first, after = torch.searchsorted(line.key, ends).tolist()
        first = min(first, len(line.key) - 1)
        row = line.order[first : max(after, first + 1)].long()
        yield from _cut(block, KeyBlock(smoother.data.at(row), row), pairs)


def _cut(block: Tensor, seen: KeyBlock, pairs: int | None) -> Iterator[tuple[Tensor, KeyBlock]]:
    rows = max(len(block), 1) if pairs is None else seen.data.most_rows(pairs)
    yield from ((some, seen) for some in block.split(rows))


def _reach(kernel: str, width: float, place: Tensor, line: SortedData, hidden: int) -> Tensor:
    """How far from each place, (queries,), a key may be and have a weight beside that of the nearest one."""
    if KERNELS[kernel].is_compact:
        return torch.full_like(place, width)
    depth = FAINT + line.log_weight_spread
    # One of so many keys on either side is not hidden, so that the nearest one is no farther than the last of them.
    right = torch.searchsorted(line.key, place) + hidden
    left = right - 2 * hidden - 1
    nearest = torch.minimum(*(_distance(place, line.key, at) for at in (left, right)))
    if kernel == "laplacian":
        return nearest + depth * width
    return nearest.hypot(nearest.new_tensor(math.sqrt(2 * depth) * width))


def _distance(place: Tensor, key: Tensor, at: Tensor) -> Tensor:
    """To the key at that position, infinite where there is none."""
    there = (at >= 0) & (at < len(key))
    return (place - key[at.clamp(0, len(key) - 1)]).abs().masked_fill(~there, torch.inf)


# Entries of the hat matrix that exist at once: 2^21 float64 numbers are 16 MiB, and a handful of such blocks lives.
WEIGHTS_AT_ONCE = 2**21


class HatRows(NamedTuple):
    """The estimates of a block of queries as sums over the values.

    weight: (queries, keys): mean = weight @ value; 0 in an empty window. slope_weight: (dim, queries, keys) for the
    slopes of degree 1, None at degree 0.
    """

    weight: Tensor
    slope_weight: Tensor | None = None


def hat_rows(
    smoother: "Smoother", query: Tensor, own: Tensor | None = None, exclude: int = 0, seen: KeyBlock | None = None
) -> HatRows:
    """The rows of the queries.

    own: (queries,), or None; the row of the data that each query is, and that it leaves out as `sums.pool` says. seen:
    the keys that the rows are about, where all others have no weight; None for all.
    """
    seen = all_keys(smoother.data) if seen is None else seen
    share, pivot = _shares(smoother, query, seen, own, exclude)
    if smoother.degree == 0:
        return HatRows(share)
    away, centred, inverse = _about_pivot(query, seen.data.key, share, pivot)
    slope_weight = torch.einsum("qde,eqk->dqk", inverse, centred) * share
    return HatRows(share + torch.einsum("qd,dqk->qk", away, slope_weight), slope_weight)


def local_lines(smoother: "Smoother", query: Tensor, own: Tensor | None = None, exclude: int = 0) -> LocalLine:
    """The local lines of the queries, without the cancellation that moments about a far query suffer.

    Keys are taken relative to the heaviest key and values relative to their mean, so that a line through two keys
    is exact even where one of them holds nearly all the weight.
    """
    parts, found = [], []
    hidden = 0 if own is None else 2 * exclude + 1
    for block, seen in nearby_keys(smoother, query, hidden=hidden, pairs=WEIGHTS_AT_ONCE):
        share, pivot = _shares(smoother, query[block], seen, None if own is None else own[block], exclude)
        away, centred, inverse = _about_pivot(query[block], seen.data.key, share, pivot)
        value = seen.data.value
        mean = share @ value
        deviation = share * (value.T.unsqueeze(1) - mean.T.unsqueeze(-1))
        slope = inverse @ torch.einsum("dqk,oqk->qdo", centred, deviation)
        pull = (inverse @ away.unsqueeze(-1)).squeeze(-1)
        line = mean + torch.einsum("qd,qdo->qo", away, slope)
        parts.append((line, slope, 1 + (away * pull).sum(-1), share.sum(-1) == 0))
        found.append(block)
    back = torch.cat(found).argsort()
    return LocalLine(*(torch.cat(pieces)[back] for pieces in zip(*parts, strict=True)))


def row_blocks(smoother: "Smoother", query: Tensor) -> Iterator[slice]:
    """Slices of the queries whose rows may exist at once; one empty slice where there are no queries."""
    height = smoother.data.most_rows(WEIGHTS_AT_ONCE)
    for start in range(0, max(len(query), 1), height):
        yield slice(start, min(start + height, len(query)))


def _shares(
    smoother: "Smoother", query: Tensor, seen: KeyBlock, own: Tensor | None, exclude: int
) -> tuple[Tensor, Tensor]:
    """The weights p of eq. 4, (queries, keys), and the heaviest key of each query."""
    data = seen.data
    score = as_score(smoother.kernel_at(query, own, exclude))
    bias, mask = data.bias, None
    if own is not None:
        hidden = (seen.row - own.unsqueeze(-1)).abs() <= exclude
        if exclude == 0 and data.weight is not None:
            # Weights count repetitions: one copy of the row goes, the others stay.
            left = data.weight - data.weight.clamp(max=1)
            hidden &= (left == 0).unsqueeze(0)
            of_own = torch.where(left > 0, left, 1.0).log().unsqueeze(0)
            bias = torch.where(seen.row == own.unsqueeze(-1), of_own, data.weight.log().unsqueeze(0))
        mask = Mask.drop(hidden)
    share = inspect(query, data.key, data.value, score=score, mask=mask, bias=bias).weights().to(data.value.dtype)
    return share, share.argmax(-1)


def _about_pivot(query: Tensor, key: Tensor, share: Tensor, pivot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each query lies from the mean of its keys, the keys from that mean, and the inverse of their covariance.

    Returns away (queries, dim), centred (dim, queries, keys), inverse (queries, dim, dim). All are formed from
    differences to the heaviest key, which are small where the weights are large.
    """
    heaviest = key[pivot]
    apart = key.T.unsqueeze(1) - heaviest.T.unsqueeze(-1)
    middle = (share * apart).sum(-1)
    centred = apart - middle.unsqueeze(-1)
    # Once more: the inverse may be huge, and what is left of the mean would be multiplied by it.
    centred = centred - (share * centred).sum(-1, keepdim=True)
    covariance = torch.einsum("dqk,eqk->qde", centred * share, centred)
    inverse, _ = invert_covariance(covariance, covariance.diagonal(dim1=-2, dim2=-1))
    return query - heaviest - middle.T, centred, inverse
