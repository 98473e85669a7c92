"""Batches: every pair once, limits kept, the same for the same seed, and rows that add nothing."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.training.batches import Plan, make_batch, plan
from regard.translation.training.loss import smoothed_cross_entropy
from regard.translation.vocabulary import BEGIN, END, PAD

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(LENGTHS, st.integers(1, 200), st.sampled_from([1, 4, 8]))
def test_every_pair_comes_once_and_limits_are_kept(lengths, batch_tokens, ladder):
    plans = plan(lengths, batch_tokens, generator(), ladder)
    assert sorted(row for one in plans for row in one.rows) == list(range(len(lengths)))
    for one in plans:
        assert 1 <= len(one.rows) <= one.batch
        assert all(lengths[row][0] <= one.source and lengths[row][1] <= one.target for row in one.rows)
        assert one.batch == 1 or one.batch * max(one.source, one.target) <= batch_tokens
        assert one.tokens == sum(lengths[row][1] for row in one.rows)
        if ladder > 1:
            assert one.source == one.target
            assert one.source % ladder == 0
            assert one.batch == max(1, batch_tokens // one.source)  # one shape a rung: one graph
        else:
            assert one.batch == len(one.rows)
            assert one.source == max(lengths[row][0] for row in one.rows)


@pytest.mark.parametrize("ladder", [1, 4])
def test_the_seed_decides_everything(ladder):
    draw = random.Random(3)
    lengths = [(draw.randint(1, 9), draw.randint(1, 9)) for _ in range(200)]
    first, again, other = (plan(lengths, 60, generator(seed), ladder) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_pairs_of_a_batch_are_of_about_equal_length():
    draw = random.Random(3)
    lengths = [(length, length) for length in (draw.randint(1, 40) for _ in range(2000))]
    plans = plan(lengths, 400, generator(), 1)
    padded = sum(one.batch * one.target for one in plans)
    assert padded < 1.1 * sum(one.tokens for one in plans)


def test_a_batch_is_filled_as_it_is_said():
    planned = Plan(rows=(1, 0), batch=3, source=4, target=3, tokens=5)
    batch = make_batch(planned, [[7], [8, 9]], [[5, 6], [4]])
    assert batch.source.tolist() == [[8, 9, END, PAD], [7, END, PAD, PAD], [END, PAD, PAD, PAD]]
    assert batch.lengths.tolist() == [3, 2, 1]
    assert batch.previous.tolist() == [[BEGIN, 4, PAD], [BEGIN, 5, 6], [PAD, PAD, PAD]]
    assert batch.target.tolist() == [[4, END, PAD], [5, 6, END], [PAD, PAD, PAD]]
    assert batch.tokens == 5
    assert make_batch(planned, [[7], [8, 9]], [[5, 6], [4]]).tokens == 5


def test_empty_rows_add_nothing_to_loss_and_gradient():
    torch.manual_seed(0)
    dropped = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}
    model = EncoderDecoder(Architecture(embedding=3, hidden=4, **dropped), 10, 10).double()
    sources, targets, results = [[7], [8, 9]], [[5, 6], [4]], []
    for planned in (Plan((0, 1), 2, 3, 3, 5), Plan((0, 1), 5, 4, 4, 5)):
        batch = make_batch(planned, sources, targets)
        loss = smoothed_cross_entropy(model(*batch[:3]), batch.target, 0.1)
        gradients = torch.autograd.grad(loss.objective, list(model.parameters()))
        results.append((loss.objective, *gradients))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
