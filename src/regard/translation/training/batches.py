"""From pairs of token lists to batches of about equal work, in an order that seed and epoch decide."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.translation.vocabulary import BEGIN, END, PAD

Tokens = Sequence[int]


class Batch(NamedTuple):
    """Some pairs: source (batch, source) and lengths (batch), previous and target (batch, target); all int64.

    A source ends with END; previous is BEGIN and the target's words, target the words and END; then PAD.
    tokens: how many target tokens are real, in the whole batch of all processes.
    """

    source: Tensor
    lengths: Tensor
    previous: Tensor
    target: Tensor
    tokens: int


class Plan(NamedTuple):
    """Which pairs make one batch, its padded size, and how many of its target tokens are real."""

    rows: tuple[int, ...]
    batch: int
    source: int
    target: int
    tokens: int


def plan(lengths: Sequence[tuple[int, int]], batch_tokens: int, generator: torch.Generator, ladder: int) -> list[Plan]:
    """Batches of pairs of about equal length, in random order.

    Args:
        lengths: tokens of source and target of each pair, END counted.
        batch_tokens: rows times the longer of the two padded sides stay below it, if there is more than one row.
        generator: decides which pairs of equal length meet, and the order of the batches.
        ladder: 1 to pad to the longest row; otherwise both sides are padded to one multiple of it, and rows to a
            full batch, so that few different shapes occur: a GPU replays one graph for each.
    """
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    plans: list[Plan] = []
    if ladder > 1:
        rungs: dict[int, list[int]] = {}
        for row in shuffled:
            rungs.setdefault(-(-max(lengths[row]) // ladder) * ladder, []).append(row)
        for width, rows in sorted(rungs.items()):
            size = max(1, batch_tokens // width)
            for start in range(0, len(rows), size):
                chosen = tuple(rows[start : start + size])
                plans.append(Plan(chosen, size, width, width, sum(lengths[row][1] for row in chosen)))
    else:
        rows, longest = [], 0
        for row in sorted(shuffled, key=lambda row: (lengths[row][1], lengths[row][0])):
            longest = max(longest, *lengths[row])
            if rows and longest * (len(rows) + 1) > batch_tokens:
                plans.append(_tight(rows, lengths))
                rows, longest = [], max(lengths[row])
            rows.append(row)
        if rows:
            plans.append(_tight(rows, lengths))
    return [plans[i] for i in torch.randperm(len(plans), generator=generator).tolist()]


def _tight(rows: list[int], lengths: Sequence[tuple[int, int]]) -> Plan:
    source, target = (max(lengths[row][side] for row in rows) for side in (0, 1))
    return Plan(tuple(rows), len(rows), source, target, sum(lengths[row][1] for row in rows))


def make_batch(planned: Plan, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Batch:
    """One batch; rows beyond the pairs hold an empty sentence and no target, which adds nothing to any sum."""
    empty = planned.batch - len(planned.rows)
    from_rows = [[*sources[row], END] for row in planned.rows] + [[END]] * empty
    to_rows = [[*targets[row], END] for row in planned.rows] + [[]] * empty
    source = _fill(from_rows, planned.source)
    target = _fill(to_rows, planned.target)
    previous = _fill([[BEGIN, *row[:-1]] if row else [] for row in to_rows], planned.target)
    lengths = torch.tensor([len(row) for row in from_rows])
    return Batch(source, lengths, previous, target, planned.tokens)


def _fill(rows: Sequence[Tokens], width: int) -> Tensor:
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.int64)
