"""Attention on the right characters: over all tokens of all examples, those of no counterpart left out."""

import pytest
import torch

from regard.translation.corpora import Example, Span
from regard.translation.evaluation.attention import attention_on_spans
from regard.translation.sentence import Sentence
from regard.translation.translated import Translation
from regard.translation.vocabulary import learn

WORDS = learn("words", ["one two 1 2 and"])


def sentence(text):
    return Sentence(text, tuple(WORDS.encode(text)), WORDS)


def given(example, weights):
    return Translation(sentence(example.source), sentence(example.target), 0.0, 0.0, weights=weights)


TWO = Example("one two", "1 2", (Span((0, 1), ((0, 3),)), Span((2, 3), ((4, 7),))), "2")
ONE = Example("two", "2 and", (Span((0, 1), ((0, 3),)),), "1")


def test_the_mass_is_the_mean_over_tokens_that_have_a_counterpart():
    first = given(TWO, torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]]))
    second = given(ONE, torch.tensor([[0.1, 0.9], [1.0, 0.0], [0.0, 1.0]]))
    assert attention_on_spans([first, second], [TWO, ONE]) == pytest.approx((0.9 + 0.5 + 0.1) / 3)


def test_without_attention_there_is_no_share():
    assert attention_on_spans([given(TWO, None)], [TWO]) is None
