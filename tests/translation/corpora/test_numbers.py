"""Number words agree with num2words, know their digits, and make a corpus whose parts share no number."""

from random import Random

import pytest
from num2words import num2words
from tests.refuses import refuses
from tests.translation.corpora.truth import check, said

from regard.translation.corpora import numbers
from regard.translation.corpora.numbers import _example, below_hundred, english_parts, french_parts, german_parts


def test_all_of_them():
    assert [below_hundred(number) for number in range(100)] == [num2words(number) for number in range(100)]


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
        says = frozenset().union(*(part.digits for part in parts(number)))
        digits = {place for place, digit in enumerate(reversed(str(number))) if digit != "0"} or {0}
        assert says == digits | ({"thousand"} if number >= 1000 else set())


def test_joints_say_nothing():
    said = [part.letters for part in german_parts(21_121) if not part.digits]
    assert said == ["und", "und"]
    assert [part.letters for part in french_parts(21_171) if not part.digits] == [" et ", " ", " ", " ", " et "]
    assert [part.letters for part in english_parts(21_121) if not part.digits] == ["-", " ", ", ", " and ", "-"]


SIZES = {"train": 600, "valid": 50, "test": 80}


@pytest.fixture(params=("de", "fr"), scope="module")
def corpus(request):
    return numbers(language=request.param, **SIZES)


def test_parts_share_no_number(corpus):
    parts = [{example.target for example in part} for part in (corpus.train, corpus.valid, corpus.test)]
    assert [len(part) for part in parts[1:]] == [50, 80]
    assert len(corpus.train) == 600
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_small_numbers_are_for_training(corpus):
    targets = {example.target for example in corpus.train}
    assert targets >= {num2words(number) for number in range(100)}
    assert {example.label for example in corpus.test} == {"3", "4", "5", "6"}


def test_every_word_of_the_test_is_in_the_training_data():
    corpus = numbers(train=3000, valid=50, test=300)
    words = {word for example in corpus.train for word in example.target.split()}
    assert words >= {word for example in corpus.test for word in example.target.split()}


def test_spans_hold_together(corpus):
    for example in corpus.train:
        check(example)


@pytest.mark.parametrize(
    ("number", "language", "spans"),
    [
        (0, "de", [("zero", ["null"])]),
        (
            21_035,
            "de",
            [
                ("twenty", ["zwanzig"]),
                ("one", ["ein"]),
                ("thousand", ["tausend"]),
                ("thirty", ["dreißig"]),
                ("five", ["fünf"]),
            ],
        ),
        (712, "de", [("seven hundred", ["siebenhundert"]), ("twelve", ["zwölf"])]),
        (
            1_071,
            "fr",
            [("one", ["mille"]), ("thousand", ["mille"]), ("seventy", ["soixante", "onze"]), ("one", ["onze"])],
        ),
        (80_200, "fr", [("eighty", ["quatre-vingt"]), ("thousand", ["mille"]), ("two hundred", ["deux cents"])]),
        (116, "fr", [("one hundred", ["cent"]), ("sixteen", ["seize"])]),
    ],
)
def test_what_says_what(number, language, spans):
    assert said(_example(number, language)) == spans


def test_the_seed_decides():
    first = numbers(language="fr", **SIZES)
    assert numbers(language="fr", **SIZES) == first
    assert numbers(language="fr", seed=1, **SIZES).test != first.test


def test_what_is_refused():
    with refuses("language", "'en'", "'de'", "'fr'"):
        numbers(language="en")
    with refuses("valid, test", "10000"):
        numbers(test=10_000)
