"""The widths of the experiment are as good as those of the estimator."""

import pytest
import torch

from regard.regression import NadarayaWatson
from regard.regression.experiment.draws import draw
from regard.regression.experiment.leave_one_out import grid, widths
from regard.regression.experiment.one_line import OneLine


@pytest.mark.parametrize("kernel", ["gaussian", "boxcar", "epanechnikov"])
def test_their_criterion_is_that_of_the_estimator_up_to_the_step_of_the_grid(kernel):
    line = OneLine(draw(2))
    chosen = widths(line, kernel)
    for row in range(2):
        estimator = NadarayaWatson(kernel, "loo").fit(line.draws.x[row][:, None], line.draws.y[row])
        found = line.left_out(kernel, chosen[row].item())[row].item()
        # Of a compact kernel the criterion is rough, so that either search may find the lower place.
        assert found == pytest.approx(estimator.criterion_, rel=0.03)
        assert kernel != "gaussian" or estimator.criterion_ <= found * (1 + 1e-12)


def test_the_grid_is_even_in_the_logarithm():
    tried = grid("gaussian")
    assert tried[0].item() == pytest.approx(0.03)
    assert tried[-1].item() == pytest.approx(0.9)
    steps = tried.log().diff()
    torch.testing.assert_close(steps, steps[0].expand_as(steps))
