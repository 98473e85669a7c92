"""A sentence and its tokens."""

from regard.translation.sentence import Sentence
from regard.translation.vocabulary import learn

WORDS = learn("words", ["one two"])
LETTERS = learn("characters", ["one two"])


def sentence(text, vocabulary):
    return Sentence(text, tuple(vocabulary.encode(text)), vocabulary)


def test_words_are_shown_as_written_even_where_they_are_unknown():
    met = sentence("one three", WORDS)
    assert met.words == ("one", "three")
    assert met.pieces == ("one", "⁇")
    assert met.word_of_each == (0, 1)


def test_letters_belong_to_their_words():
    met = sentence("on we", LETTERS)
    assert met.pieces == ("o", "n", "▁", "w", "e")
    assert met.word_of_each == (0, 0, 1, 1, 1)


def test_where_the_vocabulary_sees_other_words_they_are_its_own():
    subwords = learn("bpe", ["one two three"], 20)
    met = sentence("one▁two", subwords)  # sentencepiece reads this sign as a blank
    assert met.words == ("one", "two")
    assert set(met.word_of_each) == {0, 1}
