"""The figure of the norms is drawn from what was measured."""

import numpy as np

from regard.regression.experiment.figures import draw_norms


def test_every_measured_curve_is_drawn(experiment):
    dropped = experiment.dropped
    left, right = draw_norms(dropped).axes
    drawn = {line.get_label(): line.get_ydata() for line in left.lines}
    assert list(drawn) == [*dropped.by_spread, "bound for eq. 7"]
    for name, found in dropped.by_spread.items():
        np.testing.assert_array_equal(drawn[name], found)
    assert [line.get_label() for line in right.lines] == list(dropped.by_dimension)
    assert left.get_ylabel() == "share of weight on other keys"
