"""The figure of a fit: a curve with a band that says what it covers, or a map."""

import numpy as np
import pytest

from regard.regression import csv_report as module
from regard.regression.csv_report import RegressOptions, draw, fit_file


def test_one_column_is_a_curve_with_its_band(noisy):
    wishes = RegressOptions(noisy, ("x",), "y", bandwidth="0.5", level=0.9)
    fitted = fit_file(wishes)
    drawn = draw(wishes, fitted)
    ax = drawn.axes[0]
    (curve,) = ax.lines
    np.testing.assert_allclose(curve.get_ydata(), fitted.model.predict(curve.get_xdata()[:, None]))
    np.testing.assert_array_equal(ax.collections[0].get_offsets()[:, 1], fitted.y)
    outline = ax.collections[1].get_paths()[0].vertices[:, 1]
    band = fitted.model.confidence_band(curve.get_xdata()[:, None], 0.9)
    assert outline.max() == pytest.approx(band.upper.max())
    assert outline.min() == pytest.approx(band.lower.min())
    labels = [text.get_text().replace("\n", " ") for text in drawn.legends[0].get_texts()]
    assert labels == ["samples", "fit", "90% band of the estimator's mean, not of the true curve"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")
    assert ax.get_title(loc="left") == "gaussian kernel, bandwidth 0.5"


def test_two_columns_are_a_map_with_the_samples(noisy):
    wishes = RegressOptions(noisy, ("x", "other"), "y", kernel="cosine_kernel", bandwidth="nearest:30")
    fitted = fit_file(wishes)
    ax, scale = draw(wishes, fitted).axes
    np.testing.assert_array_equal(ax.collections[-1].get_offsets(), fitted.x)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "other")
    assert scale.get_ylabel() == "y: map fitted, dots observed"
    assert ax.get_title(loc="left") == "cosine kernel, nearest 30 rows"


def test_of_many_samples_some_are_drawn_and_it_says_so(noisy, monkeypatch):
    monkeypatch.setattr(module, "MOST_POINTS", 50)
    wishes = RegressOptions(noisy, ("x",), "y", bandwidth="0.5")
    ax = draw(wishes, fit_file(wishes)).axes[0]
    assert len(ax.collections[0].get_offsets()) == 50
    assert ax.texts[0].get_text() == "50 of 120 samples are drawn"
