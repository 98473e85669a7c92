"""Training pairs as tokens, epoch by epoch."""

from tests.refuses import refuses
from tests.translation.training.toys import make_pairs, make_recipe

from regard.translation.dataset import Pair, learn_vocabularies, read_pairs
from regard.translation.training.tokens import TrainingTokens


def tokens(recipe, pairs):
    return TrainingTokens(pairs, *learn_vocabularies(recipe, pairs), recipe, 1)


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
    cut = tokens(recipe, [Pair(pair.source, pair.source) for pair in make_pairs(50)])
    assert cut.source_vocabulary.encode_all(["zero one"]) == cut.target_vocabulary.encode_all(["zero one"])
    epoch = cut.epoch(0)
    assert epoch.sources != epoch.targets


def test_what_was_escaped_twice_is_still_escaped_once(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a &amp;lt;\tb &amp;amp;\n", encoding="utf-8")
    cut = tokens(make_recipe(), [*read_pairs(tmp_path / "pairs.tsv")])
    assert cut.source_vocabulary.tokens == ("&lt;", "a")
    assert cut.target_vocabulary.tokens == ("&amp;", "b")
    epoch = cut.epoch(0)
    assert [cut.source_vocabulary.decode(ids) for ids in epoch.sources] == ["a &lt;"]
    assert [cut.target_vocabulary.decode(ids) for ids in epoch.targets] == ["b &amp;"]


def test_long_pairs_are_left_out_and_counted():
    pairs = (*make_pairs(20, longest=3), Pair("one " * 30, "1"), Pair("one", "1 " * 30))
    cut = tokens(make_recipe(most_tokens=10), pairs)
    assert (cut.left_out, len(cut.pairs)) == (2, 20)
    assert sorted(row for planned in cut.epoch(0).plans for row in planned.rows) == list(range(20))


def test_a_limit_that_leaves_nothing_is_refused():
    with refuses("most_tokens", "longer", "every", "pair"):
        tokens(make_recipe(most_tokens=2), (Pair("one two three", "1 2 3"),))
