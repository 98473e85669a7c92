"""`kernels`: the curves are those of the scores."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses

from regard import plots
from regard.scores import Gaussian

pytestmark = pytest.mark.usefixtures("close_figures")


def test_heights_are_the_exponential_of_the_score():
    axes = plots.kernels({"wide": Gaussian(2.0), "boxcar": "boxcar", "triangular": "triangular"}, farthest=2.0)
    d = axes.lines[0].get_xdata()
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    np.testing.assert_allclose(drawn["wide"], np.exp(-(d**2) / 8), atol=1e-12)
    np.testing.assert_allclose(drawn["triangular"], np.maximum(0, 1 - abs(d)), atol=1e-12)
    np.testing.assert_array_equal(drawn["boxcar"], abs(d) <= 1)


@pytest.mark.parametrize("learnable", [False, True])
def test_heights_do_not_depend_on_the_default_device(learnable):
    score = Gaussian(2.0, learnable=learnable)
    expected = plots.kernels({"wide": score}).lines[0].get_ydata()
    with torch.device("meta"):  # tensors made there have no values
        found = plots.kernels({"wide": score}).lines[0].get_ydata()
    np.testing.assert_array_equal(found, expected)


def test_more_kernels_than_colours_differ_in_their_dashes():
    axes = plots.kernels({f"{width}": Gaussian(float(width)) for width in range(1, 15)})
    assert len({(line.get_color(), str(line._dash_pattern)) for line in axes.lines}) == 14


@pytest.mark.parametrize("farthest", [-1.0, 0.0, float("nan")])
def test_the_largest_distance_is_one(farthest):
    with refuses("farthest"):
        plots.kernels({"gaussian": "gaussian"}, farthest=farthest)
