"""`forced`: the probabilities of given words, summed to their END and no further."""

import pytest
import torch
from tests.refuses import refuses
from tests.translation.search import procedure
from tests.translation.search.toys import Toy, random_sources, random_table

from regard.translation.search import Stepped, forced
from regard.translation.vocabulary import END, PAD


def test_reads_every_word_to_the_end():
    table = random_table(3, 4, 6)
    targets = torch.tensor([[4, 5, 1], [5, PAD, PAD], [PAD, PAD, PAD]])
    read = forced(table, table.state(), targets, torch.tensor([3, 1, 0]))
    assert read.lengths.tolist() == [4, 2, 1]
    for row, words in enumerate([(4, 5, 1, END), (5, END), (END,)]):
        wanted = [procedure.words_after(table, row, words[:place])[word] for place, word in enumerate(words)]
        assert read.log_probabilities[row].tolist() == pytest.approx(wanted + [0.0] * (4 - len(words)))
        assert read.totals[row] == pytest.approx(sum(wanted))
        assert read.scores(0.8)[row] == pytest.approx(sum(wanted) / procedure.divisor(len(words), 0.8))
        assert read.alignment(row).shape == (len(words), 3)
        assert read.alignment(row, 2).shape == (len(words), 2)
        assert (read.weights[row, len(words) :] == 0).all()


def test_what_stands_in_the_padding_is_not_heard():
    toy, sources = Toy(), random_sources(4)
    targets, lengths = torch.randint(4, 60, (4, 6)), torch.tensor([6, 2, 0, 4])
    with torch.no_grad():
        state, _ = toy.read(sources)
        once = forced(toy, state, targets, lengths)
        targets[torch.arange(6) >= lengths[:, None]] = PAD
        again = forced(toy, state, targets, lengths)
    assert torch.equal(once.log_probabilities, again.log_probabilities)


def test_gradients_flow():
    toy, sources = Toy(), random_sources(2)
    state, _ = toy.read(sources)
    forced(toy, state, torch.tensor([[4, 5], [6, 7]]), torch.tensor([2, 1])).totals.sum().backward()
    assert toy.words.weight.grad[4].abs().sum() > 0


def test_without_attention_and_without_sentences():
    table = random_table(2, 3, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return Stepped(stepped.log_probabilities, None, stepped.state)

    read = forced(blind, table.state(), torch.tensor([[4], [1]]), torch.tensor([1, 1]))
    assert read.weights is None
    assert read.alignment(0) is None
    none = forced(table, table.state(torch.arange(0)), torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0).long())
    assert none.totals.tolist() == []


def test_nan_is_reported_only_where_it_counts():
    table = random_table(2, 3, 5)
    table.log_probabilities[0, 2] = float("nan")
    targets = torch.tensor([[4, 4], [4, 4]])
    assert forced(table, table.state(), targets, torch.tensor([1, 2])).totals.isfinite().all()
    with refuses("log_probabilities", "sentence 0"):
        forced(table, table.state(), targets, torch.tensor([2, 2]))


@pytest.mark.parametrize(
    ("targets", "lengths", "argument", "word"),
    [
        (torch.zeros(2, 3), torch.tensor([1, 1]), "targets", "float32 (2, 3) on cpu"),
        (
            torch.zeros(2, 3).long(),
            torch.tensor([1]),
            "lengths",
            "int64 (1,) on cpu",
        ),
        (torch.zeros(2, 3).long(), torch.tensor([1, 4]), "lengths", "int64 (2,) on cpu up to 4"),
    ],
)
def test_bad_targets_are_named(targets, lengths, argument, word):
    table = random_table(2, 4, 5)
    with refuses(argument, word):
        forced(table, table.state(), targets, lengths)
