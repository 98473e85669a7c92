"""Kernel sums pair by pair over each query's window, in the log domain: for rows that a faster way cannot promise."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.regression.sums.line import Asked, Line
from regard.regression.sums.totals import Totals

# Pairs that exist at once: 2 MiB for each of a handful of temporaries.
PAIRS = 2**18


class Windows(NamedTuple):
    """Some of the queries, and the keys from first up to after that each one is summed over; (rows,) each.

    reference: a number of each row that the kernel is taken relative to.
    """

    rows: Tensor
    first: Tensor
    after: Tensor
    reference: Tensor

    def some(self, which: Tensor) -> "Windows":
        """A part of them."""
        return Windows(self.rows[which], self.first[which], self.after[which], self.reference[which])


# The logarithm of the kernel of keys (rows, keys) at places (rows, 1), relative to references (rows, 1).
LogRatio = Callable[[Tensor, Tensor, Tensor], Tensor]


def sum_pairs(
    totals: Totals,
    windows: Windows,
    asked: Asked,
    line: Line,
    log_ratio: LogRatio,
    width: float,
    log_reference: Tensor | None = None,
) -> None:
    """Overwrite the totals of these rows by their exact sums.

    log_reference: (rows,), the logarithm of what the kernel is relative to; None where that is 0.
    """
    size = windows.after - windows.first
    # Windows of like size make one table, so that a table is at most half empty.
    grade = size.clamp(min=1).double().log2_().ceil_()
    for power in grade.unique().tolist():
        members = (grade == power).nonzero().squeeze(-1)
        longest = int(size[members].max())
        for which in members.split(max(PAIRS // max(longest, 1), 1)):
            part = windows.some(which)
            sums, scale = _table(part, longest, asked, line, log_ratio, width, len(totals.sums))
            totals.overwrite(part.rows, sums, scale if log_reference is None else scale + log_reference[which])


def _table(
    windows: Windows, longest: int, asked: Asked, line: Line, log_ratio: LogRatio, width: float, count: int
) -> tuple[Tensor, Tensor]:
    """Sums (count, rows) and the logarithm of their scale (rows,): tile by tile, with a running maximum."""
    place, reference = asked.place[windows.rows].unsqueeze(-1), windows.reference.unsqueeze(-1)
    peak = torch.full_like(place, -torch.inf)
    sums = place.new_zeros(count, len(place))
    for start in range(0, longest, PAIRS):
        span = torch.arange(start, min(start + PAIRS, longest), device=place.device)
        position = windows.first.unsqueeze(-1) + span
        beyond = position >= windows.after.unsqueeze(-1)
        position = position.masked_fill_(beyond, 0)
        key = line.key[position]
        score, away = log_ratio(key, place, reference), key - place
        if line.weight is not None:
            score = score + line.weight[position].log_()
        if asked.leaves_itself:
            itself = asked.left[windows.rows].unsqueeze(-1)
            kept = torch.zeros_like(place) if asked.kept is None else asked.kept[windows.rows].unsqueeze(-1)
            score = torch.where(position == itself, kept.log(), score)
        score = score.masked_fill(beyond, -torch.inf)
        higher = torch.maximum(peak, score.amax(-1, keepdim=True))
        floor = higher.masked_fill(higher == -torch.inf, 0.0)
        sums.mul_((peak - floor).exp_().squeeze(-1))
        sums += _weighted((score - floor).exp_(), line.value[:, position], away / width, count)
        peak = higher
    return sums, peak.masked_fill(peak == -torch.inf, 0.0).squeeze(-1)


def _weighted(weights: Tensor, value: Tensor, away: Tensor, count: int) -> Tensor:
    """The sums of Totals over a tile: weights and away (rows, keys), value (outputs, rows, keys)."""
    found = [weights.sum(-1).unsqueeze(0), (weights * value).sum(-1)]
    if count > 1 + len(value):
        pull = weights * away
        found += [pull.sum(-1).unsqueeze(0), (pull * value).sum(-1), (pull * away).sum(-1).unsqueeze(0)]
    return torch.cat(found)
