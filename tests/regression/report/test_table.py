"""The table tells what was fitted and how it was chosen."""

import pytest

from regard.regression.csv_report import RegressOptions, fit_file, format_table


def told(wishes):
    fitted = fit_file(wishes)
    lines = format_table(wishes, fitted).splitlines()
    return fitted, {line[:30].strip(): line[30:] for line in lines}


def test_every_number_is_the_fits(noisy):
    fitted, said = told(RegressOptions(noisy, ("x",), "y"))
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
    _, said = told(RegressOptions(noisy, ("x", "other"), "y", bandwidth=bandwidth, degree=1))
    assert said["regression"] == "y on x, other, local lines"
    assert said["criterion"] == criterion
    assert width is None or said["bandwidth"] == width


def test_rows_left_out_are_counted(noisy):
    with noisy.open("a", encoding="utf-8") as file:
        file.write(",1,2,3,\n")
    _, said = told(RegressOptions(noisy, ("x",), "y", bandwidth="0.5", drop_missing=True))
    assert said["rows"] == "120, and 1 left out since a number was missing"
