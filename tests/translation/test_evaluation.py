"""An evaluation counts what its pairs say, and its records and figure show it."""

import json
from dataclasses import replace

import pytest
from tests.refuses import refuses
from tests.translation.models import random_model, random_sentences

from regard.translation import Translator
from regard.translation.corpora import Span
from regard.translation.dataset import Pair, read_pairs
from regard.translation.evaluation import (
    Comparison,
    Evaluation,
    LabelGroup,
    draw_by_length,
    evaluate,
    save_figure,
    score_systems,
)
from regard.translation.metrics import LengthGroup, Metric
from regard.translation.translator import perplexity

BLEU = Metric("BLEU", 40.25, 40.2, 1.5, None, "tok:none")
FIRST = Evaluation(
    system="first",
    count=1000,
    metrics=(BLEU,),
    perplexity=3.25,
    exact=0.125,
    unfinished=0,
    length_unit="words",
    by_length=(LengthGroup(1, 5, 7, 50.0, 0.5), LengthGroup(6, 10, 993, 39.5, 0.01)),
    by_label=(),
    attention_on_span=None,
    seconds=2.0,
    settings={"beams": 5, "length penalty": 0.8},
)


def test_the_report_of_one_model():
    assert str(FIRST).splitlines() == [
        "first: 1000 sentences in 2.0 s (beams 5, length penalty 0.8)",
        "  BLEU        40.25 (95%: 38.70 to 41.70)",
        "  perplexity  3.250 per token",
        "  exact       12.50%",
        "",
        "  source, in words  sentences   BLEU   exact",
        "  1-5                       7  50.00  50.00%",
        "  6-10                    993  39.50   1.00%",
        "",
        "  BLEU: tok:none",
    ]


def test_what_is_known_of_a_built_in_corpus_is_reported_too():
    labels = (LabelGroup("de", 12, 1.0), LabelGroup("ja", 8, 0.5))
    report = str(replace(FIRST, by_label=labels, attention_on_span=0.93, unfinished=3))
    assert "attention on the right span  93.00%" in report
    assert "cut off                      3 translations at the longest length" in report
    assert "  kind  sentences    exact\n  de           12  100.00%\n  ja            8   50.00%" in report


def test_two_models_end_with_a_verdict():
    other = replace(FIRST, system="second", metrics=(Metric("BLEU", 41.0, 41.0, 1.5, 0.042, "tok:none"),))
    assert str(Comparison((FIRST, other))).splitlines()[-1] == (
        "second against first: BLEU +0.75, p = 0.0420 (paired bootstrap)"
    )
    assert str(Comparison((FIRST,))) == str(FIRST)


def test_json_reads_back():
    read = json.loads(Comparison((FIRST, replace(FIRST, perplexity=float("inf")))).to_json())
    assert read["evaluations"][0]["metrics"][0]["score"] == 40.25
    assert read["evaluations"][0]["by_length"][1]["count"] == 993
    assert read["evaluations"][1]["perplexity"] is None


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
    assert found.metrics == score_systems({"random": [one.text for one in said]}, own_words)["random"]
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
        Pair(source, target, (Span((0, 1), ((0, len(source)),)),), str(number % 12))
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


ONE = Evaluation(
    system="with attention",
    count=10,
    metrics=(),
    perplexity=1.0,
    exact=1.0,
    unfinished=0,
    length_unit="words",
    by_length=(LengthGroup(1, 10, 7, 50.0, 0.5), LengthGroup(11, 20, 3, 40.0, 0.25)),
    by_label=(),
    attention_on_span=None,
    seconds=1.0,
    settings={},
)
BOTH = Comparison((ONE, replace(ONE, system="without")))


def test_bleu_and_exact_share_over_length():
    bleu, exact = draw_by_length(BOTH).axes
    assert [list(line.get_ydata()) for line in bleu.lines] == [[50.0, 40.0]] * 2
    assert [list(line.get_ydata()) for line in exact.lines] == [[50.0, 25.0]] * 2
    assert [label.get_text() for label in bleu.get_xticklabels()] == ["1-10\n7", "11-20\n3"]
    assert [text.get_text() for text in bleu.get_legend().get_texts()] == ["with attention", "without"]
    assert draw_by_length(Comparison((ONE,))).axes[0].get_legend() is None


def test_it_is_saved_as_its_ending_says(tmp_path):
    assert save_figure(BOTH, tmp_path / "by-length.svg").read_text().startswith("<?xml")
    with refuses("figure", "x.png"):
        save_figure(BOTH, tmp_path / "nowhere" / "x.png")
