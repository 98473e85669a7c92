"""Station 5: every score with its quality, cost and parameters."""

import pytest

from regard.experiments.variants import EVERY, NONE
from regard.tour.results.laboratory import compared


def test_a_row_for_every_score_the_laboratory_compares(stations):
    scores = stations["scores"]
    assert [one["name"] for one in scores.data["scores"]] == [str(one) for one in EVERY if one != NONE]
    for row, one in zip(scores.tables[0].rows, scores.data["scores"], strict=True):
        assert row[0] == one["name"]
        assert one["parameters"][0] == row[1] > 0
        assert one["speed"][0] == pytest.approx(row[2] / 1000)
        assert one["exact"][0] == pytest.approx(100 * row[4])


def test_quality_is_that_of_the_kept_trials(stations):
    trials = [trial.exact for trial in compared("lab-comparison").trials if trial.competitor == EVERY[-2]]
    (row,) = (row for row in stations["scores"].tables[0].rows if row[0] == "additive")
    assert row[4] == pytest.approx(sum(trials) / len(trials))
    assert len(trials) == int(stations["scores"].facts["seeds"]) == 3


def test_two_bars_a_score_for_the_two_rules(stations):
    bars = stations["scores"].charts["rules"].bars
    assert [bar.name for bar in bars if bar.name] == ["bilinear", "additive", "additive, 8×"]
    assert [bar.kind for bar in bars] == ["c0", "c1"] * 3
    rows = stations["scores"].tables[1].rows
    found = [row[-1] for row in rows if row[:2] == ("bilinear rule", "bilinear")]
    assert bars[0].value == pytest.approx(sum(found) / len(found))
