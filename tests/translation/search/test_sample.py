"""`sample`: frequencies are the model's probabilities, and what is cut off never comes."""

import pytest
import torch
from tests.refuses import refuses
from tests.translation.search.toys import random_table

from regard.translation.search import Effort, Stepped, greedy, sample
from regard.translation.search.sample import restrict
from regard.translation.vocabulary import BEGIN, END, PAD


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def first_words(table, count, **options):
    (found,) = sample(table, table.state(), 1, longest=1, generator=seeded(), count=count, **options)
    words = torch.tensor([one.tokens[0] if one.tokens else END for one in found])
    return words.bincount(minlength=table.vocabulary) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_are_probabilities(temperature):
    table = random_table(1, 1, 7)
    seen = first_words(table, 20_000, temperature=temperature, forbidden=(PAD, BEGIN))
    wanted = table.log_probabilities[0, 0, 0].clone()
    wanted[[PAD, BEGIN]] = -torch.inf
    wanted = (wanted / temperature).softmax(-1)
    deviation = (wanted * (1 - wanted) / 20_000).sqrt()
    assert ((seen - wanted).abs() <= 5 * deviation).all()


def test_whole_sentences_come_as_often_as_they_should():
    table = random_table(1, 2, 5, sharpness=0.5)
    (found,) = sample(table, table.state(), 1, longest=2, generator=seeded(), count=20_000, forbidden=())
    share = sum(one.tokens == (4, 1) for one in found) / 20_000
    first, second = table.log_probabilities[0, 0, 0, 4].exp(), table.log_probabilities[0, 1, 4, 1].exp()
    assert share == pytest.approx(float(first * second), abs=0.01)
    one = next(one for one in found if one.tokens == (4, 1))
    assert one.log_probability == pytest.approx(float((first * second).log()), abs=1e-6)
    assert one.score == one.log_probability


def test_the_best_word_alone_is_greedy():
    table = random_table(6, 4, 6)
    drawn = sample(table, table.state(), 6, longest=4, generator=seeded(), count=2, top_k=1)
    for each, one in zip(drawn, greedy(table, table.state(), 6, longest=4), strict=True):
        assert [other.tokens for other in each] == [one.tokens] * 2


def test_one_seed_one_answer_whatever_is_packed():
    table = random_table(12, 4, 6)

    def drawn(seed, effort):
        found = sample(table, table.state(), 12, longest=4, generator=seeded(seed), count=3, effort=effort)
        return [[one.tokens for one in each] for each in found]

    assert drawn(1, Effort()) == drawn(1, Effort(pack_at=2.0))
    assert drawn(1, Effort()) != drawn(2, Effort())


def test_a_sentence_does_not_end_before_its_shortest_length():
    table = random_table(5, 4, 6)
    found = sample(table, table.state(), 5, longest=4, shortest=3, generator=seeded(), count=20)
    assert min(one.length for each in found for one in each) == 3


def test_restrictions():
    probabilities = torch.tensor([0.1, 0.4, 0.4, 0.1])
    keep = lambda **wish: restrict(probabilities.log(), **({"top_k": None, "top_p": None} | wish)).isfinite().tolist()  # noqa: E731
    assert keep() == [True] * 4
    assert keep(top_k=1) == [False, True, False, False]
    assert keep(top_k=3) == [True, True, True, False]
    assert keep(top_p=0.39) == [False, True, False, False]
    assert keep(top_p=0.5) == [False, True, True, False]
    assert keep(top_p=1.0) == [True] * 4
    assert keep(top_k=3, top_p=0.5) == [False, True, True, False]


@pytest.mark.parametrize("temperature", [1e-39, 1e-46, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature):
    table = random_table(3, 4, 6)
    found = sample(table, table.state(), 3, longest=4, generator=seeded(), temperature=temperature)
    best = greedy(table, table.state(), 3, longest=4)
    assert [one.tokens for (one,) in found] == [one.tokens for one in best]


def certain(token):
    """A table that knows one word."""
    table = random_table(1, 3, 6)
    table.log_probabilities[:] = -torch.inf
    table.log_probabilities[..., token] = 0.0
    return table


def test_where_only_a_forbidden_word_is_possible_nothing_is_drawn():
    table = certain(5)
    with refuses("log_probabilities", "sentence 0"):
        sample(table, table.state(), 1, longest=3, generator=seeded(), forbidden=(PAD, BEGIN, 5))


def test_as_many_are_returned_as_were_asked_for_or_none():
    """One of two first words leads nowhere: some walks are lost."""

    def step(tokens, state):
        log_probabilities = torch.full((*tokens.shape, 6), -torch.inf)
        log_probabilities[tokens == BEGIN] = torch.tensor([0, 0, 0, 0, 0.5, 0.5]).log()
        log_probabilities[tokens == 4] = torch.tensor([0, 0, 0, 0, 1.0, 0]).log()
        log_probabilities[tokens == 5] = torch.tensor([1.0, 0, 0, 0, 0, 0]).log()
        return Stepped(log_probabilities, None, state)

    state = random_table(1, 2, 6).state()
    assert len(sample(step, state, 1, longest=1, generator=seeded(), count=10)[0]) == 10
    with refuses("log_probabilities", "sentence 0"):
        sample(step, state, 1, longest=3, generator=seeded(), count=10)


def test_nan_is_reported():
    table = random_table(1, 2, 5)
    table.log_probabilities[..., PAD] = float("nan")
    with refuses("log_probabilities", "sentence 0"):
        sample(table, table.state(), 1, longest=2, generator=seeded())


@pytest.mark.parametrize(
    ("options", "argument", "word"),
    [
        ({"count": 0}, "count", "1 or more"),
        ({"temperature": 0.0}, "temperature", "a number above 0"),
        ({"top_k": 0}, "top_k", "1 or more words"),
        ({"top_p": 0.0}, "top_p", "above 0, up to 1"),
        ({"top_p": 1.5}, "top_p", "1.5"),
        ({"top_p": "x"}, "top_p", "'x'"),
        ({"top_k": 2.5}, "top_k", "2.5"),
        ({"count": 2.5}, "count", "2.5"),
        ({"count": True}, "count", "True"),
        ({"temperature": "1"}, "temperature", "'1'"),
        ({"length_penalty": float("nan")}, "length_penalty", "nan"),
        ({"forbidden": 3}, "forbidden", "a sequence of tokens"),
        ({"forbidden": [-1]}, "forbidden", "tokens, from 0 on"),
        ({"forbidden": [1.5]}, "forbidden", "1.5"),
    ],
)
def test_bad_wishes_are_named(options, argument, word):
    table = random_table(1, 2, 5)
    with refuses(argument, word):
        sample(table, table.state(), 1, longest=2, generator=seeded(), **options)
