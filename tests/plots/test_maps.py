"""`height_map`: heights where they were given, white where there are none, points in the same colours."""

import numpy as np
import pytest
from tests.refuses import refuses

from regard import plots


def test_draws_heights_and_points_on_one_scale():
    _, (ax,) = plots.canvas(4, 3)
    heights = np.array([[0.0, 1.0, 2.0], [1.0, 2.0, np.nan]])
    plots.height_map([0, 1, 2], [0, 1], heights, points=([0.5, 1.5], [0.2, 0.8], [-1.0, 5.0]), label="y", ax=ax)
    filled, dots = ax.collections
    np.testing.assert_array_equal(dots.get_offsets(), [[0.5, 0.2], [1.5, 0.8]])
    assert dots.get_clim()[0] <= -1.0
    assert dots.get_clim()[1] >= 5.0
    assert filled.levels[0] == dots.get_clim()[0]
    assert filled.levels[-1] == dots.get_clim()[1]
    assert ax.figure.axes[1].get_ylabel() == "y"


def test_a_flat_map_has_a_colour():
    _, (ax,) = plots.canvas(4, 3)
    plots.height_map([0, 1], [0, 1], [[2.0, 2.0], [2.0, 2.0]], ax=ax)
    levels = ax.collections[0].levels
    assert levels[0] <= 2.0 < levels[-1]


def test_refuses_heights_of_another_shape():
    with refuses("heights", "(2, 2)", "(2, 3)"):
        plots.height_map([0, 1, 2], [0, 1], [[1.0, 2.0], [3.0, 4.0]])


def test_samples_without_a_height_are_left_out():
    x = np.linspace(0, 1, 5)
    ax = plots.height_map(x, x, np.outer(x, x), points=([0.1, 0.5, 0.7], [0.2, 0.5, np.inf], [0.4, np.nan, 0.1]))
    assert ax.collections[0].get_clim() == (0.0, 1.0)
    assert ax.collections[-1].get_offsets().tolist() == [[0.1, 0.2]]


@pytest.mark.parametrize("points", [([1.0], [1.0]), ([1.0], [1.0, 2.0], [1.0])])
def test_points_are_three_numbers_each(points):
    x = np.linspace(0, 1, 5)
    with refuses("points"):
        plots.height_map(x, x, np.outer(x, x), points=points)


@pytest.mark.parametrize(("low", "high"), [(-1e308, 1e308), (1e308, 1e308), (0.0, 1.7e308)])
def test_heights_at_the_end_of_float64_are_refused(low, high):
    _, (ax,) = plots.canvas(4, 3)
    with refuses("heights", "e+308", "1e+300"):
        plots.height_map([0, 1], [0, 1], [[low, low], [low, high]], ax=ax)
    with refuses("heights", "e+308", "1e+300"):
        plots.height_map([0, 1], [0, 1], [[0.0, 1.0], [1.0, 0.0]], points=([0.0, 1.0], [0.0, 1.0], [low, high]), ax=ax)


def test_heights_short_of_it_are_drawn():
    figure, (ax,) = plots.canvas(4, 3)
    plots.height_map([0, 1], [0, 1], [[-1e300, 0.0], [0.0, 1e300]], ax=ax)
    figure.draw_without_rendering()
    assert ax.collections[0].levels[-1] >= 1e300
