"""The contract of a vocabulary: what every unit of text can do."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

from regard.errors import RegardError

Unit = Literal["bpe", "characters", "words"]


@runtime_checkable
class Vocabulary(Protocol):
    """Sentences as lists of ids: 0 to 3 are the symbols of `translation/symbols.py`, the text's own tokens follow.

    Text is normalised (`translation/text.py`) before it is cut, so `decode(encode(text)) == normalise(text)` wherever
    every character (every word, for words) was in the training data. Vocabularies do not change once they are made.
    """

    unit: ClassVar[Unit]

    def __len__(self) -> int:
        """How many ids there are, the symbols included."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a sentence, without BEGIN and END; UNKNOWN for what the training data did not have."""
        ...

    def encode_all(self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """The ids of many sentences at once.

        dropout: the probability that a merge of two subwords is left out (BPE-dropout, arXiv 1910.13267), for training
        only; units without merges refuse it. seed: the same seed and texts cut the same way.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: PAD, BEGIN and END left out, UNKNOWN shown as ⁇."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token in print: ▁ is a blank, the symbols are <pad>, ⁇, <s> and </s>."""
        ...

    def words(self, ids: Sequence[int]) -> list[int]:
        """For each token the number of the word of `decode(ids).split()` that it belongs to.

        A blank belongs to the word after it. -1: no word at all (PAD, BEGIN, END, a blank after the last word).
        """
        ...

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each token of `encode(text)` the characters of `normalise(text)` that it covers, from start to end.

        The blank before a word is not part of it; a token that is nothing but the blank covers the blank.
        """
        ...

    def to_bytes(self) -> bytes:
        """The vocabulary as a file; `load(unit, data)` reads it back. JSON, or sentencepiece's own model."""
        ...


class VocabularySizeError(RegardError):
    """A vocabulary of the given size cannot be learned."""


def check_stored_size(found: int, wanted: int | None) -> None:
    """Refuse a stored vocabulary that has another number of ids than the model, before its tokens are looked at."""
    if wanted is not None and found != wanted:
        raise RegardError(
            "vocabulary",
            got=f"{found} ids",
            needed=f"{wanted} ids, as many as the model has",
            repair="Pass the vocabulary that the model was trained with.",
        )


def check_ids(ids: Sequence[int], size: int) -> None:
    """Refuse an id that the vocabulary does not have."""
    for position, token in enumerate(ids):
        if not 0 <= token < size:
            raise RegardError(
                "ids",
                got=f"{token} at position {position}",
                needed=f"ids from 0 to {size - 1}",
                repair="Decode with the vocabulary of the side that the ids were written in.",
            )
