"""What every finding leaves behind: four files that say the same."""

import csv
import json
from dataclasses import dataclass
from typing import ClassVar

from regard.plots import canvas
from regard.translation.lab.finding import Finding, Table, columns


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
