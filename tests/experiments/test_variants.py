"""Variants change the architecture in one way, and the settings are those of a corpus."""

from dataclasses import replace

import pytest
from tests.refuses import refuses

from regard.experiments.variants import ADDITIVE, EVERY, FEW, NONE, Competitor, setting, without_attention
from regard.translation.model import Architecture

COMMON = Architecture(embedding=8, hidden=16)


def test_names_and_folders_are_all_different():
    everyone = {*EVERY, *FEW, *(without_attention(hidden, 16) for hidden in (8, 16, 32))}
    assert len({str(one) for one in everyone}) == len({one.folder for one in everyone}) == len(everyone)
    assert Competitor("squared_distance", heads=2, hidden=8).folder == "squared-distance-2-heads-state-of-8"


def test_only_what_it_names_is_changed():
    assert Competitor("dot").changed(COMMON) == replace(COMMON, attention="dot")
    assert Competitor("additive", heads=4).changed(COMMON) == replace(COMMON, heads=4)
    assert Competitor("none", hidden=32).changed(COMMON) == replace(COMMON, attention="none", hidden=32)


def test_every_attention_competes_and_additive_with_one_head_and_with_four():
    assert {one.attention for one in EVERY} == {"none", "dot", "scaled_dot", "bilinear", "additive", "squared_distance"}
    assert {one.heads for one in EVERY if one.attention == "additive"} == {1, 4}


def test_the_common_size_without_attention_is_one_model():
    assert without_attention(16, 16) is NONE
    assert without_attention(8, 16) == Competitor("none", hidden=8)
    assert ADDITIVE in FEW


@pytest.mark.parametrize(
    ("corpus", "units"),
    [("dates", ("characters", "characters")), ("numbers", ("characters", "words")), ("lists", ("words", "words"))],
)
def test_units_are_those_that_suit_the_corpus(corpus, units):
    made = replace(setting(corpus), train=100, valid=12, test=12)
    examples = made.examples()
    assert (made.recipe.data.source_unit, made.recipe.data.target_unit) == units
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
