"""The record of an alignment: words on both sides, and how much each target word looked at each source word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from regard.checks import describe
from regard.errors import RegardError
from regard.translation.alignments.words import merge_to_words

# A row of softmax weights exceeds 1 by its rounding, in half precision by some parts of a thousand.
MOST_MASS = 1.01


@dataclass(frozen=True, eq=False)
class Alignment:
    """Which source words each target word looked at.

    source_words, target_words: as they are to be read.
    weights: (target words, source words), not negative, on the CPU; a row sums to 1 less `unaligned`.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Tensor

    def __post_init__(self) -> None:
        needed = (len(self.target_words), len(self.source_words))
        if tuple(self.weights.shape) != needed:
            raise RegardError(
                "weights",
                got=describe(self.weights),
                needed=f"{needed}: a row for each target word, a column for each source word",
                repair="Use Alignment.from_tokens, which merges tokens and leaves END out.",
            )
        sums = self.weights.sum(1)
        if not bool(((self.weights >= 0).all(1) & (sums <= MOST_MASS)).all()):
            raise RegardError(
                "weights",
                got=f"entries from {float(self.weights.min()):.3g}, rows that sum to up to {float(sums.max()):.3g}",
                needed="attention weights: not negative, at most 1 in a row",
                repair="Pass weights, not scores, of one head or the mean of several.",
            )

    @classmethod
    def from_tokens(
        cls,
        weights: Tensor,
        *,
        source_words: Sequence[str],
        target_words: Sequence[str],
        source_word_of_each: Sequence[int],
        target_word_of_each: Sequence[int],
    ) -> Alignment:
        """Merge attention between tokens to attention between words, as `merge_to_words` does.

        Args:
            weights: (target tokens, source tokens), of one sentence; END may follow as the last of either.
            source_words: the words of the source.
            target_words: the words of the target.
            source_word_of_each: for each source token the number of its word; -1 for none.
            target_word_of_each: the same for target tokens.
        """
        merged = merge_to_words(
            weights.detach().float().cpu(),
            target_word_of_each,
            source_word_of_each,
            target_count=len(target_words),
            source_count=len(source_words),
        )
        return cls(tuple(source_words), tuple(target_words), merged)

    @property
    def unaligned(self) -> Tensor:
        """(target words,): the mass that rests on no word, but on END or on tokens between words."""
        return (1 - self.weights.sum(1)).clamp(min=0)

    def links(self, threshold: float = 0.25) -> tuple[tuple[int, int], ...]:
        """(source word, target word): for each target word its heaviest source word, where it weighs that much.

        Of equal ones the first is taken. threshold: the least weight of a link.
        """
        if self.weights.numel() == 0:
            return ()
        heaviest, place = self.weights.max(1)
        pairs = zip(place.tolist(), heaviest.tolist(), strict=True)
        return tuple((source, target) for target, (source, weight) in enumerate(pairs) if weight >= threshold)
