"""Intervals are Student's, and every result writes its files."""

import csv
import json
import math
import random
from dataclasses import dataclass
from typing import ClassVar

import pytest

from regard.experiments.result import NORMAL, Finding, Interval, Table, columns, quantile
from regard.plots import canvas


def test_two_numbers_have_the_interval_of_one_degree_of_freedom():
    found = Interval.of([0.0, 2.0])
    assert found.mean == 1.0
    assert found.half == pytest.approx(12.7062)  # the standard error is 1
    assert (found.lowest, found.highest) == (0.0, 2.0)


def test_one_seed_has_no_interval():
    assert Interval.of([0.5]).half is None
    assert Interval.of([0.5]).text(1, 100) == "50.0"


@pytest.mark.parametrize(("degrees", "known"), [(1, 12.706), (2, 4.303), (10, 2.228), (11, 2.201), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(degrees, known):
    assert quantile(degrees) == pytest.approx(known, rel=1e-3)


def test_quantiles_fall_to_the_normal_one():
    found = [quantile(degrees) for degrees in range(1, 200)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(NORMAL, rel=1e-2)


def test_three_normal_numbers_cover_their_mean_95_times_in_100():
    draw = random.Random(1)
    samples = [Interval.of([draw.gauss(3.0, 2.0) for _ in range(3)]) for _ in range(4000)]
    covered = sum(abs(found.mean - 3.0) <= (found.half or 0.0) for found in samples) / len(samples)
    assert covered == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / len(samples)))


@dataclass(frozen=True)
class Weighed(Finding):
    name: ClassVar[str] = "weighed"

    share: float

    def __str__(self):
        return f"{self.share}"

    def table(self):
        return Table(("what", "share", "more"), (("this", self.share, None),))

    def to_dict(self):
        return {"share": self.share}

    def draw(self):
        return canvas(1, 1)[0]


def test_four_files_that_read_back_exactly(tmp_path):
    files = Weighed(1 / 3).save(tmp_path)
    assert [file.name for file in files] == [f"weighed.{ending}" for ending in ("csv", "json", "svg", "png")]
    with files[0].open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert float(row["share"]) == 1 / 3
    assert row["more"] == ""
    assert json.loads(files[1].read_text(encoding="utf-8")) == {"share": 1 / 3}
    assert "<svg" in files[2].read_text(encoding="utf-8")
    assert files[3].read_bytes().startswith(b"\x89PNG")


def test_columns_are_as_wide_as_they_need():
    assert columns([("a", "bb"), ("long", "c")]) == "  a     bb\n  long   c"
