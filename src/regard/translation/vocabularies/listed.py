"""A vocabulary that is a list of tokens: what characters and words have in common."""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from regard.errors import RegardError
from regard.translation.symbols import COUNT, UNKNOWN
from regard.translation.text import normalise
from regard.translation.vocabularies.surfaces import BLANK, SPOKEN, SYMBOLS, text_of, words_of
from regard.translation.vocabularies.vocabulary import Unit, check_ids, check_stored_size

_HALF = re.compile("[\ud800-\udfff]")  # JSON can spell half of a character; text cannot


class Listed(ABC):
    """Tokens in order; token number i has the id i + 4.

    tokens: distinct, as `normalise` leaves them.
    """

    unit: ClassVar[Unit]

    def __init__(self, tokens: Sequence[str]) -> None:
        self._check(tokens)
        self.tokens = tuple(tokens)
        self._ids = {token: number for number, token in enumerate(self.tokens, start=COUNT)}

    @classmethod
    def learn(cls, texts: Iterable[str], *, size: int | None = None, least: int = 1) -> Self:
        """The tokens of the texts, the most frequent first, equally frequent ones in alphabetical order.

        size: how many ids to keep, the four symbols included. least: how often a token must occur to be kept.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(cls._cut(normalise(text)))
        kept = sorted((token for token in counts if counts[token] >= least), key=lambda token: (-counts[token], token))
        if not kept:
            raise RegardError(
                "texts",
                got=f"no {cls.unit} that occur {least} times or more",
                needed="sentences to learn a vocabulary from",
                repair="Check the training data." if least == 1 else "Lower `least` or check the training data.",
            )
        return cls(kept if size is None else kept[: size - COUNT])

    @classmethod
    def from_bytes(cls, data: bytes, size: int | None = None) -> Self:
        """Read what `to_bytes` wrote; refuse anything else, and another number of ids than `size`."""
        try:
            stored = json.loads(data.decode())
        except (ValueError, RecursionError):
            raise _refusal("data that are not JSON", cls.unit) from None
        if not isinstance(stored, dict) or stored.keys() != {"unit", "tokens"} or stored["unit"] != cls.unit:
            raise _refusal("JSON of something else", cls.unit)
        tokens = stored["tokens"]
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise _refusal("tokens that are not a list of strings", cls.unit)
        check_stored_size(COUNT + len(tokens), size)
        return cls(tokens)

    def to_bytes(self) -> bytes:
        """JSON: the unit and the tokens in order."""
        return json.dumps({"unit": self.unit, "tokens": self.tokens}, ensure_ascii=False, indent=0).encode()

    def __len__(self) -> int:
        return COUNT + len(self.tokens)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} ids)"

    def encode(self, text: str) -> list[int]:
        """See `Vocabulary.encode`."""
        find = self._ids.get
        return [find(token, UNKNOWN) for token in self._cut(normalise(text))]

    def encode_all(self, texts: Iterable[str], *, dropout: float = 0.0, seed: int = 0) -> list[list[int]]:
        """See `Vocabulary.encode_all`; nothing here is random, so any dropout is refused."""
        if dropout != 0:
            raise RegardError(
                "dropout",
                got=f"{dropout} for {self.unit}",
                needed="0: only subwords have merges to leave out",
                repair='Learn a vocabulary of unit "bpe", or leave BPE-dropout out.',
            )
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Vocabulary.decode`."""
        return text_of(self._surfaces(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `Vocabulary.pieces`."""
        check_ids(ids, len(self))
        return [SYMBOLS[token] if token < COUNT else self.tokens[token - COUNT].replace(" ", BLANK) for token in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        """See `Vocabulary.words`."""
        return words_of(self._surfaces(ids))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """See `Vocabulary.spans`."""
        spans, start = [], 0
        for token in self._cut(normalise(text)):
            spans.append((start, start + len(token)))
            start += len(token) + len(self._between)
        return spans

    def _surfaces(self, ids: Sequence[int]) -> list[str | None]:
        check_ids(ids, len(self))
        return [self._surface(token) for token in ids]

    def _surface(self, token: int) -> str | None:
        said = SPOKEN[token] if token < COUNT else self.tokens[token - COUNT]
        return said if said is None else self._between + said

    _between: ClassVar[str]  # what stands between two tokens in a text

    @staticmethod
    @abstractmethod
    def _cut(text: str) -> Sequence[str]:
        """The tokens of a normalised text."""

    @staticmethod
    @abstractmethod
    def _is_token(token: str) -> bool:
        """Whether `_cut` could have made it."""

    @classmethod
    def _check(cls, tokens: Sequence[str]) -> None:
        wrong = next((token for token in tokens if not cls._is_token(token) or _HALF.search(token)), None)
        if wrong is not None:
            raise _refusal(f"the token {wrong!r}", cls.unit)
        if len(set(tokens)) != len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise _refusal(f"the token {twice!r} twice", cls.unit)


def _refusal(got: str, unit: str) -> RegardError:
    return RegardError(
        "vocabulary",
        got=got,
        needed=f"a vocabulary of {unit}: distinct tokens, each one of the {unit}",
        repair="Check the file, or learn the vocabulary again.",
    )
