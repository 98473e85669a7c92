"""Padding, batches of equal work, and the batches of each epoch."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses
from tests.translation.toy_trainings import make_pairs, make_recipe

from regard.translation.batching import BatchPlan, EpochBatches, batches_by_length, make_batch, pad, plan_batches
from regard.translation.dataset import Pair, learn_vocabularies, read_pairs
from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.training import smoothed_cross_entropy
from regard.translation.vocabulary import BEGIN, END, PAD


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6))
def test_every_row_is_found_again(rows):
    ids, lengths = pad(rows)
    assert ids.dtype == lengths.dtype == torch.int64
    assert ids.shape == (len(rows), max(map(len, rows), default=0))
    assert [row[:length].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)] == rows
    assert all(not row[length:].any() for row, length in zip(ids, lengths.tolist(), strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_arrive_on_a_gpu():
    ids, lengths = pad([[4, 3], [3]], "cuda")
    assert ids.device.type == lengths.device.type == "cuda"
    assert ids.tolist() == [[4, 3], [3, 0]]


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_batches_hold_every_sentence_once_and_the_longest_first(lengths, size):
    batches = batches_by_length(lengths, size)
    order = [row for batch in batches for row in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[row] for row in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == size for batch in batches[:-1])


LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(LENGTHS, st.integers(1, 200), st.sampled_from([1, 4, 8]))
def test_every_pair_comes_once_and_limits_are_kept(lengths, batch_tokens, pad_to_multiple):
    plans = plan_batches(lengths, batch_tokens, generator(), pad_to_multiple)
    assert sorted(row for one in plans for row in one.rows) == list(range(len(lengths)))
    for one in plans:
        assert 1 <= len(one.rows) <= one.batch
        assert all(lengths[row][0] <= one.source and lengths[row][1] <= one.target for row in one.rows)
        assert one.batch == 1 or one.batch * max(one.source, one.target) <= batch_tokens
        assert one.tokens == sum(lengths[row][1] for row in one.rows)
        if pad_to_multiple > 1:
            assert one.source == one.target
            assert one.source % pad_to_multiple == 0
            assert one.batch == max(1, batch_tokens // one.source)  # one shape for each length: one graph
        else:
            assert one.batch == len(one.rows)
            assert one.source == max(lengths[row][0] for row in one.rows)


@pytest.mark.parametrize("pad_to_multiple", [1, 4])
def test_the_seed_decides_everything(pad_to_multiple):
    draw = random.Random(3)
    lengths = [(draw.randint(1, 9), draw.randint(1, 9)) for _ in range(200)]
    first, again, other = (plan_batches(lengths, 60, generator(seed), pad_to_multiple) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_pairs_of_a_batch_are_of_about_equal_length():
    draw = random.Random(3)
    lengths = [(length, length) for length in (draw.randint(1, 40) for _ in range(2000))]
    plans = plan_batches(lengths, 400, generator(), 1)
    padded = sum(one.batch * one.target for one in plans)
    assert padded < 1.1 * sum(one.tokens for one in plans)


def test_a_batch_is_filled_as_it_is_said():
    planned = BatchPlan(rows=(1, 0), batch=3, source=4, target=3, tokens=5)
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
    for planned in (BatchPlan((0, 1), 2, 3, 3, 5), BatchPlan((0, 1), 5, 4, 4, 5)):
        batch = make_batch(planned, sources, targets)
        loss = smoothed_cross_entropy(model(*batch[:3]), batch.target, 0.1)
        gradients = torch.autograd.grad(loss.objective, list(model.parameters()))
        results.append((loss.objective, *gradients))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def tokens(recipe, pairs):
    return EpochBatches(pairs, *learn_vocabularies(recipe, pairs), recipe)


def test_an_epoch_is_the_same_whenever_it_is_asked_for():
    pairs = make_pairs(50)
    one, other = tokens(make_recipe(), pairs), tokens(make_recipe(), pairs)
    first, second = one.epoch(0), one.epoch(1)
    assert other.epoch(1).plans == second.plans
    assert other.epoch(0).plans == first.plans
    assert first.plans != second.plans
    assert tokens(make_recipe(seed=2), pairs).epoch(0).plans != first.plans


def test_subwords_are_cut_anew_in_each_epoch_and_alike_in_each_run():
    recipe = make_recipe(source_unit="bpe", target_unit="words", bpe_dropout=0.4, vocabulary_size=24)
    pairs = make_pairs(50)
    one, other = tokens(recipe, pairs), tokens(recipe, pairs)
    first, second = one.epoch(0), one.epoch(1)
    assert first.sources != second.sources
    assert first.targets == second.targets  # words have no merges
    assert other.epoch(1).sources == second.sources


def test_both_sides_of_a_pair_are_cut_independently():
    """The same text on both sides, in the same vocabulary: one seed for both would cut them alike."""
    recipe = make_recipe(source_unit="bpe", target_unit="bpe", bpe_dropout=0.4, vocabulary_size=24)
    pairs = [Pair(pair.source, pair.source) for pair in make_pairs(50)]
    source, target = learn_vocabularies(recipe, pairs)
    assert source.encode_all(["zero one"]) == target.encode_all(["zero one"])
    epoch = EpochBatches(pairs, source, target, recipe).epoch(0)
    assert epoch.sources != epoch.targets


def test_what_was_escaped_twice_is_still_escaped_once(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a &amp;lt;\tb &amp;amp;\n", encoding="utf-8")
    recipe, pairs = make_recipe(), [*read_pairs(tmp_path / "pairs.tsv")]
    source, target = learn_vocabularies(recipe, pairs)
    assert source.tokens == ("&lt;", "a")
    assert target.tokens == ("&amp;", "b")
    epoch = EpochBatches(pairs, source, target, recipe).epoch(0)
    assert [source.decode(ids) for ids in epoch.sources] == ["a &lt;"]
    assert [target.decode(ids) for ids in epoch.targets] == ["b &amp;"]


def test_long_pairs_are_left_out_and_counted():
    pairs = (*make_pairs(20, longest=3), Pair("one " * 30, "1"), Pair("one", "1 " * 30))
    cut = tokens(make_recipe(most_tokens=10), pairs)
    assert (cut.skipped, len(cut.pairs)) == (2, 20)
    assert sorted(row for planned in cut.epoch(0).plans for row in planned.rows) == list(range(20))


def test_a_limit_that_leaves_nothing_is_refused():
    with refuses("most_tokens", "longer", "every", "pair"):
        tokens(make_recipe(most_tokens=2), (Pair("one two three", "1 2 3"),))


@pytest.mark.parametrize("pad_to_multiple", [1, 4])
def test_every_epoch_has_as_many_batches_as_are_announced(pad_to_multiple):
    recipe, pairs = make_recipe(batch_tokens=30), make_pairs(200)
    batches = EpochBatches(pairs, *learn_vocabularies(recipe, pairs), recipe, pad_to_multiple)
    assert [len(batches.epoch(number).plans) for number in range(3)] == 3 * [batches.per_epoch]
