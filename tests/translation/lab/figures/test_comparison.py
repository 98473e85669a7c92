"""The figure that made attention famous: every line is a competitor's mean, every band its seeds."""

import pytest
from matplotlib.collections import PolyCollection
from tests.translation.lab.settings import ADDITIVE, DOT, NONE, tiny, trials

from regard.translation.lab.comparison import compare, compare_sizes
from regard.translation.lab.figures.comparison import colours_of, draw_comparison, draw_state_sizes


def lines(axes):
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}


def test_a_line_for_each_model_with_the_range_of_its_seeds():
    left, right = draw_comparison(compare(tiny(), trials())).axes
    drawn = lines(left)
    assert list(drawn) == ["no attention", "scaled dot", "additive"]
    assert drawn["scaled dot"] == pytest.approx([100.0, 85.0])
    bands = [band for band in left.collections if isinstance(band, PolyCollection)]
    heights = bands[1].get_paths()[0].vertices[:, 1]
    assert {80.0, 90.0} <= {round(height, 6) for height in heights.tolist()}
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "2"]
    assert [label.get_text() for label in right.get_yticklabels()] == ["scaled dot", "additive"]


def test_a_line_for_each_size():
    (axes,) = draw_state_sizes(compare_sizes(tiny(), trials())).axes
    assert {name: heights[1] for name, heights in lines(axes).items()} == pytest.approx({"4": 10.0, "8": 30.0})


def test_grey_is_kept_for_no_attention():
    colours = colours_of([NONE, DOT, ADDITIVE])
    assert len(set(colours.values())) == 3
    assert colours == colours_of([NONE, DOT, ADDITIVE])
