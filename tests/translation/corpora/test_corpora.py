"""Built-in corpora by name."""

import sys
from importlib import import_module

import pytest
from tests.refuses import refuses

from regard.translation.corpora import built_in, names
from regard.translation.dataset import BuiltIn
from regard.translation.vocabulary import UNITS, learn_vocabulary

SIZES = {"train": 60, "valid": 12, "test": 12}


@pytest.mark.parametrize("name", names())
def test_by_name_and_with_units_that_work(name):
    corpus = built_in(name, seed=2, **SIZES)
    assert isinstance(corpus, BuiltIn)
    assert corpus == built_in(name, seed=2, **SIZES) != built_in(name, seed=3, **SIZES)
    assert {corpus.source_unit, corpus.target_unit} <= set(UNITS)
    for unit, texts in (
        (corpus.source_unit, [example.source for example in corpus.train]),
        (corpus.target_unit, [example.target for example in corpus.train]),
    ):
        vocabulary = learn_vocabulary(unit, texts)
        assert [vocabulary.decode(ids) for ids in vocabulary.encode_all(texts)] == texts


def test_options_reach_the_corpus():
    assert built_in("numbers", language="fr", **SIZES) != built_in("numbers", **SIZES)
    assert {example.label for example in built_in("dates", locales=["de"], **SIZES).test} == {"de"}


def test_what_is_refused():
    with refuses("corpus", "'wmt'", "'dates'", "'numbers'"):
        built_in("wmt")
    with refuses("options", "'dates'"):
        built_in("dates", language="fr")


@pytest.mark.parametrize(("name", "package"), [("dates", "babel"), ("numbers", "num2words")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    if name == "numbers":
        number_words = import_module("regard.translation.corpora.numbers")
        number_words._said.cache_clear()
        number_words._german_group.cache_clear()
    with refuses(f"corpus {name}", "no module named", package, "regard[translation]"):
        built_in(name, **SIZES)


def test_lists_need_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "num2words", None)
    monkeypatch.setitem(sys.modules, "babel", None)
    assert built_in("lists", **SIZES).train
