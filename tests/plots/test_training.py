"""`training`: a panel for each quantity, a line for each part."""

import numpy as np
import pytest
from tests.refuses import refuses

from regard import plots

pytestmark = pytest.mark.usefixtures("close_figures")
HISTORY = {"loss": {"training": [3.0, 2.0, 1.0], "validation": [3.1, None, 1.5]}, "BLEU": {"validation": [1, 2, 30]}}


def test_what_was_measured_is_drawn_where_it_was_measured():
    loss, bleu = plots.training(HISTORY, at=[10, 20, 30], kept=30, axis="update")
    train, valid, kept = loss.lines
    np.testing.assert_array_equal(train.get_data(), [[10, 20, 30], [3.0, 2.0, 1.0]])
    np.testing.assert_array_equal(valid.get_data(), [[10, 30], [3.1, 1.5]])
    assert kept.get_xdata()[0] == 30
    assert (loss.get_xlabel(), loss.get_ylabel(), bleu.get_ylabel()) == ("update", "loss", "BLEU")
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "validation", "kept"]
    assert loss.get_ylim()[0] == 0


def test_values_below_zero_keep_their_floor():
    (axes,) = plots.training({"log-probability": {"training": [-3.0, -2.0]}})
    assert axes.get_ylim()[0] < -2.9
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2])


@pytest.mark.parametrize(
    ("history", "argument", "word"),
    [
        ({}, "history", "no values"),
        ({"loss": {}}, "history", "no values"),
        (
            {"loss": {"training": [1.0], "validation": [1.0, 2.0]}},
            "history[…]['training']",
            "1 values for 2 places",
        ),
    ],
)
def test_what_has_no_lines_is_refused(history, argument, word):
    with refuses(argument, word):
        plots.training(history)


def test_every_line_is_drawn_and_can_be_told_from_the_others():
    (panel,) = plots.training({"loss $^$": {f"run {number} $^$": [3, 2, 1] for number in range(8)}})
    panel.figure.draw_without_rendering()
    looks = {(line.get_color(), line.get_linestyle()) for line in panel.lines}
    assert len(panel.lines) == len(looks) == 8


def test_lines_have_names():
    with refuses("history", "without", "values", "name"):
        plots.training({"loss": [3.0, 2.0]})
