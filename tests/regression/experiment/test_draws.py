"""Draws: their seeds, their curves, and places that no sample reaches."""

import math

import pytest
import torch
from tests.refuses import refuses

from regard.regression.experiment import data
from regard.regression.experiment.draws import Draws, draw, fit


def test_a_draw_is_its_seed():
    drawn = draw(8)
    x, y = data.samples(seed=5)
    assert torch.equal(drawn.x[5], x)
    assert torch.equal(drawn.y[5], y)


def test_each_curve_is_nadaraya_watson_of_its_own_draw_and_width():
    drawn = draw(7)
    widths = torch.linspace(0.2, 1.4, 7, dtype=torch.float64)
    curves = fit(drawn, "gaussian", widths)
    for row, place in ((0, 0), (5, 40), (6, 80)):
        kernel = [math.exp(-(((place * 0.05 - x) / widths[row]) ** 2) / 2) for x in drawn.x[row].tolist()]
        expected = sum(k * y for k, y in zip(kernel, drawn.y[row].tolist(), strict=True)) / sum(kernel)
        assert curves.fits[row, place].item() == pytest.approx(expected, rel=1e-12)
    assert curves.filled == 0


def test_errors_are_against_the_noiseless_curve():
    curves = fit(draw(2), "boxcar", torch.ones(2, dtype=torch.float64))
    expected = (curves.fits[1] - 2 * data.places().sin() - data.places()).square().mean()
    torch.testing.assert_close(curves.errors()[1], expected)


def test_an_empty_window_takes_the_nearest_sample_and_is_counted():
    alone = Draws(torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.tensor([[5.0, 7.0]], dtype=torch.float64))
    curves = fit(alone, "boxcar", torch.tensor([0.51], dtype=torch.float64))
    assert curves.fits[0, 0] == 5.0
    assert curves.fits[0, 39] == 5.0  # 1.95: nearer to 1
    assert curves.fits[0, 80] == 7.0
    places = data.places()
    reached = ((places - 1).abs() <= 0.51) | ((places - 3).abs() <= 0.51)
    assert curves.filled == int((~reached).sum())


def test_one_draw_has_no_interval():
    with refuses("draws", "least 2"):
        draw(1)
