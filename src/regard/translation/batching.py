"""Padding, batches of about equal work, and the batches of each epoch in seeded order."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translation.dataset import Pair
from regard.translation.recipe import Recipe
from regard.translation.vocabulary import BEGIN, END, PAD, Vocabulary


def pad(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Put rows of ids into one tensor, filled with PAD.

    For a GPU the copy goes through pinned memory, so that it overlaps with work that was queued before.

    Args:
        rows: The ids of each sentence.
        device: Where the tensors go.

    Returns:
        The ids, int64 (batch, longest), and the lengths of the rows, int64 (batch).

    Example:
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
    """Sort sentences by length and cut them into batches, the longest first.

    Starting with the longest makes a call that needs too much memory fail at its beginning.

    Args:
        lengths: The length of each sentence.
        batch_size: The number of sentences of a batch.

    Returns:
        The positions of the sentences of each batch.

    Example:
        >>> batches_by_length([3, 9, 4, 8], 2)
        [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


SEED_STRIDE = 1_000_003  # between the seeds of two trainings, so that their epochs do not share seeds
TokenIds = Sequence[int]


class Batch(NamedTuple):
    """A batch of pairs as int64 tensors, filled with PAD.

    Attributes:
        source: The source tokens and END, (batch, source).
        lengths: The lengths of the sources, END included, (batch).
        previous: BEGIN and the target tokens, (batch, target).
        target: The target tokens and END, (batch, target).
        tokens: The number of target tokens, END included, in the batches of all processes.
    """

    source: Tensor
    lengths: Tensor
    previous: Tensor
    target: Tensor
    tokens: int

    def tensors(self) -> tuple[Tensor, ...]:
        """All five parts as tensors, as an update takes them."""
        return (*self[:4], torch.tensor(float(self.tokens)))


class BatchPlan(NamedTuple):
    """The pairs of a batch and its padded size.

    Attributes:
        rows: The positions of the pairs.
        batch: The number of rows, empty ones included.
        source: The padded length of the sources.
        target: The padded length of the targets.
        tokens: The number of target tokens, END included.
    """

    rows: tuple[int, ...]
    batch: int
    source: int
    target: int
    tokens: int


def plan_batches(
    lengths: Sequence[tuple[int, int]], batch_tokens: int, generator: torch.Generator, pad_to_multiple: int = 1
) -> list[BatchPlan]:
    """Group pairs of similar lengths into batches, in random order.

    Args:
        lengths: The number of source and target tokens of each pair, END included.
        batch_tokens: The maximum number of rows times the longer padded side. A longer pair is a batch of its own.
        generator: Decides which pairs of equal lengths share a batch, and the order of the batches.
        pad_to_multiple: 1 pads to the longest row of a batch. Otherwise both sides are padded to one multiple of it and
            the batch is filled with empty rows, so that few shapes occur: on a GPU each shape needs a CUDA graph.
    """
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    plans: list[BatchPlan] = []
    if pad_to_multiple > 1:
        buckets: dict[int, list[int]] = {}
        for row in shuffled:
            buckets.setdefault(-(-max(lengths[row]) // pad_to_multiple) * pad_to_multiple, []).append(row)
        for width, rows in sorted(buckets.items()):
            size = max(1, batch_tokens // width)
            for start in range(0, len(rows), size):
                chosen = tuple(rows[start : start + size])
                plans.append(BatchPlan(chosen, size, width, width, sum(lengths[row][1] for row in chosen)))
    else:
        rows, longest = [], 0
        for row in sorted(shuffled, key=lambda row: (lengths[row][1], lengths[row][0])):
            longest = max(longest, *lengths[row])
            if rows and longest * (len(rows) + 1) > batch_tokens:
                plans.append(_plan_of(rows, lengths))
                rows, longest = [], max(lengths[row])
            rows.append(row)
        if rows:
            plans.append(_plan_of(rows, lengths))
    return [plans[i] for i in torch.randperm(len(plans), generator=generator).tolist()]


def _plan_of(rows: list[int], lengths: Sequence[tuple[int, int]]) -> BatchPlan:
    """Plan a batch of some pairs, padded to the longest of each side."""
    source, target = (max(lengths[row][side] for row in rows) for side in (0, 1))
    return BatchPlan(tuple(rows), len(rows), source, target, sum(lengths[row][1] for row in rows))


def make_batch(plan: BatchPlan, sources: Sequence[TokenIds], targets: Sequence[TokenIds]) -> Batch:
    """Make the tensors of a batch.

    Rows beyond the pairs have an empty source and no target, so they add nothing to the loss.

    Args:
        plan: Which pairs, and the padded size.
        sources: The tokens of all sources.
        targets: The tokens of all targets.
    """
    empty = plan.batch - len(plan.rows)
    source_rows = [[*sources[row], END] for row in plan.rows] + [[END]] * empty
    target_rows = [[*targets[row], END] for row in plan.rows] + [[]] * empty
    source = _fill(source_rows, plan.source)
    target = _fill(target_rows, plan.target)
    previous = _fill([[BEGIN, *row[:-1]] if row else [] for row in target_rows], plan.target)
    lengths = torch.tensor([len(row) for row in source_rows])
    return Batch(source, lengths, previous, target, plan.tokens)


def _fill(rows: Sequence[TokenIds], width: int) -> Tensor:
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.int64)


class EpochBatches:
    """The batches of each epoch. Seed and epoch alone decide their content and order, so a training can resume.

    The pairs are encoded once, or again for each epoch if BPE-dropout segments them anew. A thread prepares the next
    epoch meanwhile: with BPE-dropout a GPU would wait for it. Call `close` to stop the thread.

    Args:
        pairs: The training pairs.
        source_vocabulary: Encodes the sources.
        target_vocabulary: Encodes the targets.
        recipe: Its `data` and `training` tables say how.
        pad_to_multiple: As in `plan_batches`.

    Attributes:
        pairs: The pairs that are used.
        skipped: The number of pairs with a side longer than the recipe's `most_tokens`.
        length_ratio: The largest ratio of target to source tokens of a pair, END included.
        per_epoch: The number of batches of an epoch; with BPE-dropout, of one without it.

    Raises:
        RegardError: If every pair is longer than `most_tokens`.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        recipe: Recipe,
        pad_to_multiple: int = 1,
    ) -> None:
        self.pairs, self._recipe, self._pad_to_multiple = pairs, recipe, pad_to_multiple
        self._vocabularies = (source_vocabulary, target_vocabulary)
        sources, targets = self._encode(0.0, 0)
        most = recipe.data.most_tokens
        fits = [len(s) <= most and len(t) <= most for s, t in zip(sources, targets, strict=True)]
        self.skipped = fits.count(False)
        if self.skipped == len(fits):
            raise RegardError(
                "most_tokens",
                got=f"{most}, and every pair is longer",
                needed="a limit that leaves pairs to train on",
                repair="Raise most_tokens.",
            )
        self.pairs = [pair for pair, fit in zip(pairs, fits, strict=True) if fit]
        self._sources = [ids for ids, fit in zip(sources, fits, strict=True) if fit]
        self._targets = [ids for ids, fit in zip(targets, fits, strict=True) if fit]
        lengths = self._lengths(self._sources, self._targets)
        self.length_ratio = max(target / source for source, target in lengths)
        # The number does not depend on the random order: only pairs of equal lengths change places.
        self.per_epoch = len(self._plan(lengths, 0))
        self._worker = ThreadPoolExecutor(1, "epochs")
        self._prepared: dict[int, Future[Epoch]] = {}

    def epoch(self, number: int) -> "Epoch":
        """Return the batches of an epoch, counted from 0, and start to prepare those of the next one."""
        present = self._prepared.pop(number, None) or self._worker.submit(self._make, number)
        has_next = number + 1 < self._recipe.training.epochs
        self._prepared = {number + 1: self._worker.submit(self._make, number + 1)} if has_next else {}
        return present.result()

    def close(self) -> None:
        """Stop the background thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _make(self, number: int) -> "Epoch":
        dropout, seed = self._recipe.data.bpe_dropout, self._recipe.training.seed
        sources, targets = self._sources, self._targets
        if dropout:
            sources, targets = self._encode(dropout, seed * SEED_STRIDE + 2 * number)
        return Epoch(self._plan(self._lengths(sources, targets), number), sources, targets)

    def _plan(self, lengths: Sequence[tuple[int, int]], number: int) -> list[BatchPlan]:
        training = self._recipe.training
        generator = torch.Generator().manual_seed(training.seed * SEED_STRIDE + number)
        return plan_batches(lengths, training.batch_tokens, generator, self._pad_to_multiple)

    def _encode(self, dropout: float, seed: int) -> tuple[list[list[int]], list[list[int]]]:
        sides = []
        for offset, (side, vocabulary) in enumerate(zip(("source", "target"), self._vocabularies, strict=True)):
            texts = [getattr(pair, side) for pair in self.pairs]
            own = dropout if vocabulary.unit == "bpe" else 0.0
            sides.append(vocabulary.encode_all(texts, dropout=own, seed=seed + offset))
        return sides[0], sides[1]

    @staticmethod
    def _lengths(sources: Sequence[TokenIds], targets: Sequence[TokenIds]) -> list[tuple[int, int]]:
        """The number of tokens of each pair, END included."""
        return [(len(source) + 1, len(target) + 1) for source, target in zip(sources, targets, strict=True)]


class Epoch(NamedTuple):
    """The batches of one epoch in their order, and the tokens they are made of."""

    plans: list[BatchPlan]
    sources: Sequence[TokenIds]
    targets: Sequence[TokenIds]
