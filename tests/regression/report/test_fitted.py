"""The fit of a file is the estimator's, and what is told of it can be computed by hand."""

import math
import sys

import pytest
from tests.refuses import refuses

from regard.regression import NadarayaWatson
from regard.regression.csv_columns import read_columns
from regard.regression.csv_report import RegressOptions, fit_file


def test_is_the_estimator_on_the_columns(noisy):
    fitted = fit_file(RegressOptions(noisy, ("x",), "y", kernel="epanechnikov", bandwidth="loo"))
    numbers = read_columns("file", noisy, [("x", "x"), ("y", "y")]).numbers
    expected = NadarayaWatson("epanechnikov", "loo").fit(numbers[:, :1], numbers[:, 1])
    assert fitted.model.bandwidth_ == expected.bandwidth_
    assert fitted.left_out_error == pytest.approx(expected.criterion_)
    assert fitted.r2 == pytest.approx(expected.score(numbers[:, :1], numbers[:, 1]))
    assert fitted.left_out_r2 == pytest.approx(1 - expected.criterion_ / numbers[:, 1].var())
    assert fitted.left_out_r2 < fitted.r2


def test_a_weight_counts_repetitions(noisy, tmp_path):
    lines = noisy.read_text(encoding="utf-8").splitlines()
    repeated = [line for line in lines[1:] for _ in range(int(line.split(",")[3]))]
    twice = tmp_path / "twice.csv"
    twice.write_text("\n".join([lines[0], *repeated]), encoding="utf-8")
    weighted = fit_file(RegressOptions(noisy, ("x",), "y", bandwidth="0.4", weights="count"))
    plain = fit_file(RegressOptions(twice, ("x",), "y", bandwidth="0.4"))
    assert weighted.left_out_error == pytest.approx(plain.left_out_error)
    assert weighted.r2 == pytest.approx(plain.r2)
    assert weighted.left_out_r2 == pytest.approx(plain.left_out_r2)


def test_a_row_of_weight_zero_is_left_out(tmp_path):
    """Even where its window is empty, or where it alone makes a column vary."""
    path = tmp_path / "weighted.csv"
    path.write_text("x,z,w,y\n1,1,1,2\n1.2,1,1,3\n9,5,0,7\n1.5,1,2,1\n", encoding="utf-8")
    weighted = fit_file(RegressOptions(path, ("x",), "y", kernel="boxcar", bandwidth="0.25", weights="w"))
    path.write_text("x,z,w,y\n1,1,1,2\n1.2,1,1,3\n1.5,1,2,1\n", encoding="utf-8")
    assert weighted.r2 == fit_file(RegressOptions(path, ("x",), "y", kernel="boxcar", bandwidth="0.25", weights="w")).r2
    path.write_text("x,z,w,y\n1,1,1,2\n1.2,1,1,3\n9,5,0,7\n", encoding="utf-8")
    with refuses("x", "1 in every", "'z'"):
        fit_file(RegressOptions(path, ("x", "z"), "y", bandwidth="0.5", weights="w"))


def test_of_a_constant_y_nothing_is_explained(tmp_path):
    path = tmp_path / "constant.csv"
    path.write_text("x,y\n1,2\n2,2\n3,2\n", encoding="utf-8")
    fitted = fit_file(RegressOptions(path, ("x",), "y"))
    assert math.isnan(fitted.r2)
    assert math.isnan(fitted.left_out_r2)


def test_warnings_become_notes(tmp_path):
    path = tmp_path / "flat.csv"
    rows = "\n".join(f"{x},{(-1) ** x}" for x in range(40))
    path.write_text(f"x,y\n{rows}\n", encoding="utf-8")
    fitted = fit_file(RegressOptions(path, ("x",), "y"))
    assert any("widest bandwidth" in note for note in fitted.notes)


@pytest.mark.parametrize(
    ("text", "argument", "word"),
    [
        ("x,y\n1,2\n", "file", "1 row of numbers in data.csv"),
        ("x,y\n", "file", "0 rows of numbers"),
        ("x,y\n1,2\n1,3\n", "x", "1 in every row of column 'x'"),
        ("x,y,w\n1,2,1\n2,3,-1\n", "weights", "from -1 to 1, 1 of them positive"),
        ("x,y,w\n1,2,1\n2,3,0\n", "weights", "from 0 to 1, 1 of them positive"),
    ],
)
def test_refuses_what_cannot_be_regressed(tmp_path, text, argument, word):
    path = tmp_path / "data.csv"
    path.write_text(text, encoding="utf-8")
    with refuses(argument, word):
        fit_file(RegressOptions(path, ("x",), "y", weights="w" if "w" in text else None))


def test_without_scikit_learn_it_names_the_extra(noisy, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "regard.regression.estimators", raising=False)
    with refuses("regress", '"regard[regression]"'):
        fit_file(RegressOptions(noisy, ("x",), "y"))
