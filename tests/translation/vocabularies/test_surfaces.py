"""Words of tokens agree with the text of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.translation.vocabularies.surfaces import text_of, words_of


@pytest.mark.parametrize(
    ("surfaces", "words"),
    [
        ([" one", " two", "o"], [0, 1, 1]),
        (["o", "n", "e", " ", "t"], [0, 0, 0, 1, 1]),
        ([" ", "a", " ", " ", "b", " "], [0, 0, 1, 1, 1, -1]),
        ([None, " a", None, "b", None], [-1, 0, -1, 0, -1]),
        ([" "], [-1]),
        ([], []),
    ],
)
def test_by_hand(surfaces, words):
    assert words_of(surfaces) == words


@given(st.lists(st.sampled_from([None, " ", "a", "b", " a", " bc", "⁇"])))
def test_the_tokens_of_a_word_spell_it(surfaces):
    numbers = words_of(surfaces)
    assert len(numbers) == len(surfaces)
    spelt: dict[int, str] = {}
    for number, surface in zip(numbers, surfaces, strict=True):
        if number >= 0:
            spelt[number] = spelt.get(number, "") + (surface or "").strip()
    assert [spelt[number] for number in sorted(spelt)] == text_of(surfaces).split()
    assert all(surface is None or not surface.strip() for surface, n in zip(surfaces, numbers, strict=True) if n < 0)
