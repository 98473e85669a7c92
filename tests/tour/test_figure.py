"""The tour's figure is drawn from what was computed, and says what it shows."""

import numpy as np
import pytest

from regard.tour.figure import draw


@pytest.fixture(scope="module")
def panels(fits):
    left, right, *_ = draw(fits).axes
    return left, right


def test_left_has_the_truth_and_every_fit(fits, panels):
    drawn = {line.get_label(): line.get_ydata() for line in panels[0].lines}
    assert list(drawn) == ["truth", "width 0.1", "width 0.35", "width 1"]
    np.testing.assert_array_equal(drawn["width 1"], fits.by_width[1.0].numpy())
    assert [text.get_text() for text in panels[0].get_legend().get_texts()] == ["samples", *drawn]


def test_right_has_the_weights(fits, panels):
    np.testing.assert_array_equal(np.asarray(panels[1].images[0].get_array()), fits.attended.weights().numpy())


def test_ticks_stand_at_whole_x(fits, panels):
    ticks = panels[1].get_xticks()
    assert [round(fits.x[int(tick)].item()) for tick in ticks] == [0, 1, 2, 3, 4]
    assert [round(fits.places[int(tick)].item(), 9) for tick in panels[1].get_yticks()] == [0, 1, 2, 3, 4]


def test_x_grows_upwards_along_the_queries(panels):
    low, high = panels[1].get_ylim()
    assert low < high
