"""Station 9: the lift's ranks, and charts of what was kept."""

import pytest

from regard.tour.charts import Bars, Curves, Series
from regard.tour.stations import speed


def test_error_falls_with_the_rank_and_reaches_what_is_asked():
    errors = speed.lift_errors(2)
    assert errors[0] == pytest.approx(1, abs=1e-3)
    assert errors[8] < 1e-3 < errors[6]
    assert speed.lift_errors(8)[26] < 1e-3 < speed.lift_errors(8)[22]


def test_the_identity_is_exact_up_to_rounding():
    assert speed.identity_error() < 1e-14


def test_several_lengths_are_curves():
    chart = speed._time_chart("GPU, forwards", [Series("textbook", [(256, 0.02), (1024, 0.3)], "c4")])
    assert isinstance(chart, Curves)
    assert chart.y == pytest.approx((0.01, 1.0))
    assert list(chart.ticks) == [256, 1024]
    assert chart.caption == "Time of one call: GPU, forwards."


def test_one_length_is_bars():
    chart = speed._time_chart(
        "CPU, forwards", [Series("textbook", [(512, 0.4)], "c4"), Series("ours", [(512, 2)], "c0")]
    )
    assert isinstance(chart, Bars)
    assert [(bar.name, bar.value, bar.text) for bar in chart.bars] == [("textbook", 0.4, "400 ms"), ("ours", 2, "2 s")]
    assert chart.caption == "Time of one call: CPU, forwards, 512 tokens."


def test_the_kept_files_are_drawn(stations):
    charts = stations["speed"].charts
    places = {name.partition(".")[0] for name in charts}
    assert places == {"rank", "kept"}
    kinds = [isinstance(chart, Bars) for chart in charts.values()]
    assert kinds == sorted(kinds), "curves before bars"
    drawn = sum(
        len(one.points) for name, chart in charts.items() if name != "rank" for one in getattr(chart, "series", [])
    )
    drawn += sum(len(getattr(chart, "bars", [])) for chart in charts.values())
    assert drawn == sum(len(table.rows) for table in stations["speed"].tables[1:])
    assert all(chart.caption for name, chart in charts.items() if name != "rank")
