"""Predictions read back exactly, at the rows of the data, on a grid, and elsewhere."""

import csv

import numpy as np
from tests.refuses import refuses

from regard.regression import csv_report
from regard.regression.csv_report import RegressOptions, fit_file


def written(wishes, elsewhere=None):
    fitted = fit_file(wishes)
    predicted = csv_report.predict(wishes, fitted, elsewhere)
    csv_report.write_predictions(wishes, fitted, predicted)
    table = list(csv.DictReader(wishes.predictions.read_text(encoding="utf-8").splitlines()))
    assert len(table) == len(predicted.places)
    return fitted, {name: np.array([float(row[name]) for row in table]) for name in table[0]}, predicted.notes


def test_at_the_rows_of_the_data(noisy, tmp_path):
    fitted, table, _ = written(RegressOptions(noisy, ("x",), "y", bandwidth="0.5", predictions=tmp_path / "p.csv"))
    assert list(table) == ["x", "y", "predicted y", "lower 95%", "upper 95%", "standard error", "log mass"]
    np.testing.assert_array_equal(table["x"], fitted.x[:, 0])
    np.testing.assert_array_equal(table["y"], fitted.y)
    np.testing.assert_array_equal(table["predicted y"], fitted.model.predict(fitted.x))
    np.testing.assert_array_equal(table["upper 95%"], fitted.model.confidence_band(fitted.x).upper)
    np.testing.assert_array_equal(table["log mass"], fitted.model.log_mass(fitted.x))


def test_on_a_grid_of_two_columns_with_another_level(noisy, tmp_path):
    wishes = RegressOptions(
        noisy, ("x", "other"), "y", bandwidth="1,2", level=0.5, grid=4, predictions=tmp_path / "p.csv"
    )  # fmt: skip
    fitted, table, _ = written(wishes)
    assert list(table)[:4] == ["x", "other", "predicted y", "lower 50%"]
    assert len(table["x"]) == 16
    at = np.stack([table["x"], table["other"]], -1)
    np.testing.assert_allclose(table["predicted y"], fitted.model.predict(at), rtol=1e-12)


def test_an_empty_window_is_nan_with_a_note(noisy, tmp_path):
    wishes = RegressOptions(noisy, ("x",), "y", kernel="boxcar", bandwidth="0.5", predictions=tmp_path / "p.csv",
                    predict_at=tmp_path / "elsewhere.csv")  # fmt: skip
    _, table, notes = written(wishes, elsewhere=np.array([[3.0], [99.0]]))
    assert np.isnan(table["predicted y"]).tolist() == [False, True]
    assert table["log mass"][1] == -np.inf
    assert any("1 of 2 queries have no observation" in note for note in notes)


def test_a_file_that_cannot_be_written_is_refused(noisy, tmp_path):
    wishes = RegressOptions(noisy, ("x",), "y", bandwidth="0.5", predictions=tmp_path)
    fitted = fit_file(wishes)
    predicted = csv_report.predict(wishes, fitted, None)
    with refuses("predictions", "(Is a directory)", "a file that can be"):
        csv_report.write_predictions(wishes, fitted, predicted)
