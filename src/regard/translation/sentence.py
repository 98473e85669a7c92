"""A sentence beside its tokens, as a model reads or writes it."""

from dataclasses import dataclass
from functools import cached_property

from regard.translation.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Sentence:
    """Text and tokens.

    text: as `normalise` leaves it.
    ids: its tokens, without BEGIN and END.
    vocabulary: what the ids are numbers in.
    """

    text: str
    ids: tuple[int, ...]
    vocabulary: Vocabulary

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Each token in print; ▁ is a blank."""
        return tuple(self.vocabulary.pieces(self.ids))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What stands between blanks; a word that the vocabulary cannot spell is shown as it was written."""
        written, spelt = self.text.split(), self.vocabulary.decode(self.ids).split()
        # They differ where the text has a sign that the vocabulary takes for a blank.
        return tuple(written if len(written) == len(spelt) else spelt)

    @cached_property
    def word_of_each(self) -> tuple[int, ...]:
        """For each token the number of its word; -1 for none."""
        return tuple(self.vocabulary.words(self.ids))
