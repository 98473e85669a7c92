"""`greedy`: the most probable word that is allowed, at every step."""

import pytest
import torch
from tests.refuses import refuses
from tests.translation.search import procedure
from tests.translation.search.toys import Table, random_table

from regard.translation.search import Effort, greedy
from regard.translation.vocabulary import BEGIN, END, PAD


@pytest.mark.parametrize("shortest", [0, 3])
def test_follows_the_largest_word(shortest):
    table = random_table(20, 4, 6)
    found = greedy(table, table.state(), 20, longest=4, shortest=shortest)
    options = {"beams": 1, "nbest": 1, "strength": 1.0, "longest": 4, "shortest": shortest, "forbidden": (PAD, BEGIN)}
    for sentence, one in enumerate(found):
        (wanted,) = procedure.search(table, sentence, **options)
        assert (one.tokens, one.finished) == (wanted.tokens, wanted.finished)
        assert one.score == pytest.approx(wanted.score)
        assert one.log_probability == pytest.approx(wanted.total)
        assert one.length >= shortest


def test_equal_words_go_to_the_smaller_token():
    table = Table(torch.full((1, 2, 6, 6), -2.0))
    assert greedy(table, table.state(), 1, longest=2)[0].tokens == (1, 1)


def test_finished_sentences_are_packed_away():
    logits = torch.zeros(3, 3, 36, 6)
    logits[:2, 0, :, END] = 9.0
    logits[2, ..., 4] = 9.0
    table = Table(logits.log_softmax(-1))
    found = greedy(table, table.state(), 3, longest=3)
    assert table.asked == [(3, 1), (1, 1), (1, 1)]
    assert [one.tokens for one in found] == [(), (), (4, 4, 4)]
    never = Table(logits.log_softmax(-1))
    again = greedy(never, never.state(), 3, longest=3, effort=Effort(pack_at=2.0))
    assert never.asked == [(3, 1)] * 3
    assert [(one.tokens, one.score) for one in again] == [(one.tokens, one.score) for one in found]


def test_nan_is_reported():
    table = random_table(2, 3, 5)
    table.log_probabilities[1, 0, 0, 0] = float("nan")
    with refuses("log_probabilities", "function", "sentence", "within"):
        greedy(table, table.state(), 2, longest=3)


def test_nothing_to_write_is_refused():
    table = Table(torch.full((1, 2, 5, 5), -torch.inf))
    with refuses("log_probabilities", "sentence 0"):
        greedy(table, table.state(), 1, longest=2)
