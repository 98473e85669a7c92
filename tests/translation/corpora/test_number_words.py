"""Number words put together from parts are those of num2words, and every digit is said."""

from random import Random

import pytest
from num2words import num2words

from regard.translation.corpora.number_words import english_parts, french_parts, german_parts

AWKWARD = [0, 1, 7, 11, 16, 17, 21, 70, 71, 76, 77, 80, 81, 91, 99, 100, 101, 180, 200, 201, 271, 280, 281, 300, 999]
NUMBERS = sorted(
    {1000 * thousands + rest for thousands in AWKWARD for rest in AWKWARD}
    | {*range(100)}
    | {Random(0).randrange(10**6) for _ in range(500)}
)


def text(parts):
    return "".join(part.letters for part in parts)


@pytest.mark.parametrize(("parts", "language"), [(english_parts, "en"), (german_parts, "de"), (french_parts, "fr")])
def test_as_num2words_writes_them(parts, language):
    for number in NUMBERS:
        expected = num2words(number, lang=language)
        if language == "de":
            expected = expected.replace("hunderteinstausend", "hunderteintausend")  # a slip of num2words
        assert text(parts(number)) == expected


@pytest.mark.parametrize("parts", [english_parts, german_parts, french_parts])
def test_every_digit_is_said_and_nothing_else(parts):
    for number in NUMBERS:
        says = frozenset().union(*(part.says for part in parts(number)))
        digits = {place for place, digit in enumerate(reversed(str(number))) if digit != "0"} or {0}
        assert says == digits | ({"thousand"} if number >= 1000 else set())


def test_joints_say_nothing():
    said = [part.letters for part in german_parts(21_121) if not part.says]
    assert said == ["und", "und"]
    assert [part.letters for part in french_parts(21_171) if not part.says] == [" et ", " ", " ", " ", " et "]
    assert [part.letters for part in english_parts(21_121) if not part.says] == ["-", " ", ", ", " and ", "-"]
