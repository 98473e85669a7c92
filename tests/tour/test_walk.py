"""`tour.run`: one call computes, draws and writes."""

import pytest
from tests.refuses import refuses

from regard import tour

ORDER = ["query", "width", "norms", "saturation", "scores", "bottleneck", "learning", "heads", "speed", "errata"]


def test_ten_stations_in_their_order(visit):
    assert [station.slug for station in visit.stations] == ORDER


def test_writes_the_page_and_the_files_behind_it(visit):
    assert visit.files[0] == visit.page
    assert len(set(visit.files)) == len(visit.files)
    assert {file.name for file in visit.files} == {path.name for path in visit.page.parent.iterdir()}
    names = {file.name for file in visit.files}
    for station in visit.stations:
        assert {f"{table.name}.csv" for table in station.tables} <= names
        assert {f"{name}{ending}" for name in station.figures for ending in (".svg", ".png")} <= names


def test_every_station_has_numbers_and_all_but_the_errata_a_figure(visit):
    assert all(station.tables for station in visit.stations)
    assert [station.slug for station in visit.stations if not station.figures] == ["errata"]


def test_tells_how_far_it_is(walked):
    told = walked[1]
    shares = [event.share for event in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1)
    assert told[-1].done == told[-1].works
    assert any("update" in event.under_way for event in told)


def test_refuses_a_file_where_the_folder_should_be(tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    with refuses("out", "exists", "folder", "taken"):
        tour.run(taken, tour.QUICK)
