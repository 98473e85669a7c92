"""The files hold the numbers of the stations."""

import csv

from regard.tour.files import as_csv
from regard.tour.station import Table


def test_a_table_reads_back_as_it_was():
    table = Table("t", ("name", "number"), [("a, b", 0.1 + 0.2), ('say "x"', None)])
    header, *rows = csv.reader(as_csv(table).splitlines())
    assert header == ["name", "number"]
    assert rows == [["a, b", "0.30000000000000004"], ['say "x"', ""]]
    assert float(rows[0][1]) == 0.1 + 0.2


def test_every_csv_is_its_table(visit):
    for station in visit.stations:
        for table in station.tables:
            path = visit.page.parent / f"{table.name}.csv"
            assert path.read_text(encoding="utf-8") == as_csv(table)
            assert all(len(row) == len(table.header) for row in table.rows), table.name


def test_figures_keep_their_text(visit):
    for path in visit.page.parent.glob("*.svg"):
        assert "<text" in path.read_text(encoding="utf-8"), path.name
