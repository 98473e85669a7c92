"""What a training learns from: parts that are not empty, and vocabularies of the first part alone."""

import pytest
from tests.refuses import refuses
from tests.translation.training.toys import make_corpus, make_pairs, make_recipe

from regard.translation.pairs import Pair
from regard.translation.training.corpus import Corpus, learn_vocabularies
from regard.translation.vocabulary import UNKNOWN


def test_vocabularies_know_training_data_only():
    corpus = Corpus("toy", (Pair("one two", "1 2"),), (Pair("three", "3"),))
    source, target = learn_vocabularies(make_recipe(), corpus.train)
    assert UNKNOWN not in (*source.encode("two one"), *target.encode("2 1"))
    assert source.encode("three") == target.encode("3") == [UNKNOWN]


def test_a_joint_vocabulary_is_one_object_that_knows_both_sides():
    source, target = learn_vocabularies(make_recipe(joint=True), make_pairs(30))
    assert source is target
    assert UNKNOWN not in source.encode("one 1")


@pytest.mark.parametrize("joint", [False, True])
def test_a_vocabulary_too_small_for_the_characters_is_named_as_in_the_recipe(joint):
    recipe = make_recipe(source_unit="bpe", target_unit="bpe", vocabulary_size=8, joint=joint)
    with refuses("vocabulary_size", "symbols", "every", "least"):
        learn_vocabularies(recipe, make_pairs(30))


def test_another_refusal_of_a_vocabulary_stays_as_it_is():
    with refuses("texts", "nothing", "learnt"):
        learn_vocabularies(make_recipe(source_unit="bpe"), [Pair("▁", "1")])


@pytest.mark.parametrize("part", ["train", "valid"])
def test_an_empty_part_is_refused(part):
    parts = {"train": make_pairs(2), "valid": make_pairs(1)} | {part: ()}
    with refuses(part, "no pairs in toy"):
        Corpus("toy", **parts)


def test_the_fingerprint_is_that_of_training_and_validation():
    corpus = make_corpus()
    assert corpus.fingerprint() == make_corpus().fingerprint()
    assert corpus.fingerprint() != make_corpus(seed=5).fingerprint()
    assert corpus.fingerprint() != Corpus("toy", corpus.train[:-1], corpus.valid).fingerprint()
