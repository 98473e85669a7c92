"""A vocabulary by the name of its unit: learnt from sentences, or read from bytes."""

from collections.abc import Iterable
from typing import get_args

from regard.errors import RegardError
from regard.translation.symbols import COUNT
from regard.translation.vocabularies.characters import Characters
from regard.translation.vocabularies.subwords import Subwords
from regard.translation.vocabularies.vocabulary import Unit, Vocabulary, VocabularySizeError
from regard.translation.vocabularies.words import Words

UNITS: tuple[str, ...] = get_args(Unit)


def learn(unit: str, texts: Iterable[str], size: int | None = None, *, least: int = 1) -> Vocabulary:
    """Learn a vocabulary from the training data; a joint one is learnt from the sentences of both sides.

    Args:
        unit: "bpe", "characters" or "words".
        texts: sentences; they are normalised here.
        size: how many ids at most, the four symbols included; without it 6,000 for bpe, no limit for the others.
        least: how often a character or word must occur to get an id.

    >>> learn("words", ["one two", "two"])
    Words(6 ids)
    """
    _check_unit(unit)
    if size is not None and size <= COUNT:
        raise VocabularySizeError(
            "size",
            got=str(size),
            needed=f"more than {COUNT}, which the symbols take",
            repair="Some thousands are usual for bpe.",
        )
    if unit == "bpe":
        if least != 1:
            raise RegardError(
                "least",
                got=f"{least} for bpe",
                needed="1: subwords are limited by their number",
                repair="Pass `size` instead.",
            )
        return Subwords.learn(texts, size=size)
    return (Characters if unit == "characters" else Words).learn(texts, size=size, least=least)


def load(unit: str, data: bytes, size: int | None = None) -> Vocabulary:
    """Read what `to_bytes` of a vocabulary of this unit wrote; nothing is executed, and damage is refused.

    size: how many ids it must have; any number without it.
    """
    _check_unit(unit)
    if unit == "bpe":
        return Subwords.from_bytes(data, size)
    return (Characters if unit == "characters" else Words).from_bytes(data, size)


def _check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise RegardError(
            "unit",
            got=repr(unit),
            needed=" or ".join(map(repr, UNITS)),
            repair='"bpe" suits sentences of natural language.',
        )
