"""Rows of the hat matrix: the weight of every observation in the estimate at a query, materialised by blocks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard import Mask, inspect
from regard.regression.local_linear import Line, inverse_of_covariance
from regard.regression.neighbourhoods import Seen, everything, neighbourhoods
from regard.regression.sums.all_pairs import as_score

if TYPE_CHECKING:
    from regard.regression.smoother import Smoother

# Entries of the hat matrix that exist at once: 2^21 float64 numbers are 16 MiB, and a handful of such blocks lives.
WEIGHTS_AT_ONCE = 2**21


class HatRows(NamedTuple):
    """The estimates of a block of queries as sums over the values.

    weight: (queries, keys): mean = weight @ value; 0 in an empty window. slope_weight: (dim, queries, keys) for the
    slopes of degree 1, None at degree 0.
    """

    weight: Tensor
    slope_weight: Tensor | None = None


def rows(
    smoother: "Smoother", query: Tensor, own: Tensor | None = None, exclude: int = 0, seen: Seen | None = None
) -> HatRows:
    """The rows of the queries.

    own: (queries,), or None; the row of the data that each query is, and that it leaves out as `sums.pool` says. seen:
    the keys that the rows are about, where all others have no weight; None for all.
    """
    seen = everything(smoother.data) if seen is None else seen
    share, pivot = _shares(smoother, query, seen, own, exclude)
    if smoother.degree == 0:
        return HatRows(share)
    away, centred, inverse = _about_pivot(query, seen.data.key, share, pivot)
    slope_weight = torch.einsum("qde,eqk->dqk", inverse, centred) * share
    return HatRows(share + torch.einsum("qd,dqk->qk", away, slope_weight), slope_weight)


def lines(smoother: "Smoother", query: Tensor, own: Tensor | None = None, exclude: int = 0) -> Line:
    """The local lines of the queries, without the cancellation that moments about a far query suffer.

    Keys are taken relative to the heaviest key and values relative to their mean, so that a line through two keys
    is exact even where one of them holds nearly all the weight.
    """
    parts, found = [], []
    hidden = 0 if own is None else 2 * exclude + 1
    for block, seen in neighbourhoods(smoother, query, hidden=hidden, pairs=WEIGHTS_AT_ONCE):
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
    return Line(*(torch.cat(pieces)[back] for pieces in zip(*parts, strict=True)))


def blocks(smoother: "Smoother", query: Tensor) -> Iterator[slice]:
    """Slices of the queries whose rows may exist at once; one empty slice where there are no queries."""
    height = smoother.data.most_rows(WEIGHTS_AT_ONCE)
    for start in range(0, max(len(query), 1), height):
        yield slice(start, min(start + height, len(query)))


def _shares(smoother: "Smoother", query: Tensor, seen: Seen, own: Tensor | None, exclude: int) -> tuple[Tensor, Tensor]:
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
    inverse, _ = inverse_of_covariance(covariance, covariance.diagonal(dim1=-2, dim2=-1))
    return query - heaviest - middle.T, centred, inverse
