"""Number words of three languages, put together from parts that know which digits they say."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, NamedTuple

from regard.translation.corpora import english
from regard.translation.extras import extra

Language = Literal["de", "fr"]
THOUSAND = 1000


class Part(NamedTuple):
    """Letters, and the places of the digits they say; joints like "und" say none.

    The places of 123,456 are called 5 to 0 from the left; "thousand" is a thing of its own, and called "thousand".
    """

    letters: str
    says: frozenset[int | str] = frozenset()


def english_parts(number: int) -> list[Part]:
    """The number in English.

    >>> "".join(part.letters for part in english_parts(21_105))
    'twenty-one thousand, one hundred and five'
    """
    thousands, rest = divmod(number, THOUSAND)
    parts: list[Part] = []
    if thousands:
        parts += [*_english_group(thousands, 3), Part(" "), _part("thousand", "thousand")]
        if rest:
            parts.append(Part(", " if rest >= 100 else " and "))
    if rest or not thousands:
        parts += _english_group(rest, 0)
    return parts


def german_parts(number: int) -> list[Part]:
    """The number in German, units before tens.

    >>> "".join(part.letters for part in german_parts(21_105))
    'einundzwanzigtausendeinhundertfünf'
    """
    thousands, rest = divmod(number, THOUSAND)
    parts: list[Part] = []
    if thousands:
        parts += [*_german_group(thousands, 3, last=False), _part("tausend", "thousand")]
    if rest or not thousands:
        parts += _german_group(rest, 0, last=True)
    return parts


def french_parts(number: int) -> list[Part]:
    """The number in French, where 71 is sixty and eleven, and neither a hundred nor a thousand is counted as one.

    >>> "".join(part.letters for part in french_parts(271_080))
    'deux cent soixante et onze mille quatre-vingts'
    """
    thousands, rest = divmod(number, THOUSAND)
    parts: list[Part] = []
    if thousands == 1:
        parts.append(_part("mille", "thousand", 3))
    elif thousands:
        parts += [*_french_group(thousands, 3, last=False), Part(" "), _part("mille", "thousand")]
    if rest and thousands:
        parts.append(Part(" "))
    if rest or not thousands:
        parts += _french_group(rest, 0, last=True)
    return parts


def _remembered(group: Callable[..., Iterator[Part]]) -> Callable[..., tuple[Part, ...]]:
    """Each group of three digits is put together once."""
    return cache(lambda *arguments, **options: tuple(group(*arguments, **options)))


PARTS: dict[Language, Callable[[int], list[Part]]] = {"de": german_parts, "fr": french_parts}


@_remembered
def _english_group(number: int, place: int) -> Iterator[Part]:
    hundreds, rest = divmod(number, 100)
    if hundreds:
        yield _part(f"{english.below_hundred(hundreds)} hundred", place + 2)
        if rest:
            yield Part(" and ")
    if rest or not hundreds:
        if rest < 20 or rest % 10 == 0:
            yield _whole(english.below_hundred(rest), rest, place)
        else:
            yield _part(english.below_hundred(rest - rest % 10), place + 1)
            yield Part("-")
            yield _part(english.below_hundred(rest % 10), place)


@_remembered
def _german_group(number: int, place: int, *, last: bool) -> Iterator[Part]:
    """last: whether the number ends with it; one is "eins" at the end and "ein" before more.

    (num2words itself forgets the second half of the rule in 301,000.)
    """
    hundreds, rest = divmod(number, 100)
    if hundreds:
        yield _part(_german_unit(hundreds) + "hundert", place + 2)
    if rest or not hundreds:
        if rest < 20 or rest % 10 == 0:
            yield _whole(_german_unit(1) if rest == 1 and not last else _said(rest, "de"), rest, place)
        else:
            yield _part(_german_unit(rest % 10), place)
            yield Part("und")
            yield _part(_said(rest - rest % 10, "de"), place + 1)


def _german_unit(number: int) -> str:
    """A digit before more of the same word."""
    return "ein" if number == 1 else _said(number, "de")


@_remembered
def _french_group(number: int, place: int, *, last: bool) -> Iterator[Part]:
    """last: whether the number ends with it; "cents" and "quatre-vingts" lose their s before more."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        counted = "" if hundreds == 1 else _said(hundreds, "fr") + " "
        yield _part(counted + ("cents" if last and hundreds > 1 and not rest else "cent"), place + 2)
        if rest:
            yield Part(" ")
    if not rest and hundreds:
        return
    ten, unit = divmod(rest, 10)
    if rest == 80 and not last:
        yield _part("quatre-vingt", place + 1)
    elif rest < 20 or unit == 0:
        yield _whole(_said(rest, "fr"), rest, place)
    elif ten in (7, 9):  # sixty and eleven, four twenties and eleven: the second word says both digits
        yield from _french_pair(rest, place, base=rest - unit - 10, second=frozenset((place + 1, place)))
    else:
        yield from _french_pair(rest, place, base=rest - unit, second=frozenset((place,)))


def _french_pair(number: int, place: int, *, base: int, second: frozenset[int | str]) -> Iterator[Part]:
    """A multiple of twenty or ten and what is added to it, with what joins them: "vingt et un", "vingt-deux"."""
    first = _said(base, "fr").removesuffix("s") if base == 80 else _said(base, "fr")
    added = _said(number - base, "fr")
    whole = _said(number, "fr")
    yield _part(first, place + 1)
    yield Part(whole[len(first) : len(whole) - len(added)])
    yield Part(added, second)


def _whole(letters: str, number: int, place: int) -> Part:
    """A number below a hundred in one word: both digits of twelve, the tens of twenty, the unit of two."""
    if number < 10:
        return _part(letters, place)
    return _part(letters, place + 1) if number % 10 == 0 else _part(letters, place + 1, place)


def _part(letters: str, *says: int | str) -> Part:
    return Part(letters, frozenset(says))


@cache
def _said(number: int, language: Language) -> str:
    return extra("num2words", "corpus numbers").num2words(number, lang=language)
