"""Station 3: keys around a circle, and the measured cost of dropping norms."""

import math

import pytest

from regard.tour.stations.norms import KEYS, QUERIES, RADIUS


def test_all_keys_begin_with_one_norm(stations):
    data = stations["norms"].data
    assert [len(data["queries"]), len(data["keys"]), len(data["stretch"])] == [QUERIES, KEYS, KEYS]
    assert [math.hypot(*key) for key in data["keys"] + data["queries"]] == pytest.approx([RADIUS] * (KEYS + QUERIES))


def test_stretches_go_both_ways_and_leave_every_key_its_direction(stations):
    stretch = stations["norms"].data["stretch"]
    assert max(map(abs, stretch)) == pytest.approx(1)
    assert min(stretch) < -0.5 < 0.5 < max(stretch)


def test_the_chart_draws_the_table(stations):
    (table,), chart = stations["norms"].tables, stations["norms"].charts["moved"]
    for place, series in enumerate(chart.series, start=1):
        assert [tuple(point) for point in series.points] == [(row[0], row[place]) for row in table.rows]
    assert chart.series[0].points[0][1] == pytest.approx(0, abs=1e-12), "with one norm eq. 7 is exact"
