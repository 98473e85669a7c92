"""Draws on one line do not see each other: their sums are those of each draw by itself."""

import pytest
import torch

from regard.regression.bandwidth_search import canonical_ratio
from regard.regression.experiment.comparison import FOLLOWED
from regard.regression.experiment.draws import draw, fit
from regard.regression.experiment.leave_one_out import grid
from regard.regression.experiment.one_line import OneLine
from regard.scores.names import KERNEL_SCORES


@pytest.fixture(scope="module")
def drawn():
    return draw(4)


@pytest.mark.parametrize("kernel", KERNEL_SCORES)
def test_the_curves_are_those_of_attention_on_each_draw(drawn, kernel):
    for width in (FOLLOWED[0] * canonical_ratio(kernel), FOLLOWED[-1] * canonical_ratio(kernel)):
        on_line = OneLine(drawn).fit(kernel, width)
        alone = fit(drawn, kernel, torch.full((4,), width, dtype=torch.float64))
        torch.testing.assert_close(on_line.fits, alone.fits, rtol=1e-9, atol=1e-9)
        assert on_line.filled == alone.filled


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "boxcar", "triangular"])
def test_the_error_left_out_is_that_of_fits_without_the_sample(drawn, kernel):
    width = grid(kernel)[12].item()
    x, y = drawn.x[2], drawn.y[2]
    score = KERNEL_SCORES[kernel](width)
    predicted = []
    for row in range(len(x)):
        others = torch.arange(len(x)) != row
        form = score.pair(x[row].reshape(1, 1), x[others][:, None])
        weights = form.kernel.log_kernel((x[row] - x[others]).square(), form.width.reshape(()), x.dtype).exp()
        predicted.append(weights @ y[others] / weights.sum() if weights.sum() > 0 else y[others].mean())
    expected = (torch.stack(predicted) - y).square().mean()
    torch.testing.assert_close(OneLine(drawn).left_out(kernel, width)[2], expected, rtol=1e-10, atol=0)
