"""The text that each token stands for, blanks included, and which word it belongs to."""

from collections.abc import Sequence

from regard.translation.symbols import COUNT

BLANK = "▁"  # a blank in print, as sentencepiece writes it
UNKNOWN_SIGN = "⁇"
SYMBOLS = ("<pad>", UNKNOWN_SIGN, "<s>", "</s>")
# What the symbols say in a sentence; None is not a part of it.
SPOKEN: tuple[str | None, ...] = (None, UNKNOWN_SIGN, None, None)

assert len(SYMBOLS) == len(SPOKEN) == COUNT


def text_of(surfaces: Sequence[str | None]) -> str:
    """The sentence, with single blanks whatever the tokens say."""
    return " ".join("".join(filter(None, surfaces)).split())


def words_of(surfaces: Sequence[str | None]) -> list[int]:
    """For each token the number of its word in `text_of(surfaces).split()`; -1 for none.

    >>> words_of([" two", " ", "wo", "rds", None, " "])
    [0, 1, 1, 1, -1, -1]
    """
    numbers, word, between = [], -1, True
    for surface in surfaces:
        if surface is None:
            numbers.append(-1)
            continue
        between = between or surface[:1].isspace()
        if not surface.strip():  # nothing but the blank before a word
            numbers.append(word + 1)
            between = True
            continue
        word += between
        between = surface[-1].isspace()
        numbers.append(word)
    return [number if number <= word else -1 for number in numbers]
