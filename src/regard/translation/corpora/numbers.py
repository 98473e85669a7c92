"""The corpus `numbers`: German or French number words to English."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate, pairwise
from random import Random
from typing import Literal, NamedTuple

from regard.errors import RegardError
from regard.extras import require
from regard.translation.dataset import Corpus, Pair, Span, check_sizes

TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", *TEENS)
TENS = {2: "twenty", 3: "thirty", 4: "forty", 5: "fifty", 6: "sixty", 7: "seventy", 8: "eighty", 9: "ninety"}


def below_hundred(number: int) -> str:
    """Return the number in words.

    >>> below_hundred(7), below_hundred(42)
    ('seven', 'forty-two')
    """
    if number < len(SMALL):
        return SMALL[number]
    ten, unit = divmod(number, 10)
    return TENS[ten] + (f"-{SMALL[unit]}" if unit else "")


Language = Literal["de", "fr"]
THOUSAND = 1000


class Part(NamedTuple):
    """A part of a number word, and the places of the digits it says; connectives like "und" say none.

    The places of 123,456 are called 5 to 0 from the left; "thousand" is a thing of its own, and called "thousand".
    """

    letters: str
    digits: frozenset[int | str] = frozenset()


def english_parts(number: int) -> list[Part]:
    """Return the parts of the number in English.

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
    """Return the parts of the number in German, units before tens.

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
    """Return the parts of the number in French; 71 is sixty and eleven, 100 and 1,000 are written without "one".

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


def _cached(group: Callable[..., Iterator[Part]]) -> Callable[..., tuple[Part, ...]]:
    """Cache the parts of each group of three digits."""
    return cache(lambda *arguments, **options: tuple(group(*arguments, **options)))


PARTS: dict[Language, Callable[[int], list[Part]]] = {"de": german_parts, "fr": french_parts}


@_cached
def _english_group(number: int, place: int) -> Iterator[Part]:
    hundreds, rest = divmod(number, 100)
    if hundreds:
        yield _part(f"{below_hundred(hundreds)} hundred", place + 2)
        if rest:
            yield Part(" and ")
    if rest or not hundreds:
        if rest < 20 or rest % 10 == 0:
            yield _whole(below_hundred(rest), rest, place)
        else:
            yield _part(below_hundred(rest - rest % 10), place + 1)
            yield Part("-")
            yield _part(below_hundred(rest % 10), place)


@_cached
def _german_group(number: int, place: int, *, last: bool) -> Iterator[Part]:
    """Yield the parts of three digits; 1 is "eins" at the end of the number (`last`), otherwise "ein".

    (num2words itself forgets the second half of the rule in 301,000.)
    """
    hundreds, rest = divmod(number, 100)
    if hundreds:
        yield _part(_german_unit(hundreds) + "hundert", place + 2)
    if rest or not hundreds:
        if rest < 20 or rest % 10 == 0:
            yield _whole(_german_unit(1) if rest == 1 and not last else _number_word(rest, "de"), rest, place)
        else:
            yield _part(_german_unit(rest % 10), place)
            yield Part("und")
            yield _part(_number_word(rest - rest % 10, "de"), place + 1)


def _german_unit(number: int) -> str:
    """Return a digit as it is written before more of the same word."""
    return "ein" if number == 1 else _number_word(number, "de")


@_cached
def _french_group(number: int, place: int, *, last: bool) -> Iterator[Part]:
    """Yield the parts of three digits; "cents" and "quatre-vingts" keep their s at the end of the number (`last`)."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        counted = "" if hundreds == 1 else _number_word(hundreds, "fr") + " "
        yield _part(counted + ("cents" if last and hundreds > 1 and not rest else "cent"), place + 2)
        if rest:
            yield Part(" ")
    if not rest and hundreds:
        return
    ten, unit = divmod(rest, 10)
    if rest == 80 and not last:
        yield _part("quatre-vingt", place + 1)
    elif rest < 20 or unit == 0:
        yield _whole(_number_word(rest, "fr"), rest, place)
    elif ten in (7, 9):  # sixty and eleven, four twenties and eleven: the second word says both digits
        yield from _french_pair(rest, place, base=rest - unit - 10, second=frozenset((place + 1, place)))
    else:
        yield from _french_pair(rest, place, base=rest - unit, second=frozenset((place,)))


def _french_pair(number: int, place: int, *, base: int, second: frozenset[int | str]) -> Iterator[Part]:
    """Yield a multiple of ten or twenty, the connective, and what is added: "vingt et un", "vingt-deux"."""
    first = _number_word(base, "fr").removesuffix("s") if base == 80 else _number_word(base, "fr")
    added = _number_word(number - base, "fr")
    whole = _number_word(number, "fr")
    yield _part(first, place + 1)
    yield Part(whole[len(first) : len(whole) - len(added)])
    yield Part(added, second)


def _whole(letters: str, number: int, place: int) -> Part:
    """Return a number below 100 that is one word: "twelve" says two digits, "twenty" the tens, "two" the unit."""
    if number < 10:
        return _part(letters, place)
    return _part(letters, place + 1) if number % 10 == 0 else _part(letters, place + 1, place)


def _part(letters: str, *says: int | str) -> Part:
    return Part(letters, frozenset(says))


@cache
def _number_word(number: int, language: Language) -> str:
    return require("num2words", "translation", "corpus numbers").num2words(number, lang=language)


ALWAYS = 100  # numbers below it are in the training data: some of their words are nowhere else
MAX_HELD_OUT = 10_000
DIGITS = {3: 1, 4: 3, 5: 4, 6: 4}  # how often a number has so many; there are only 900 of three to be held out


def numbers(
    *,
    seed: int = 0,
    train: int = 30_000,
    valid: int = 1_000,
    test: int = 2_000,
    language: Language = "de",
) -> Corpus:
    """Make numbers from 0 to 999,999, long ones more often.

    "einundzwanzigtausend" becomes "twenty-one thousand"; the units are characters of the source and words of the
    target, and the label is the number of digits. A number belongs to one part; those below 100 belong to train.
    """
    check_sizes(train, valid, test, max_held_out=MAX_HELD_OUT)
    if language not in PARTS:
        raise RegardError(
            "language",
            got=repr(language),
            needed=" or ".join(map(repr, PARTS)),
            repair="English is what they are translated to.",
        )
    random = Random(f"numbers {seed}")
    held_out: set[int] = set()
    tests = _held_out(random, test, held_out)
    valids = _held_out(random, valid, held_out)
    trains = [*range(ALWAYS)][:train]
    while len(trains) < train:
        number = _draw(random)
        if number not in held_out:
            trains.append(number)
    random.shuffle(trains)
    parts = (tuple(_example(number, language) for number in part) for part in (trains, valids, tests))
    return Corpus("numbers", *parts)


def _held_out(random: Random, count: int, held_out: set[int]) -> list[int]:
    """Return `count` numbers that were not held out before, and add them to `held_out`."""
    chosen = []
    while len(chosen) < count:
        number = _draw(random)
        if number not in held_out:
            held_out.add(number)
            chosen.append(number)
    return chosen


def _draw(random: Random) -> int:
    (digits,) = random.choices([*DIGITS], [*DIGITS.values()])
    return random.randrange(10 ** (digits - 1), 10**digits)


def _example(number: int, language: Language) -> Pair:
    source, target = PARTS[language](number), english_parts(number)
    places = [(part, place) for part, place in zip(source, _places(source), strict=True) if part.digits]
    spans = tuple(
        Span(place, tuple(stretch for other, stretch in places if other.digits & part.digits))
        for part, place in zip(target, _places(target), strict=True)
        if part.digits
    )
    return Pair(_text(source), _text(target), spans, label=str(len(str(number))))


def _places(parts: list[Part]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate((len(part.letters) for part in parts), initial=0)))


def _text(parts: list[Part]) -> str:
    return "".join(part.letters for part in parts)
