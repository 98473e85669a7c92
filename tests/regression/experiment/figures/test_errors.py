"""Figures of errors: points where the means are, bars as long as the intervals."""

import numpy as np
import pytest

from regard.regression.bandwidth_search import canonical_ratio
from regard.regression.experiment.comparison import interval
from regard.regression.experiment.figures import draw_errors, draw_errors_by_width


def test_every_kernel_and_the_constant_with_its_interval(experiment):
    comparison = experiment.comparison
    panels = draw_errors(comparison).axes
    for panel, judged in zip(panels, (comparison.at_one, comparison.at_own), strict=True):
        expected = [interval(row.errors) for row in judged.values()] + [interval(comparison.constant)]
        for container, found in zip(panel.containers, expected, strict=True):
            point, _, (bar,) = container.lines
            assert point.get_xdata()[0] == found.mean
            ends = bar.get_segments()[0][:, 0]
            assert ends[1] - ends[0] == pytest.approx(2 * found.half)
    assert panels[0].get_xlim() == panels[1].get_xlim()
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    assert names[0] == "gaussian"
    assert names[-1] == "constant (mean of y)"


def test_the_right_panel_has_the_widths_of_equal_smoothing(experiment):
    left, right = draw_errors_by_width(experiment.comparison).axes
    for one, other, kernel in zip(left.lines, right.lines, experiment.comparison.followed, strict=False):
        np.testing.assert_allclose(one.get_xdata() / canonical_ratio(kernel), other.get_xdata())
        np.testing.assert_array_equal(one.get_ydata(), other.get_ydata())
    assert len(right.lines) == len(experiment.comparison.followed)
