"""Lists of tokens: by frequency, as many as asked for, and read back only when they are what they should be."""

import json

import pytest
from tests.refuses import refuses

from regard.translation.symbols import UNKNOWN
from regard.translation.vocabularies import Characters, Words

TEXTS = ["b a a", "b a c", "d"]


def test_the_most_frequent_first_then_by_the_alphabet():
    assert Words.learn(TEXTS).tokens == ("a", "b", "c", "d")
    assert Words.learn(TEXTS, least=2).tokens == ("a", "b")
    assert Words.learn(TEXTS, size=5).tokens == ("a",)
    assert Characters.learn(TEXTS).tokens == (" ", "a", "b", "c", "d")
    assert Characters.learn(TEXTS, size=6).tokens == (" ", "a")


def test_what_was_not_kept_is_unknown():
    words = Words.learn(TEXTS, least=2)
    assert words.encode("a c b") == [4, UNKNOWN, 5]
    assert words.decode(words.encode("a c b")) == "a ⁇ b"


def test_texts_are_normalised_before_they_are_learnt():
    assert Words.learn(["it &apos;s\u00a0cafe\u0301"]).tokens == ("'s", "café", "it")


@pytest.mark.parametrize("cls", [Characters, Words])
def test_no_dropout(cls):
    vocabulary = cls.learn(TEXTS)
    with refuses("dropout", f"0.1 for {cls.unit}"):
        vocabulary.encode_all(TEXTS, dropout=0.1)


@pytest.mark.parametrize(("texts", "least"), [([], 1), ([" "], 1), (["a b"], 2)])
def test_nothing_to_learn_from(texts, least):
    with refuses("texts", f"no words that occur {least} times or more"):
        Words.learn(texts, least=least)


@pytest.mark.parametrize(
    ("stored", "argument", "word"),
    [
        ({"unit": "words", "tokens": ["a", "a"]}, "vocabulary", "the token 'a' twice"),
        ({"unit": "words", "tokens": ["a", "b c"]}, "vocabulary", "the token 'b c'"),
        ({"unit": "words", "tokens": [""]}, "vocabulary", "the token ''"),
        ({"unit": "words", "tokens": ["a", 1]}, "vocabulary", "tokens that are not a list of strings"),
        ({"unit": "words", "tokens": "abc"}, "vocabulary", "tokens that are not a list of strings"),
        ({"unit": "words"}, "vocabulary", "JSON of something else"),
        ({"unit": "words", "tokens": [], "more": 1}, "vocabulary", "JSON of something else"),
        ({"unit": ["words"], "tokens": []}, "vocabulary", "JSON of something else"),
        ({"unit": "characters", "tokens": ["a"]}, "vocabulary", "JSON of something else"),
        (["a"], "vocabulary", "JSON of something else"),
    ],
)
def test_stored_tokens_are_checked(stored, argument, word):
    with refuses(argument, word):
        Words.from_bytes(json.dumps(stored).encode())


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b'"\xff"', b"NaN,", b'{"unit": "words", "tokens": ["\\ud800"]}'])
def test_data_that_are_no_vocabulary(data):
    with refuses("vocabulary"):
        Words.from_bytes(data)


@pytest.mark.parametrize("token", ["ab", "", "\t", "\u00a0"])
def test_a_character_is_one_and_no_other_blank(token):
    with refuses("vocabulary", "characters", "vocabulary"):
        Characters([token])
