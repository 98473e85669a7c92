"""What a translator gives back: a sentence, how sure the model is of it, and where it looked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from regard.translation.alignment import Alignment
from regard.translation.sentence import Sentence


@dataclass(frozen=True, eq=False)
class Translation:
    """One translation of one sentence.

    source, target: both sentences with their tokens.
    score: what ranks it: its log-probability, divided by the length penalty.
    log_probability: of all its tokens, END included.
    finished: whether the model ended it; else it was cut off at the longest length.
    weights: (target tokens + 1, source tokens + 1), the attention of every step, END last on both sides; one row less
        when it is unfinished, None without attention.
    others: further translations of the sentence, the next best first.
    """

    source: Sentence
    target: Sentence
    score: float
    log_probability: float
    finished: bool = True
    weights: Tensor | None = None
    others: tuple[Translation, ...] = ()

    @property
    def text(self) -> str:
        """The translation."""
        return self.target.text

    @property
    def tokens(self) -> tuple[str, ...]:
        """The translation's tokens in print; ▁ is a blank."""
        return self.target.pieces

    @property
    def length(self) -> int:
        """How many tokens the model chose: those of the text, and END where it is finished."""
        return len(self.target.ids) + self.finished

    @cached_property
    def alignment(self) -> Alignment | None:
        """How much each word of the target looked at each word of the source.

        None where there is nothing to tell: a model without attention, or an empty source.
        """
        if self.weights is None:
            return None
        return Alignment.from_tokens(
            self.weights,
            source_words=self.source.words,
            target_words=self.target.words,
            source_word_of_each=self.source.word_of_each,
            target_word_of_each=self._of_every_row(self.target.word_of_each),
        )

    @cached_property
    def alignment_of_tokens(self) -> Alignment | None:
        """The same token by token, for text that has no blanks between its words."""
        if self.weights is None:
            return None
        rows, columns = len(self.target.pieces), len(self.source.pieces)
        return Alignment(self.source.pieces, self.target.pieces, self.weights[:rows, :columns])

    def _of_every_row(self, words: tuple[int, ...]) -> tuple[int, ...]:
        """With -1 for the row of END."""
        return (*words, -1) if self.finished else words
