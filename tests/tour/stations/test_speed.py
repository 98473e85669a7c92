"""Station 9: the lift's ranks, and result files of today and of tomorrow."""

import pytest

from regard.tour.charts import Bars, Curves
from regard.tour.stations import speed

MACHINE = {"processor": "a processor", "torch": "2.0"}


def page(*rows, device="cuda"):
    return {"device": device, "machine": MACHINE, "rows": list(rows)}


def test_error_falls_with_the_rank_and_reaches_what_is_asked():
    errors = speed.lift_errors(2)
    assert errors[0] == pytest.approx(1, abs=1e-3)
    assert errors[8] < 1e-3 < errors[6]
    assert speed.lift_errors(8)[26] < 1e-3 < speed.lift_errors(8)[22]


def test_the_identity_is_exact_up_to_rounding():
    assert speed.identity_error() < 1e-14


def test_times_are_series_over_length():
    rows = [
        {
            "batch": 8,
            "tokens": tokens,
            "hidden": 128,
            "backward": False,
            "seconds": {"textbook": {"median": tokens / 10}},
        }
        for tokens in (1024, 256)
    ]
    (series,) = speed.timed({"additive-cuda": page(*rows, {"kind": "something else"})})
    assert series == {"name": "GPU, forward, 8 × hidden 128: textbook", "points": [(256, 25.6), (1024, 102.4)]}
    assert isinstance(speed._time_chart([series]), Curves)


def test_one_length_is_drawn_as_bars_relative_to_the_textbook():
    row = {"tokens": 512, "hidden": 8, "seconds": {"textbook": {"median": 0.4}, "regard.attend": {"median": 0.1}}}
    chart = speed._time_chart(speed.timed({"additive": page(row, device="cpu")}))
    assert isinstance(chart, Bars)
    assert [bar.value for bar in chart.bars] == pytest.approx([1, 0.25])
    assert [bar.text for bar in chart.bars] == ["400 ms", "100 ms"]


def test_memory_and_errors_by_rank_where_they_were_kept():
    rows = [
        {"tokens": 64, "hidden": 8, "peak_bytes": 10},
        {"tokens": 32, "hidden": 8, "bytes": {"regard.attend": 5}},
        {"rank": 8, "promised": 1e-3, "observed": 1e-4},
    ]
    files = {"any": page(*rows)}
    assert speed.remembered(files) == [{"name": "GPU, hidden 8: regard.attend", "points": [(32, 5), (64, 10)]}]
    assert speed.by_rank(files) == [
        {"name": "promised", "points": [(8, 1e-3)]},
        {"name": "observed", "points": [(8, 1e-4)]},
    ]


def test_the_kept_files_are_drawn(stations):
    charts = stations["speed"].charts
    assert set(charts) == {"rank", "time", "memory"}
    assert stations["speed"].tables[1].rows
    assert len(charts["memory"].series) >= 2


def test_captions_and_keys_follow_what_was_kept():
    row = {"tokens": 512, "hidden": 8, "seconds": {"textbook": {"median": 0.4}, "compiled": {"median": 0.2}}}
    times = speed.timed({"additive": page(row)})
    chart = speed._time_chart(times)
    assert chart.keys == [("textbook", "c4"), ("compiled", "c3")]
    assert "one call at 512 tokens" in speed._caption(chart, times)
    longer = speed.timed({"additive": page(row, row | {"tokens": 1024})})
    assert "against the number of tokens" in speed._caption(speed._time_chart(longer), longer)
