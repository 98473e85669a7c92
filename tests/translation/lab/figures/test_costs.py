"""Bars as long as the costs."""

import pytest

from regard.translation.lab.competitors import ADDITIVE, NONE
from regard.translation.lab.costs import Costs, ModelCost
from regard.translation.lab.figures.costs import draw_costs, draw_score_costs
from regard.translation.lab.score_costs import ScoreCost, ScoreCosts


def test_of_models():
    models = (ModelCost(NONE, 1000, 9000.0, 2**20, 1, 1.0), ModelCost(ADDITIVE, 2000, 4500.0, 3 * 2**20, 1, 1.0))
    panels = draw_costs(Costs(models, 1, "cpu")).axes
    found = [[bar.get_width() for bar in axes.patches] for axes in panels]
    assert found == [pytest.approx(numbers) for numbers in ([1, 2], [9, 4.5], [1, 3])]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["no attention", "additive"]


def test_of_scores():
    panels = draw_score_costs(ScoreCosts((ScoreCost(ADDITIVE, 5000, 250.0, 2**19),), {}, 1, "cpu")).axes
    assert [axes.patches[0].get_width() for axes in panels] == pytest.approx([5, 0.25, 0.5])
