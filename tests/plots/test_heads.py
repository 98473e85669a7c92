"""`heads`: every head in a panel of its own, on one scale."""

import numpy as np
import pytest
import torch

from regard import plots
from regard.errors import RegardError

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
    with pytest.raises(RegardError, match=r"^names: got 1 for 2 heads"):
        plots.heads(layers, layer=1, names=["copies"])
    with pytest.raises(RegardError, match=r"^keys: got 1 labels; needed 3"):
        plots.heads(layers, layer=1, keys=["a"])
