"""Where a fit is asked: grids over the data, and rows of another file."""

from pathlib import Path

import numpy as np
from tests.refuses import refuses

from regard.regression.csv_report import RegressOptions, grid_over, read_queries


def test_a_grid_has_every_combination_the_last_column_fastest():
    x = np.array([[0.0, 10.0], [2.0, 30.0], [1.0, 20.0]])
    expected = [[a, b] for a in (0.0, 1.0, 2.0) for b in (10.0, 20.0, 30.0)]
    assert grid_over(x, 3).tolist() == expected


def test_rows_of_another_file_by_the_names_of_x(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("b,z,a\n1,text,2\n3,text,4\n", encoding="utf-8")
    wishes = RegressOptions(Path("data.csv"), ("a", "b"), "y", predict_at=other)
    assert read_queries(wishes).tolist() == [[2.0, 1.0], [4.0, 3.0]]
    other.write_text("a,b\n", encoding="utf-8")
    with refuses("predict_at", "no row of numbers in other.csv"):
        read_queries(wishes)


def test_nowhere_else_unless_it_is_asked_for():
    assert read_queries(RegressOptions(Path("data.csv"), ("a",), "y")) is None
