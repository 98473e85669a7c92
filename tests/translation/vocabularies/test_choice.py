"""Units by name, and what they refuse."""

import pytest
from tests.refuses import refuses

from regard.translation.vocabularies import Characters, Subwords, Words, learn, load

TEXTS = ["a cat and a cab"] * 4


@pytest.mark.parametrize(("unit", "cls"), [("bpe", Subwords), ("characters", Characters), ("words", Words)])
def test_by_name(unit, cls):
    learnt = learn(unit, TEXTS, 14)
    assert type(learnt) is cls
    assert type(load(unit, learnt.to_bytes())) is cls
    assert len(learnt) <= 14


def test_options_reach_the_unit():
    assert learn("words", TEXTS, least=5).to_bytes() == Words(["a"]).to_bytes()
    with refuses("least", "2 for bpe"):
        learn("bpe", TEXTS, least=2)


@pytest.mark.parametrize("unit", ["bpe", "characters", "words"])
def test_room_for_more_than_the_symbols(unit):
    with refuses("size", "4", "more than 4"):
        learn(unit, TEXTS, 4)


def test_a_unit_that_is_not_there():
    with refuses("unit", "'bytes'", "'bpe'", "'characters'"):
        learn("bytes", TEXTS)
    with refuses("unit", "'bytes'"):
        load("bytes", b"")
