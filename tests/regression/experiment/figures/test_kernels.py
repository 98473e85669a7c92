"""The kernels as drawn are the formulas of eq. 5, under their true names."""

import math

import pytest
import torch

from regard.regression.experiment.figures.kernels import draw_kernels, heights


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        ("gaussian", lambda d: math.exp(-d * d / 2)),
        ("boxcar", lambda d: float(abs(d) <= 1)),
        ("triangular", lambda d: max(0.0, 1 - abs(d))),
        ("epanechnikov", lambda d: max(0.0, 1 - d * d)),
    ],
)
def test_heights_are_the_formula(kernel, formula):
    distance = torch.tensor([-2.0, -1.0, -0.3, 0.0, 0.5, 1.0, 1.5], dtype=torch.float64)
    assert heights(kernel, distance).tolist() == pytest.approx([formula(d) for d in distance.tolist()])


def test_the_chapters_epanechnikov_is_called_triangular():
    left, right = draw_kernels().axes
    labels = [line.get_label() for line in left.lines]
    assert labels == ["gaussian", "boxcar", "triangular (called\nEpanechnikov in eq. 5)", "epanechnikov"]
    assert [line.get_label() for line in right.lines] == ["laplacian", "tricube", "biweight", "cosine"]
    assert left.get_ylim() == right.get_ylim()
