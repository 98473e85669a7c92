"""`regard regress`: options, fit, table, predictions and figure of a CSV file."""

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.refuses import refuses

from regard.regression import NadarayaWatson, Nearest, csv_report
from regard.regression import csv_report as module
from regard.regression.csv_columns import read_columns
from regard.regression.csv_report import (
    RegressOptions,
    bandwidth_of,
    check_options,
    draw,
    fit_file,
    format_table,
    grid_over,
    read_queries,
    run,
)

WISHES = RegressOptions(Path("data.csv"), ("a", "b"), "y")


def test_words_and_numbers():
    assert bandwidth_of("loo", 1) == "loo"
    assert bandwidth_of("0.25", 2) == 0.25
    assert bandwidth_of("nearest:20", 1) == Nearest(20)
    assert bandwidth_of("nearest:loo", 1) == Nearest("loo")
    np.testing.assert_array_equal(bandwidth_of("0.5, 2", 2), [0.5, 2.0])


@pytest.mark.parametrize("text", ["wide", "-1", "0", "nan", "inf", "1,2,3", "nearest:0", "nearest:few", "nearest", ""])
def test_refuses_what_is_no_bandwidth(text):
    with refuses("bandwidth", "2 of them"):
        bandwidth_of(text, 2)


@pytest.mark.parametrize(
    ("changed", "argument", "word"),
    [
        ({"grid": 1, "predictions": Path("p.csv")}, "grid", "at least 2"),
        ({"grid": 5, "predict_at": Path("q.csv"), "predictions": Path("p.csv")}, "grid", "5 and --predict-at"),
        ({"grid": 5}, "predictions", "no file, but places"),
        ({"level": 95.0}, "level", "a number between 0 and 1"),
        ({"variance": "none"}, "variance", "'none'"),
        ({"bandwidth": "wide"}, "bandwidth", "'wide'"),
        ({"out": Path("no/such/fit.svg")}, "out", "(there is no folder no"),
        ({"predictions": Path()}, "predictions", ". (it is a folder)"),
    ],
)
def test_refuses_before_a_file_is_read(changed, argument, word):
    with refuses(argument, word):
        check_options(replace(WISHES, **changed))


def test_what_is_in_order_passes():
    check_options(replace(WISHES, weights="w", grid=5, predictions=Path("p.csv"), out=Path("fit.svg")))


def test_a_grid_has_every_combination_the_last_column_fastest():
    x = np.array([[0.0, 10.0], [2.0, 30.0], [1.0, 20.0]])
    expected = [[a, b] for a in (0.0, 1.0, 2.0) for b in (10.0, 20.0, 30.0)]
    assert grid_over(x, 3).tolist() == expected


def test_rows_of_another_file_by_the_names_of_x(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("b,z,a\n1,text,2\n3,text,4\n", encoding="utf-8")
    options = RegressOptions(Path("data.csv"), ("a", "b"), "y", predict_at=other)
    assert read_queries(options).tolist() == [[2.0, 1.0], [4.0, 3.0]]
    other.write_text("a,b\n", encoding="utf-8")
    with refuses("predict_at", "no row of numbers in other.csv"):
        read_queries(options)


def test_nowhere_else_unless_it_is_asked_for():
    assert read_queries(RegressOptions(Path("data.csv"), ("a",), "y")) is None


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


def table_lines(options):
    fitted = fit_file(options)
    lines = format_table(options, fitted).splitlines()
    return fitted, {line[:30].strip(): line[30:] for line in lines}


def test_every_number_is_the_fits(noisy):
    fitted, said = table_lines(RegressOptions(noisy, ("x",), "y"))
    assert said["rows"] == "120"
    assert float(said["bandwidth"]) == pytest.approx(fitted.model.bandwidth_, rel=1e-5)
    assert said["criterion"] == f"loo, {fitted.model.criterion_:.6g} at this bandwidth"
    assert said["effective degrees of freedom"] == f"{fitted.model.effective_degrees_of_freedom_:.2f}"
    assert said["AICc"] == f"{fitted.model.aicc_:.5g}"
    assert said["leave-one-out error"].startswith(f"{fitted.left_out_error:.6g}")
    assert said["R²"].startswith(f"{fitted.r2:.4f} of the rows themselves, {fitted.left_out_r2:.4f} left out")
    assert said["rows alone in their window"] == "0"


@pytest.mark.parametrize(
    ("bandwidth", "width", "criterion"),
    [
        ("0.5,2", "0.5, 2", "none: the bandwidth was given"),
        ("scott", None, "none: the bandwidth was a rule"),
        ("nearest:15", "to the nearest 15 rows, at each place anew", "none: the bandwidth was given"),
    ],
)
def test_widths_that_no_criterion_chose(noisy, bandwidth, width, criterion):
    _, said = table_lines(RegressOptions(noisy, ("x", "other"), "y", bandwidth=bandwidth, degree=1))
    assert said["regression"] == "y on x, other, local lines"
    assert said["criterion"] == criterion
    assert width is None or said["bandwidth"] == width


def test_rows_left_out_are_counted(noisy):
    with noisy.open("a", encoding="utf-8") as file:
        file.write(",1,2,3,\n")
    _, said = table_lines(RegressOptions(noisy, ("x",), "y", bandwidth="0.5", drop_missing=True))
    assert said["rows"] == "120, and 1 left out since a number was missing"


def written_predictions(options, elsewhere=None):
    fitted = fit_file(options)
    predicted = csv_report.predict(options, fitted, elsewhere)
    csv_report.write_predictions(options, fitted, predicted)
    table = list(csv.DictReader(options.predictions.read_text(encoding="utf-8").splitlines()))
    assert len(table) == len(predicted.places)
    return fitted, {name: np.array([float(row[name]) for row in table]) for name in table[0]}, predicted.notes


def test_at_the_rows_of_the_data(noisy, tmp_path):
    fitted, table, _ = written_predictions(
        RegressOptions(noisy, ("x",), "y", bandwidth="0.5", predictions=tmp_path / "p.csv")
    )
    assert list(table) == ["x", "y", "predicted y", "lower 95%", "upper 95%", "standard error", "log mass"]
    np.testing.assert_array_equal(table["x"], fitted.x[:, 0])
    np.testing.assert_array_equal(table["y"], fitted.y)
    np.testing.assert_array_equal(table["predicted y"], fitted.model.predict(fitted.x))
    np.testing.assert_array_equal(table["upper 95%"], fitted.model.confidence_band(fitted.x).upper)
    np.testing.assert_array_equal(table["log mass"], fitted.model.log_mass(fitted.x))


def test_on_a_grid_of_two_columns_with_another_level(noisy, tmp_path):
    options = RegressOptions(
        noisy, ("x", "other"), "y", bandwidth="1,2", level=0.5, grid=4, predictions=tmp_path / "p.csv"
    )  # fmt: skip
    fitted, table, _ = written_predictions(options)
    assert list(table)[:4] == ["x", "other", "predicted y", "lower 50%"]
    assert len(table["x"]) == 16
    at = np.stack([table["x"], table["other"]], -1)
    np.testing.assert_allclose(table["predicted y"], fitted.model.predict(at), rtol=1e-12)


def test_an_empty_window_is_nan_with_a_note(noisy, tmp_path):
    options = RegressOptions(noisy, ("x",), "y", kernel="boxcar", bandwidth="0.5", predictions=tmp_path / "p.csv",
                    predict_at=tmp_path / "elsewhere.csv")  # fmt: skip
    _, table, notes = written_predictions(options, elsewhere=np.array([[3.0], [99.0]]))
    assert np.isnan(table["predicted y"]).tolist() == [False, True]
    assert table["log mass"][1] == -np.inf
    assert any("1 of 2 queries have no observation" in note for note in notes)


def test_a_file_that_cannot_be_written_is_refused(noisy, tmp_path):
    options = RegressOptions(noisy, ("x",), "y", bandwidth="0.5", predictions=tmp_path)
    fitted = fit_file(options)
    predicted = csv_report.predict(options, fitted, None)
    with refuses("predictions", "(Is a directory)", "a file that can be"):
        csv_report.write_predictions(options, fitted, predicted)


def test_one_column_is_a_curve_with_its_band(noisy):
    options = RegressOptions(noisy, ("x",), "y", bandwidth="0.5", level=0.9)
    fitted = fit_file(options)
    drawn = draw(options, fitted)
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
    options = RegressOptions(noisy, ("x", "other"), "y", kernel="cosine_kernel", bandwidth="nearest:30")
    fitted = fit_file(options)
    ax, scale = draw(options, fitted).axes
    np.testing.assert_array_equal(ax.collections[-1].get_offsets(), fitted.x)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "other")
    assert scale.get_ylabel() == "y: map fitted, dots observed"
    assert ax.get_title(loc="left") == "cosine kernel, nearest 30 rows"


def test_of_many_samples_some_are_drawn_and_it_says_so(noisy, monkeypatch):
    monkeypatch.setattr(module, "MOST_POINTS", 50)
    options = RegressOptions(noisy, ("x",), "y", bandwidth="0.5")
    ax = draw(options, fit_file(options)).axes[0]
    assert len(ax.collections[0].get_offsets()) == 50
    assert ax.texts[0].get_text() == "50 of 120 samples are drawn"


def test_leaves_figure_and_predictions_behind(noisy, tmp_path, capsys):
    out, predicted = tmp_path / "fit.svg", tmp_path / "p.csv"
    run(RegressOptions(noisy, ("x",), "y", kernel="boxcar", bandwidth="0.01", grid=7, out=out, predictions=predicted,
               variance="global"))  # fmt: skip
    printed = capsys.readouterr().out
    assert "leave-one-out error" in printed
    assert "note: " in printed
    assert f"wrote {out}" in printed
    assert f"wrote {predicted}, 7 rows" in printed
    assert "not of the true curve</text>" in out.read_text(encoding="utf-8")


def test_three_columns_have_no_figure_and_it_says_so(noisy, tmp_path, capsys):
    out = tmp_path / "fit.svg"
    run(RegressOptions(noisy, ("x", "other", "count"), "y", bandwidth="1", out=out))
    assert "no figure: a fit on 3 columns has no picture" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("changed", "argument", "word"),
    [
        ({"out": "fit.jpeg"}, "out", "'fit.jpeg'"),
        ({"kernel": "gausian"}, "kernel", "'gausian'"),
        ({"degree": 2}, "degree", "2"),
        ({"empty": "zero"}, "empty", "'zero'"),
        ({"predict_at": "noisy.csv", "x": ("z",)}, "x", "one of the columns 'x', 'other'"),
    ],
)
def test_nothing_is_written_or_told_where_something_is_wrong(noisy, tmp_path, capsys, changed, argument, word):
    for name in ("out", "predict_at"):
        if name in changed:
            changed = {**changed, name: tmp_path / changed[name]}
    options = replace(RegressOptions(noisy, ("x",), "y", predictions=tmp_path / "p.csv"), **changed)
    with refuses(argument, word):
        run(options)
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["noisy.csv"]


def test_files_are_written_before_anybody_may_stop_listening(noisy, tmp_path, monkeypatch):
    def leave(*_):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", leave)
    with pytest.raises(BrokenPipeError):
        run(
            RegressOptions(
                noisy, ("x",), "y", bandwidth="1", out=tmp_path / "fit.svg", predictions=tmp_path / "fit.csv"
            )
        )
    assert (tmp_path / "fit.svg").exists()
    assert (tmp_path / "fit.csv").exists()
