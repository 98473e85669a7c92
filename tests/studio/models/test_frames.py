"""Looks at a model while it learns: the same sentences each time, weights that are weights, from grey to sharp."""

import pytest
import torch
from tests.studio.conftest import SIZES, small

from regard.studio.models.frames import JUDGED, Looks
from regard.translation.corpora import built_in_corpus


@pytest.fixture(scope="module")
def corpus():
    return built_in_corpus("dates", **SIZES)


def test_an_untrained_model_looks_everywhere(corpus):
    looks = Looks(small().recipe, corpus)
    frame = looks.at_first()
    assert [one["language"] for one in looks.sentences()] == ["de", "en"]
    assert frame.update == 0
    assert frame.loss is None
    for weights, sentence in zip(frame.weights, looks.sentences(), strict=True):
        table = torch.tensor(weights)
        assert table.shape == (len(sentence["target"]), len(sentence["source"]))
        assert float(table.max()) < 0.3
        assert bool((table.sum(1) < 1.001).all())


def test_a_model_without_attention_has_no_weights(corpus):
    looks = Looks(small(attention="none", attention_dim=None).recipe, corpus)
    assert looks.at_first().weights == ()
    assert looks.at_first().share is None


def test_as_many_pairs_are_judged_as_the_page_says():
    corpus = built_in_corpus("dates", **SIZES | {"valid": 60})
    looks = Looks(small().recipe, corpus)
    assert len(looks.pairs) == JUDGED == 32
    assert looks.pairs[:2] == looks.shown


def test_where_there_is_no_checkpoint_there_is_no_look(corpus, tmp_path):
    assert Looks(small().recipe, corpus).at(tmp_path, 1.0) is None


def test_sentences_come_as_text_and_as_tokens(corpus):
    for sentence in Looks(small().recipe, corpus).sentences():
        assert "".join(sentence["source"]).replace("▁", " ") == sentence["text"]
