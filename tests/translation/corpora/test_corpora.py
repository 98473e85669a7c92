"""Built-in corpora by name."""

import sys
from importlib import import_module

import pytest
from tests.refuses import refuses

from regard.translation.corpora import built_in_corpus
from regard.translation.dataset import Corpus
from regard.translation.vocabulary import learn_vocabulary

SIZES = {"train": 60, "valid": 12, "test": 12}


@pytest.mark.parametrize("name", ["dates", "numbers", "lists"])
@pytest.mark.parametrize("unit", ["characters", "words"])
def test_by_name_and_with_units_that_work(name, unit):
    corpus = built_in_corpus(name, seed=2, **SIZES)
    assert isinstance(corpus, Corpus)
    assert corpus == built_in_corpus(name, seed=2, **SIZES) != built_in_corpus(name, seed=3, **SIZES)
    assert corpus.name == name
    for texts in ([pair.source for pair in corpus.train], [pair.target for pair in corpus.train]):
        vocabulary = learn_vocabulary(unit, texts)
        assert [vocabulary.decode(ids) for ids in vocabulary.encode_all(texts)] == texts


def test_options_reach_the_corpus():
    assert built_in_corpus("numbers", language="fr", **SIZES) != built_in_corpus("numbers", **SIZES)
    assert {example.label for example in built_in_corpus("dates", locales=["de"], **SIZES).test} == {"de"}


def test_what_is_refused():
    with refuses("corpus", "'wmt'", "'dates'", "'numbers'"):
        built_in_corpus("wmt")
    with refuses("options", "'dates'"):
        built_in_corpus("dates", language="fr")


@pytest.mark.parametrize(("name", "package"), [("dates", "babel"), ("numbers", "num2words")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    if name == "numbers":
        number_words = import_module("regard.translation.corpora.numbers")
        number_words._number_word.cache_clear()
        number_words._german_group.cache_clear()
    with refuses(f"corpus {name}", "no module named", package, "regard[translation]"):
        built_in_corpus(name, **SIZES)


def test_lists_need_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "num2words", None)
    monkeypatch.setitem(sys.modules, "babel", None)
    assert built_in_corpus("lists", **SIZES).train
