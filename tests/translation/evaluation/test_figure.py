"""The picture of quality by length: a curve for every system."""

from dataclasses import replace

from tests.refuses import refuses

from regard.translation.evaluation.by_length import LengthGroup
from regard.translation.evaluation.evaluation import Comparison, Evaluation
from regard.translation.evaluation.figure import draw_by_length, save_figure

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
