"""Looks at a model while it learns: where it attends in a few sentences, from its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.translation.alignment import corpus_span_attention
from regard.translation.checkpoint import load as load_checkpoint
from regard.translation.dataset import Corpus, Pair
from regard.translation.recipe import Recipe
from regard.translation.training import Trainer
from regard.translation.translator import Translation, Translator

LANGUAGES = ("de", "ja", "en", "fi")  # fields backwards, forwards, out of order, with endings
JUDGED = 32  # validation pairs over which the share on the right characters is averaged
DIGITS = 4


@dataclass(frozen=True)
class Frame:
    """One look.

    update: after how many updates. loss: of the model at that time, None before the first.
    share: of the attention that lies on the characters that say the same, over `JUDGED` pairs; None
    without attention, or where the truth explains no character.
    weights: for each sentence shown (target characters, source characters).
    """

    update: int
    loss: float | None
    share: float | None
    weights: tuple[tuple[tuple[float, ...], ...], ...]


class Looks:
    """Looks at the model of a training; the pairs are the same each time, so that frames compare."""

    def __init__(self, recipe: Recipe, corpus: Corpus) -> None:
        self.trainer = Trainer(recipe, corpus)
        self.has_attention = recipe.model.attention != "none"
        examples = [pair for pair in corpus.valid if isinstance(pair, Pair)]
        self.shown = _one_of_each(examples)
        self.pairs = [*self.shown, *(pair for pair in examples if pair not in self.shown)][:JUDGED]

    def sentences(self) -> list[dict[str, Any]]:
        """The sentences shown, cut into the tokens of both sides."""
        source, target = self.trainer.source_vocabulary, self.trainer.target_vocabulary
        return [
            {
                "language": pair.label,
                "text": pair.source,
                "source": source.pieces(source.encode(pair.source)),
                "target": target.pieces(target.encode(pair.target)),
            }
            for pair in self.shown
        ]

    def at_first(self) -> Frame:
        """The model before it has learnt anything."""
        return self._look(0, None)

    def at(self, folder: Path, loss: float) -> Frame | None:
        """The model of the last checkpoint; None where there is none yet."""
        state = load_checkpoint(folder)
        if state is None:
            return None
        self.trainer.model.load_state_dict(state["trainer"]["model"])
        return self._look(int(state["trainer"]["update"]), loss)

    def _look(self, update: int, loss: float | None) -> Frame:
        if not self.has_attention:
            return Frame(update, loss, None, ())
        translator = Translator([self.trainer.snapshot(averaged=False)])
        seen = translator.force([pair.source for pair in self.pairs], [pair.target for pair in self.pairs])
        share = corpus_span_attention(seen, self.pairs)
        shown = tuple(_rounded(one) for one in seen[: len(self.shown)])
        return Frame(update, loss, None if share is None else round(share, DIGITS), shown)


def _rounded(one: Translation) -> tuple[tuple[float, ...], ...]:
    """The weights between the characters of both sides, without the signs of their end."""
    alignment = one.alignment_of_tokens
    assert alignment is not None
    return tuple(tuple(round(weight, DIGITS) for weight in row) for row in alignment.weights.tolist())


def _one_of_each(examples: Sequence[Pair]) -> list[Pair]:
    """A sentence of each language shown, as far as the corpus has them; else its first ones."""
    of_language = {label: [pair for pair in examples if pair.label == label] for label in LANGUAGES}
    return [pairs[0] for pairs in of_language.values() if pairs] or list(examples[:2])
