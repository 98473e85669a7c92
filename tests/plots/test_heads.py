"""`heads`: every head in a panel of its own, on one scale."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from tests.refuses import refuses

from regard import plots

pytestmark = pytest.mark.usefixtures("close_figures")


def test_a_panel_for_each_head_on_one_scale():
    weights = torch.rand(2, 5, 3, 7).softmax(-1)
    panels = plots.heads(weights, batch=1, columns=3)
    assert len(panels) == 5
    for head, panel in enumerate(panels):
        np.testing.assert_array_equal(np.asarray(panel.images[0].get_array()), weights[1, head].double().numpy())
        assert panel.images[0].get_clim() == (0.0, pytest.approx(float(weights[1].max())))
        assert panel.get_title("left") == f"head {head}"
    assert panels[0].figure.axes[-1].get_ylabel() == "weight"


def test_tokens_stand_at_the_outer_edges():
    panels = plots.heads(torch.rand(5, 2, 3), queries=["il", "dort"], keys=["he", "is", "asleep"], columns=3)
    panels[0].figure.canvas.draw()

    def named(panel, axis):
        ticks = getattr(panel, f"{axis}axis").get_major_ticks()
        return [tick.label1.get_text().strip("\n") for tick in ticks if tick.label1.get_visible()]

    assert named(panels[0], "y") == named(panels[3], "y") == ["il", "dort"]
    assert named(panels[1], "y") == []
    assert [bool(named(panel, "x")) for panel in panels] == [False, False, True, True, True]
    assert named(panels[3], "x") == ["he", "is", "asleep"]


def test_layers_of_a_tuple_and_own_names():
    layers = (torch.rand(1, 2, 3, 3), torch.rand(1, 2, 3, 3))
    panels = plots.heads(layers, layer=1, names=["copies", "shifts"], darkest=2.0)
    assert [panel.get_title("left") for panel in panels] == ["copies", "shifts"]
    assert panels[1].images[0].get_clim() == (0.0, 2.0)
    with refuses("names", "1 for", "2 heads"):
        plots.heads(layers, layer=1, names=["copies"])
    with refuses("names", "head"):
        plots.heads(layers, layer=1, names=3)
    with refuses("keys", "1 labels", "needed 3"):
        plots.heads(layers, layer=1, keys=["a"])


def test_a_row_that_is_not_a_number_leaves_the_scale_to_the_others():
    weights = torch.rand(4, 5, 5).softmax(-1)
    weights[1, 2] = torch.nan
    panels = plots.heads(weights)
    most = pytest.approx(weights.nan_to_num(0).max().item())
    assert [panel.images[0].get_clim() for panel in panels] == [(0.0, most)] * 4


def test_names_with_dollar_signs_are_no_formulas():
    panels = plots.heads(torch.rand(2, 3, 3), names=["a$x^$", "$^$"])
    panels[0].figure.draw_without_rendering()
    assert [panel.get_title("left") for panel in panels] == ["a$x^$", "$^$"]


@pytest.mark.parametrize(
    ("wrong", "argument", "word"), [({"columns": 0}, "columns", "0"), ({"darkest": 0.0}, "darkest", "0")]
)
def test_what_is_refused_leaves_no_figure(wrong, argument, word):
    before = pyplot.get_fignums()
    with refuses(argument, word):
        plots.heads(torch.rand(2, 3, 3), **wrong)
    assert pyplot.get_fignums() == before


def test_the_axes_say_that_only_some_tokens_are_named():
    words = ["extraordinarily", "internationalised"] * 10
    panels = plots.heads(np.full((6, 20, 20), 0.05), queries=words, keys=words)
    figure = panels[0].figure
    step = int(panels[-1].get_xticks()[1])
    assert step > 1
    assert figure.get_supxlabel() == f"key (one in {step} is named)"
    assert figure.get_supylabel() == "query"


def test_a_single_query_is_number_0():
    for panel in plots.heads(np.full((2, 1, 7), 1 / 7)):
        low, high = sorted(panel.get_ylim())
        assert [tick for tick in panel.get_yticks() if low <= tick <= high] == [0]


def test_long_names_of_heads_are_shortened():
    panels = plots.heads(np.ones((2, 2, 2)), names=["a very long name of a head that goes on"] * 2)
    assert [panel.get_title(loc="left") for panel in panels] == ["a very long name of a h…"] * 2
