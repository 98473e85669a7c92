"""`preset`: every built-in corpus has a recipe in its own units, and nothing else has."""

import pytest

from regard.errors import RegardError
from regard.translation.corpora import built_in, names
from regard.translation.training.recipes import preset


@pytest.mark.parametrize("name", names())
def test_a_built_in_corpus_is_cut_into_its_own_units(name):
    corpus = built_in(name, train=24, valid=12, test=12)
    data = preset(name).data
    assert (data.source_unit, data.target_unit) == (corpus.source_unit, corpus.target_unit)


def test_another_name_is_refused():
    with pytest.raises(RegardError, match="corpus: got 'poems'; needed one of dates, numbers, lists"):
        preset("poems")


def test_several_heads_share_the_width_of_the_state_in_every_built_in_recipe():
    for corpus in ("dates", "numbers", "lists"):
        assert preset(corpus).with_flags({"heads": 2}).model.attention_dim is None
    with pytest.raises(RegardError, match="attention_dim: got 8; needed none beside several heads"):
        preset("dates").with_flags({"heads": 2, "attention_dim": 8})
