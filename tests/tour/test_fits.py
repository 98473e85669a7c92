"""The fits equal Nadaraya-Watson written out, and behave as widths should."""

import math

import pytest
import torch

from regard.tour.fits import SHOWN_WIDTH, WIDTHS, fit


@pytest.mark.parametrize("width", WIDTHS)
def test_each_fit_is_nadaraya_watson(fits, width):
    for row in (0, 40, 80):
        place = fits.places[row].item()
        kernel = [math.exp(-(((place - x) / width) ** 2) / 2) for x in fits.x.tolist()]
        expected = sum(k * y for k, y in zip(kernel, fits.y.tolist(), strict=True)) / sum(kernel)
        assert fits.by_width[width][row].item() == pytest.approx(expected, rel=1e-12)


def test_the_record_is_that_of_the_shown_width(fits):
    torch.testing.assert_close(fits.attended.output[:, 0], fits.by_width[SHOWN_WIDTH])
    weights = fits.attended.weights()
    torch.testing.assert_close(weights.sum(-1), torch.ones(81, dtype=torch.float64))
    torch.testing.assert_close(weights @ fits.y, fits.by_width[SHOWN_WIDTH])


def test_error_is_the_mean_square_against_the_truth(fits):
    expected = sum((fit - true) ** 2 for fit, true in zip(fits.by_width[1.0], fits.truth, strict=True)) / 81
    assert fits.error(1.0) == pytest.approx(expected.item(), rel=1e-12)


def test_a_very_wide_kernel_gives_the_mean():
    wide = fit((1e6,), shown=1e6)
    torch.testing.assert_close(wide.by_width[1e6], wide.y.mean().expand(81), rtol=1e-9, atol=0)
