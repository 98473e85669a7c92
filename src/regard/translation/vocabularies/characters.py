"""A vocabulary of single characters."""

from collections.abc import Sequence
from typing import ClassVar

from regard.translation.vocabularies.listed import Listed
from regard.translation.vocabularies.vocabulary import Unit


class Characters(Listed):
    """Every character is a token, the blank too.

    >>> letters = Characters.learn(["a cab"])
    >>> letters.pieces(letters.encode("a bad")), letters.decode(letters.encode("a bad"))
    (['a', '▁', 'b', 'a', '⁇'], 'a ba⁇')
    """

    unit: ClassVar[Unit] = "characters"
    _between: ClassVar[str] = ""

    @staticmethod
    def _cut(text: str) -> Sequence[str]:
        return text

    @staticmethod
    def _is_token(token: str) -> bool:
        return len(token) == 1 and (token == " " or not token.isspace())
