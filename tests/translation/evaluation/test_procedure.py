"""An evaluation of real translators: the numbers are those of their translations."""

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, random_sentences

from regard.translation import Translator
from regard.translation.corpora import Span
from regard.translation.dataset import Example, Pair, read_pairs
from regard.translation.evaluation import evaluate, measure
from regard.translation.translator import perplexity

SOURCES = random_sentences(30)


@pytest.fixture(scope="module")
def translator():
    return Translator([random_model()])


@pytest.fixture(scope="module")
def own_words(translator):
    """What the model says itself, so that some of the references are met; one is spoilt."""
    said = [one.text for one in translator.translate(SOURCES)]
    return ["cab", *said[1:]]


def test_every_number_is_that_of_the_translations(translator, own_words):
    pairs = [Pair(source, target) for source, target in zip(SOURCES, own_words, strict=True)]
    (found,) = evaluate({"random": translator}, pairs, batch_size=7).evaluations
    said = translator.translate(SOURCES)
    assert found.metrics == measure({"random": [one.text for one in said]}, own_words)["random"]
    assert found.exact == pytest.approx(29 / 30)
    assert found.perplexity == pytest.approx(translator.perplexity(SOURCES, own_words), rel=1e-5)
    assert found.unfinished == sum(not one.finished for one in said)
    assert (found.count, found.length_unit) == (30, "characters")
    assert sum(group.count for group in found.by_length) == 30
    assert (found.by_label, found.attention_on_span) == ((), None)
    assert found.settings == {"beams": 5, "length penalty": 1.0}


def test_references_are_normalised_as_in_training(translator):
    one = evaluate({"random": translator}, [Pair("ab", " a &amp;  b ")]).evaluations[0]
    other = evaluate({"random": translator}, [Pair("ab", "a & b")]).evaluations[0]
    assert (one.metrics, one.perplexity) == (other.metrics, other.perplexity)


def test_references_that_are_normalised_already_stay_as_they_are(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\t&amp;lt;\n", encoding="utf-8")
    pairs = [*read_pairs(tmp_path / "pairs.tsv")]
    sure = Translator([random_model(texts=("a", "&lt;"))])
    (found,) = evaluate({"sure": sure}, pairs).evaluations
    (given,) = sure.force(["a"], ["&amp;lt;"])
    assert len(given.target.ids) == len("&lt;")
    assert found.perplexity == pytest.approx(perplexity([given]))


def test_two_systems_are_compared_on_the_same_groups(translator, own_words):
    other = Translator([random_model(source_unit="words", texts=SOURCES)])
    pairs = [Pair(source, target) for source, target in zip(SOURCES, own_words, strict=True)]
    first, second = evaluate({"letters": translator, "words": other}, pairs, length_penalty=0.5).evaluations
    assert [group.name for group in first.by_length] == [group.name for group in second.by_length]
    assert first.length_unit == second.length_unit == "characters"
    assert first.metrics[0].p_value is None
    assert second.metrics[0].p_value < 0.05
    assert second.settings["length penalty"] == 0.5


def test_examples_are_reported_on_by_kind_and_span(translator, own_words):
    examples = [
        Example(source, target, (Span((0, 1), ((0, len(source)),)),), str(number % 12))
        for number, (source, target) in enumerate(zip(SOURCES, own_words, strict=True))
        if target
    ]
    (found,) = evaluate({"random": translator}, examples).evaluations
    assert [group.label for group in found.by_label] == [str(number) for number in range(12)]
    assert sum(group.count for group in found.by_label) == len(examples)
    assert found.by_label[0].exact < 1 == found.by_label[1].exact
    given = translator.force([one.source for one in examples], [one.target for one in examples])
    mass = sum(float(one.weights[0, :-1].sum()) for one in given) / len(examples)
    assert found.attention_on_span == pytest.approx(mass, rel=1e-5)


def test_without_pairs_or_systems_there_is_nothing_to_evaluate(translator):
    with refuses("pairs", "0 pairs of", "needed 1"):
        evaluate({"random": translator}, [])
    with refuses("systems", "translator", "least", "none"):
        evaluate({}, [Pair("a", "b")])
    with refuses("pairs", "30001"):
        evaluate({"random": translator}, [Pair("a", "b")] * 30_001)
    with refuses("tokenize", "'words'"):
        evaluate({"random": translator}, [Pair("a", "b")], tokenize="words")
