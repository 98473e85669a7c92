"""`ensemble`: the mean of probabilities and of weights, under every search."""

from itertools import chain
from math import log

import pytest
import torch
from tests.refuses import refuses
from tests.translation.search.toys import Table, Toy, random_sources, random_table

from regard.translation.search import States, Stepped, beam, ensemble, forced


def test_one_model_is_itself_and_twins_too():
    table = random_table(3, 4, 6)
    alone = beam(table, table.state(), 3, longest=4, nbest=3)
    for copies in (1, 2):
        states = States((table.state(),) * copies)
        together = beam(ensemble([table] * copies), states, 3, longest=4, nbest=3)
        for one, other in zip(chain(*alone), chain(*together), strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, abs=1e-5)
            torch.testing.assert_close(one.alignment, other.alignment)


def test_probabilities_and_weights_are_means():
    first, second = random_table(2, 1, 6), random_table(2, 1, 6, seed=1)

    def skewed(tokens, state):
        stepped = second(tokens, state)
        return Stepped(stepped.log_probabilities, stepped.weights.flip(-1), stepped.state)

    begin = torch.full((2, 1), 2)
    both = ensemble([first, skewed])(begin, States((first.state(), second.state())))
    mean = (first.log_probabilities[:, 0].exp() + second.log_probabilities[:, 0].exp()) / 2
    torch.testing.assert_close(both.log_probabilities.exp(), mean)
    one = first(begin, first.state()).weights
    torch.testing.assert_close(both.weights, (one + one.flip(-1)) / 2)


def test_alignments_survive_the_beam():
    toys, sources = [Toy(seed=0), Toy(seed=1)], random_sources(12)
    reads = [toy.read(sources) for toy in toys]
    states, lengths = States(tuple(state for state, _ in reads)), reads[0][1]
    step = ensemble(toys)
    found = beam(step, states, 12, longest=8, source_lengths=lengths)
    for row, (one,) in enumerate(found):
        state = States(tuple(state.keep(torch.tensor([row])) for state in states.each))
        with torch.no_grad():
            read = forced(step, state, torch.tensor([one.tokens]).long(), torch.tensor([len(one.tokens)]))
        torch.testing.assert_close(one.alignment, read.alignment(0, int(lengths[row]))[: one.length], rtol=0, atol=1e-5)


def test_models_without_attention_do_not_thin_the_weights():
    table = random_table(1, 1, 5)

    def blind(tokens, state):
        stepped = table(tokens, state)
        return Stepped(stepped.log_probabilities, None, stepped.state)

    begin, states = torch.full((1, 1), 2), States((table.state(), table.state()))
    torch.testing.assert_close(ensemble([blind, table])(begin, states).weights, table(begin, table.state()).weights)
    assert ensemble([blind, blind])(begin, states).weights is None


def test_a_word_that_both_exclude_stays_excluded():
    table = Table(torch.tensor([0.0, -torch.inf]).view(1, 1, 1, 2))
    both = ensemble([table, table])(torch.full((1, 1), 2), States((table.state(), table.state())))
    assert both.log_probabilities.flatten().tolist() == pytest.approx([log(1), -torch.inf])


def test_models_that_do_not_fit_are_refused():
    table, wide = random_table(1, 1, 5), Table(random_table(1, 1, 5).log_probabilities, source=4)
    more = random_table(1, 1, 6)
    begin, states = torch.full((1, 1), 2), States((table.state(), table.state()))
    with refuses("weights", "over 3", "and 4"):
        ensemble([table, wide])(begin, states)
    with refuses("steps", "(1, 1, 5)", "(1, 1, 6)", "model 1"):
        ensemble([table, more])(begin, states)
    with refuses("state", "of 2"):
        ensemble([table, table])(begin, table.state())
    with refuses("steps", "function", "step"):
        ensemble([])
