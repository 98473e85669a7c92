"""Words as vectors: equal words alike, places orthogonal, a step a rotation."""

import math

import pytest
import torch
from tests.refuses import refuses

from regard.studio.limits import MOST_WORDS
from regard.studio.words import place_part, split, tokens, word_part


def test_equal_words_have_equal_vectors_and_others_do_not():
    made = tokens(["cat", "Cat", "dog"], 16, 0.4) @ word_part(16).mT
    assert torch.equal(made[0], made[1])
    assert not torch.allclose(made[0], made[2])


def test_without_spread_all_norms_are_the_root_of_the_dimension():
    made = tokens(["one", "two", "three", "four"], 12, 0.0)
    torch.testing.assert_close((made @ word_part(12).mT).norm(dim=-1), torch.full((4,), math.sqrt(12)).double())
    torch.testing.assert_close((made @ place_part(12).mT).norm(dim=-1), torch.full((4,), math.sqrt(12)).double())
    spread = (tokens(["one", "two", "three", "four"], 12, 0.5) @ word_part(12).mT).norm(dim=-1)
    assert spread.max() > 1.2 * spread.min()


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_as_many_places_as_dimensions_are_orthogonal(dim):
    place = tokens(["a"] * dim, dim, 0.0) @ place_part(dim).mT
    torch.testing.assert_close(place @ place.mT, dim * torch.eye(dim, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("steps", [-1, 1, 3])
def test_a_step_is_a_matrix(steps):
    made = tokens(["a"] * 8, 8, 0.0)
    moved, stayed = made @ place_part(8, steps).mT, made @ place_part(8).mT
    if steps > 0:
        torch.testing.assert_close(moved[:-steps], stayed[steps:])
    else:
        torch.testing.assert_close(moved[-steps:], stayed[:steps])


@pytest.mark.parametrize(
    ("text", "argument", "word"),
    [
        ("", "queries", "0 words"),
        ("a " * (MOST_WORDS + 1), "queries", "25 words"),
        ("a" * 31, "queries", "a word of 31 letters"),
    ],
)
def test_sentences_outside_the_limits(text, argument, word):
    with refuses(argument, word):
        split("queries", text)
