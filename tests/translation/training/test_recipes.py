"""`preset`: every built-in corpus has a recipe in its own units, and nothing else has."""

import pytest
from tests.refuses import refuses

from regard.translation.corpora import built_in, names
from regard.translation.training.recipes import preset


@pytest.mark.parametrize("name", names())
def test_a_built_in_corpus_is_cut_into_its_own_units(name):
    corpus = built_in(name, train=24, valid=12, test=12)
    data = preset(name).data
    assert (data.source_unit, data.target_unit) == (corpus.source_unit, corpus.target_unit)


def test_another_name_is_refused():
    with refuses("corpus", "'poems'"):
        preset("poems")


def test_several_heads_share_the_width_of_the_state_in_every_built_in_recipe():
    for corpus in ("dates", "numbers", "lists"):
        assert preset(corpus).with_flags({"heads": 2}).model.attention_dim is None
    with refuses("attention_dim", "several", "beside", "heads"):
        preset("dates").with_flags({"heads": 2, "attention_dim": 8})
