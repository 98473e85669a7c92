"""Batches: sentences padded to one tensor, pairs grouped into batches of equal work, and the batches of each epoch."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.dataset import Pair
from regard.translation.recipe import Recipe
from regard.translation.vocabulary import BEGIN, END, PAD, Vocabulary


def pad(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Rows of ids side by side, PAD at the end of the short ones.

    For a GPU the rows go through pinned memory, so that the copy runs beside the work that was queued before it.

    Returns:
        ids: int64 (batch, longest).
        lengths: int64 (batch), how much of each row is real.

    >>> pad([[7, 3], [5, 6, 3]])
    (tensor([[7, 3, 0],
            [5, 6, 3]]), tensor([2, 3]))
    """
    device = torch.device(device)
    sizes = [len(row) for row in rows]
    longest = max(sizes, default=0)
    ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64, device="cpu")
    lengths = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    ids = ids.view(len(sizes), longest)
    if device.type == "cuda":
        return ids.pin_memory().to(device, non_blocking=True), lengths.pin_memory().to(device, non_blocking=True)
    return ids.to(device), lengths.to(device)


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """The numbers of all sentences, `batch_size` at a time, longest first, so that neighbours are of one length.

    The longest come first: what does not fit into memory fails at once, not at the end.

    >>> batches_by_length([3, 9, 4, 8], 2)
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


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


@dataclass
class Epoch:
    """One pass over the data: the batches in their order, and the tokens they are cut from."""

    plans: list[Plan]
    sources: Sequence[Tokens]
    targets: Sequence[Tokens]


@dataclass
class TrainingTokens:
    """Training pairs, encoded once, or anew at each epoch where BPE-dropout cuts them differently.

    left_out: how many pairs are too long. target_per_source: the largest ratio of a pair's tokens, END counted.
    """

    pairs: Sequence[Pair]
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    recipe: Recipe
    ladder: int
    left_out: int = field(init=False)
    target_per_source: float = field(init=False)

    def __post_init__(self) -> None:
        """Encode, and leave out pairs that are too long; their number is kept."""
        sources, targets = self._encode(0.0, 0)
        most = self.recipe.data.most_tokens
        fits = [len(s) <= most and len(t) <= most for s, t in zip(sources, targets, strict=True)]
        self.left_out = fits.count(False)
        if self.left_out == len(fits):
            raise RegardError(
                "most_tokens",
                got=f"{most}, and every pair is longer",
                needed="a limit that leaves pairs to train on",
                repair="Raise most_tokens.",
            )
        self.pairs = [pair for pair, fit in zip(self.pairs, fits, strict=True) if fit]
        self._sources = [ids for ids, fit in zip(sources, fits, strict=True) if fit]
        self._targets = [ids for ids, fit in zip(targets, fits, strict=True) if fit]

        self.target_per_source = max(
            (len(t) + 1) / (len(s) + 1) for s, t in zip(self._sources, self._targets, strict=True)
        )
        self._ahead: dict[int, Future[Epoch]] = {}
        self._worker = ThreadPoolExecutor(1, "epochs")

    def epoch(self, number: int) -> Epoch:
        """The batches of epoch `number`, counted from 0: the same whenever they are asked for.

        The next epoch is cut meanwhile, by a thread: with BPE-dropout a GPU would wait for it.
        """
        present = self._ahead.pop(number, None) or self._worker.submit(self._cut, number)
        follows = number + 1 < self.recipe.training.epochs
        self._ahead = {number + 1: self._worker.submit(self._cut, number + 1)} if follows else {}
        return present.result()

    def close(self) -> None:
        """Nobody asks for another epoch."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _cut(self, number: int) -> Epoch:
        data, training = self.recipe.data, self.recipe.training
        sources, targets = self._sources, self._targets
        if data.bpe_dropout:
            sources, targets = self._encode(data.bpe_dropout, training.seed * 1_000_003 + 2 * number)
        lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
        generator = torch.Generator().manual_seed(training.seed * 1_000_003 + number)
        return Epoch(plan(lengths, training.batch_tokens, generator, self.ladder), sources, targets)

    def _encode(self, dropout: float, seed: int) -> tuple[list[list[int]], list[list[int]]]:
        sides = []
        for offset, side in enumerate(("source", "target")):
            vocabulary: Vocabulary = getattr(self, f"{side}_vocabulary")
            texts = [getattr(pair, side) for pair in self.pairs]
            cut = dropout if vocabulary.unit == "bpe" else 0.0
            sides.append(vocabulary.encode_all(texts, dropout=cut, seed=seed + offset))
        return sides[0], sides[1]


def tensors_of(batch: Batch) -> tuple[Tensor, ...]:
    """What `Update.run` takes of a batch."""
    return (*batch[:4], torch.tensor(float(batch.tokens)))
