"""What is trained: a setting for every corpus, and runs that differ in nothing but their attention and seed."""

from dataclasses import replace

import pytest
from tests.refuses import refuses

from regard.translation.corpora import names
from regard.translation.lab.competitors import ADDITIVE, EVERY, NONE, Competitor
from regard.translation.lab.recipes import setting


@pytest.mark.parametrize("corpus", names())
def test_units_are_those_that_suit_the_corpus(corpus):
    made = replace(setting(corpus), train=100, valid=12, test=12)
    examples = made.examples()
    assert made.recipe.data.source_unit == examples.source_unit
    assert made.recipe.data.target_unit == examples.target_unit
    assert len(examples.test) == 12


def test_only_the_last_epoch_is_validated():
    training = setting("lists").recipe_of(ADDITIVE, seed=7).training
    assert training.validate_from == training.epochs
    assert training.seed == 7


def test_everyone_is_trained_once():
    made = setting("lists")
    assert made.competitors == EVERY
    assert made.by_size == (Competitor("none", hidden=32), NONE, Competitor("none", hidden=128))
    assert len(made.everyone) == len(set(made.everyone)) == len(EVERY) + 2


def test_the_quick_one_has_fewer_models_and_updates():
    full, quick = setting("lists"), setting("lists", quick=True)
    assert set(quick.everyone) < set(full.everyone)
    assert NONE in quick.competitors
    assert quick.recipe.training.epochs < full.recipe.training.epochs


def test_an_unknown_corpus_is_refused_by_name():
    with refuses("corpus", "'poems'"):
        setting("poems")
