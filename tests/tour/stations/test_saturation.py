"""Station 4: scores grow with sqrt(D), and what is drawn is what was measured."""

import pytest

from regard.experiments.scores import DIMENSIONS
from regard.tour.stations.saturation import KEYS


def test_the_shown_scores_spread_with_the_dimension(stations):
    scores = stations["saturation"].data["scores"]
    assert [len(one) for one in scores] == [KEYS] * len(DIMENSIONS)
    assert all(one == sorted(one, reverse=True) for one in scores)
    mean_square = [sum(score**2 for score in one) / KEYS / dim for one, dim in zip(scores, DIMENSIONS, strict=True)]
    assert sum(mean_square) / len(mean_square) == pytest.approx(1, abs=0.5)


def test_charts_and_table_agree(stations):
    (table,), charts = stations["saturation"].tables, stations["saturation"].charts
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    for place, score in enumerate(("dot", "scaled dot")):
        expected = {row["dim"]: row for row in rows if row["score"] == score}
        assert dict(charts["entropy"].series[place].points) == {dim: row["entropy"] for dim, row in expected.items()}
        assert dict(charts["gradient"].series[place].points) == {dim: row["gradient"] for dim, row in expected.items()}
    assert charts["entropy"].series[0].points[-1][1] < 0.1 < 0.8 < charts["entropy"].series[1].points[-1][1]
