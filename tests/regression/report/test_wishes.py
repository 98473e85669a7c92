"""What a user asks for: words into bandwidths, and what can be refused before a file is read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.refuses import refuses

from regard.regression import Nearest
from regard.regression.csv_report import RegressOptions, bandwidth_of, check_options

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
