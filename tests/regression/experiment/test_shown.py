"""The shown draw: curves and weights belong together."""

import torch

from regard.regression.experiment import data
from regard.regression.experiment.shown import GAUSSIAN_WIDTHS


def test_it_is_the_first_draw(experiment):
    x, y = data.samples(seed=0)
    assert torch.equal(experiment.shown.x, x)
    assert torch.equal(experiment.shown.y, y)


def test_weights_give_the_curves(experiment):
    shown = experiment.shown
    assert list(shown.by_width) == list(GAUSSIAN_WIDTHS)
    for pooled in (*shown.at_one.values(), *shown.by_width.values()):
        torch.testing.assert_close(pooled.weights @ shown.y, pooled.curve)


def test_own_widths_are_those_of_the_comparison(experiment):
    for kernel, pooled in experiment.shown.at_own.items():
        assert pooled.width == experiment.comparison.at_own[kernel].widths[0].item()
