"""`curves`: what is drawn is what was given, each under its name."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard import plots


@pytest.fixture
def axes():
    return plots.canvas(4, 3)[1][0]


def test_draws_points_truth_and_every_fit(axes):
    x = torch.linspace(0, 1, 5)
    points = (torch.tensor([0.1, 0.9]), torch.tensor([3.0, 4.0]))
    plots.curves(x, {"narrow": x**2, "wide": x}, truth=x**3, points=points, ax=axes)
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(drawn) == ["truth", "narrow", "wide"]
    np.testing.assert_array_equal(drawn["narrow"], (x**2).double().numpy())
    np.testing.assert_array_equal(drawn["truth"], (x**3).double().numpy())
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), torch.stack(points, -1).double().numpy())


def test_neighbouring_fits_differ_in_colour(axes):
    plots.curves([0.0, 1.0], {str(index): [0.0, index] for index in range(6)}, ax=axes)
    assert len({line.get_color() for line in axes.lines}) == 6


def test_refuses_a_curve_of_another_length(axes):
    with refuses("fits['narrow']", "3 heights for", "2 places"):
        plots.curves([0.0, 1.0], {"narrow": [1.0, 2.0, 3.0]}, ax=axes)
    with refuses("points[1]", "1 heights for", "2 places"):
        plots.curves([0.0, 1.0], {}, points=([0.0, 1.0], [1.0]), ax=axes)


def test_a_band_is_what_lies_between(axes):
    plots.band([0.0, 1.0, 2.0], [1.0, np.nan, 2.0], [3.0, np.nan, 2.5], label="95%", ax=axes)
    (shaded,) = axes.collections
    assert shaded.get_label() == "95%"
    plots.band([0.0, 1.0], [-1.0, 0.0], [1.0, 5.0], ax=axes)
    outline = axes.collections[1].get_paths()[0].vertices[:, 1]
    assert (outline.min(), outline.max()) == (-1.0, 5.0)
    with refuses("upper", "1 heights for", "2 places"):
        plots.band([0.0, 1.0], [0.0, 1.0], [1.0], ax=axes)


def test_a_fit_is_a_curve_in_its_band_over_the_points(axes):
    found = SimpleNamespace(mean=[1.0, 2.0], lower=[0.5, 1.0], upper=[1.5, 3.0])
    plots.fit([0.0, 1.0], found, points=([0.2], [1.1]), truth=[1.0, 1.9], name="gaussian", label="95%", ax=axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["95%", "samples", "truth", "gaussian"]
    np.testing.assert_array_equal(axes.lines[-1].get_ydata(), [1.0, 2.0])
    shaded = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (shaded.min(), shaded.max()) == (0.5, 3.0)


def test_the_truth_is_seen_on_a_dark_page():
    with plots.house_style(dark=True):
        _, (axes,) = plots.canvas(3, 2)
        plots.curves([0.0, 1.0], {}, truth=[0.0, 1.0], ax=axes)
    assert axes.lines[0].get_color() == "#E6E7E9"
