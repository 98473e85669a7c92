"""The report: everything that was found, as a table and as JSON."""

import json
from dataclasses import replace

from regard.translation.evaluation.by_length import LengthGroup
from regard.translation.evaluation.evaluation import Comparison, Evaluation, LabelGroup
from regard.translation.evaluation.metrics import Metric

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
