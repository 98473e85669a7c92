"""Every curve of the tour has the right labels on its axes, and its points lie inside them."""

import pytest

from regard.tour.charts import Bars, Curves

READ = ("numbers in the list", "read without a mistake")
LABELS = {  # of a chart on the page: along x, along y
    "norms: moved": ("standard deviation of |k|²", "share of weight moved"),
    "saturation: entropy": ("D", "entropy, as a share of even weights"),
    "saturation: gradient": ("D", "norm of ∂o/∂s, median"),
    "bottleneck: ways": READ,
    "bottleneck: sizes": READ,
    "learning: mass": ("updates", "attention on the right letters"),
    "speed: rank": ("products", "largest error"),
}
FIGURES = {  # of the panels of a file, from left to right
    "query: query": [("x", "y")],
    "norms: norms": [("standard deviation of |k|²", "share of weight on other keys"), ("dimension D", "")],
    "saturation: saturation": [("dimension D", "")] * 3,
    "scores: scores-by-length": [
        ("length of the source, in words", "exact, %"),
        ("● mass on the right span   ○ sharpness   (%)", ""),
    ],
    "scores: rules": [("right key found, %", "")] * 2,
    "bottleneck: bottleneck": [READ] * 2,
}


def curves(stations):
    named = {f"{slug}: {name}": chart for slug, one in stations.items() for name, chart in one.charts.items()}
    return {name: chart for name, chart in named.items() if isinstance(chart, Curves)}


def test_both_axes_of_every_chart_are_labelled(stations):
    found = {name: (chart.x_label, chart.y_label) for name, chart in curves(stations).items()}
    kept = {name: labels for name, labels in found.items() if name.startswith("speed: kept.")}
    units = {"time": "seconds", "memory": "bytes"}
    assert kept == {name: ("tokens", units[name.removeprefix("speed: kept.").partition(",")[0]]) for name in kept}
    assert {name: labels for name, labels in found.items() if name not in kept} == LABELS


def test_points_lie_inside_the_axes(stations):
    """Exchanged axes would leave theirs, because no chart has the same range on both."""
    for name, chart in curves(stations).items():
        (left, right), (low, high) = chart.x, chart.y
        assert (left, right) != (low, high)
        points = [(x, y) for one in chart.series for x, y in one.points]
        assert points, name
        assert [x for x, _ in points if not left <= x <= right] == [], name
        most = 1.5 * high if name == "speed: rank" else high  # one product is off by up to 1.41, drawn at 1
        assert [y for _, y in points if not low <= y <= most] == [], name


@pytest.mark.parametrize("name", FIGURES)
def test_panels_of_the_files_are_labelled(stations, name):
    slug, _, figure = name.partition(": ")
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in stations[slug].figures[figure].axes] == FIGURES[name]


def test_panels_of_the_measured_speed_are_labelled_as_the_charts(stations):
    """A bar has a length along x only; the last panel may stay empty."""
    station = stations["speed"]
    labels = [("seconds", "") if isinstance(c, Bars) else (c.x_label, c.y_label) for c in station.charts.values()]
    drawn = [(ax.get_xlabel(), ax.get_ylabel()) for ax in station.figures["speed"].axes]
    assert drawn[: len(labels)] == labels
    assert set(drawn[len(labels) :]) <= {("", "")}
