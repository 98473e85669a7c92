"""A vocabulary of whole words."""

from collections.abc import Sequence
from typing import ClassVar

from regard.translation.vocabularies.listed import Listed
from regard.translation.vocabularies.vocabulary import Unit


class Words(Listed):
    """Whatever stands between blanks is a token.

    >>> words = Words.learn(["a cat", "a dog"])
    >>> words.encode("a dog"), words.decode(words.encode("a red dog"))
    ([4, 6], 'a ⁇ dog')
    """

    unit: ClassVar[Unit] = "words"
    _between: ClassVar[str] = " "

    @staticmethod
    def _cut(text: str) -> Sequence[str]:
        return text.split()

    @staticmethod
    def _is_token(token: str) -> bool:
        return token.split() == [token]
