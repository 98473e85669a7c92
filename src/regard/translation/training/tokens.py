"""The training pairs as tokens, and the batches of each epoch."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from regard.errors import RegardError
from regard.translation.corpora import Example
from regard.translation.dataset import Pair
from regard.translation.training.batches import Plan, Tokens, plan
from regard.translation.training.recipe import Recipe
from regard.translation.vocabulary import Vocabulary


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

    pairs: Sequence[Pair | Example]
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
