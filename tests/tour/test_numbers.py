"""The CSV files hold the numbers of the figure."""

import csv

import pytest

from regard.tour.numbers import write


@pytest.fixture
def tables(fits, tmp_path):
    files = write(fits, tmp_path)
    return {file.stem: list(csv.reader(file.read_text(encoding="utf-8").splitlines())) for file in files}


def floats(column):
    return [float(cell) for cell in column]


def test_samples(fits, tables):
    header, *rows = tables["samples"]
    assert header == ["x", "y"]
    assert floats(row[1] for row in rows) == pytest.approx(fits.y.tolist(), abs=1e-6)


def test_a_column_of_fits_for_every_width(fits, tables):
    header, *rows = tables["fits"]
    assert header == ["x", "truth", "width 0.1", "width 0.35", "width 1"]
    for index, width in enumerate(fits.by_width, start=2):
        assert floats(row[index] for row in rows) == pytest.approx(fits.by_width[width].tolist(), abs=1e-6)


def test_a_row_of_weights_for_every_place(fits, tables):
    header, *rows = tables["weights"]
    assert floats(header[1:]) == pytest.approx(fits.x.tolist(), abs=1e-6)
    assert floats(row[0] for row in rows) == pytest.approx(fits.places.tolist(), abs=1e-6)
    assert floats(rows[7][1:]) == pytest.approx(fits.attended.weights()[7].tolist(), abs=1e-6)
