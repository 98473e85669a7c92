"""A translation's alignment: words or tokens, without END."""

import torch

from regard.translation.sentence import Sentence
from regard.translation.translated import Translation
from regard.translation.vocabulary import learn

LETTERS = learn("characters", ["ab cd"])
WEIGHTS = torch.tensor(
    [
        [0.5, 0.3, 0.0, 0.1, 0.1],
        [0.1, 0.3, 0.2, 0.2, 0.2],
        [0.0, 0.0, 0.0, 0.0, 1.0],
    ]
)


def sentence(text):
    return Sentence(text, tuple(LETTERS.encode(text)), LETTERS)


def translation(target, weights, finished=True):
    return Translation(sentence("ab c"), sentence(target), -1.0, -2.0, finished, weights)


def test_words_add_up_their_tokens_and_the_end_is_unaligned():
    found = translation("cd", WEIGHTS).alignment
    assert found is not None
    assert (found.source_words, found.target_words) == (("ab", "c"), ("cd",))
    torch.testing.assert_close(found.weights, torch.tensor([[0.6, 0.25]]))
    torch.testing.assert_close(found.unaligned, torch.tensor([0.15]))


def test_an_unfinished_translation_has_no_row_for_the_end():
    whole, cut = translation("cd", WEIGHTS), translation("cd", WEIGHTS[:2], finished=False)
    assert (whole.length, cut.length) == (3, 2)
    assert whole.alignment is not None
    assert cut.alignment is not None
    torch.testing.assert_close(whole.alignment.weights, cut.alignment.weights)


def test_tokens_are_aligned_one_by_one():
    found = translation("cd", WEIGHTS).alignment_of_tokens
    assert found is not None
    assert (found.source_words, found.target_words) == (("a", "b", "▁", "c"), ("c", "d"))
    torch.testing.assert_close(found.weights, WEIGHTS[:2, :4])


def test_without_weights_there_is_nothing_to_tell():
    assert translation("cd", None).alignment is None
    assert translation("cd", None).alignment_of_tokens is None


def test_text_and_tokens_are_those_of_the_target():
    assert (translation("c d", None).text, translation("c d", None).tokens) == ("c d", ("c", "▁", "d"))
