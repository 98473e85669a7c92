"""Lists: every length as often, no list in two parts, and each number said by its word."""

from collections import Counter

import pytest
from tests.refuses import refuses
from tests.translation.corpora.truth import check, said

from regard.translation.corpora import lists
from regard.translation.corpora.numbers import below_hundred

SMALL = lists(train=1212, valid=60, test=240)


def test_every_length_as_often():
    assert Counter(example.label for example in SMALL.train) == {str(length): 101 for length in range(1, 13)}
    assert Counter(example.label for example in SMALL.valid) == {str(length): 5 for length in range(1, 13)}
    assert len(SMALL.test) == 240
    counts = Counter(example.label for example in lists(train=17, valid=1, test=1, longest=5).train)
    assert counts == {"1": 4, "2": 4, "3": 3, "4": 3, "5": 3}


def test_words_to_digits_in_order():
    for example in SMALL.train:
        check(example)
        numbers = example.target.split()
        assert example.source == " ".join(below_hundred(int(number)) for number in numbers)
        assert said(example) == [(number, [below_hundred(int(number))]) for number in numbers]
        assert example.label == str(len(numbers))


def test_no_list_of_two_or_more_is_in_two_parts():
    parts = [{e.source for e in part if e.label != "1"} for part in (SMALL.train, SMALL.valid, SMALL.test)]
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_every_word_is_in_the_training_data():
    assert {example.target for example in SMALL.train if example.label == "1"} == set(map(str, range(100)))


def test_a_small_range():
    corpus = lists(train=600, valid=60, test=60, largest=1, longest=6)
    assert {word for example in corpus.train for word in example.target.split()} == {"0", "1"}


def test_the_seed_decides():
    assert lists(train=1212, valid=60, test=240) == SMALL
    assert lists(train=1212, valid=60, test=240, seed=1).test != SMALL.test


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"longest": 0}, "longest", "a whole number of at least 1"),
        ({"largest": 100}, "largest", "a whole number of at least 1"),
        ({"largest": 0}, "largest", "0"),
        ({"valid": 0}, "valid", "at least one example"),
    ],
)
def test_what_is_refused(options, argument, word):
    with refuses(argument, word):
        lists(**options)
