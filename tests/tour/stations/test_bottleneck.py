"""Station 6: what both models said, with what is wrong marked."""

import pytest

from regard.tour import QUICK
from regard.tour.results.laboratory import compared
from regard.tour.shares import Share
from regard.tour.stations.bottleneck import Read, by_length, corpus, marked, present


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("42 7", [("42", True), ("7", True)]),
        ("42 8", [("42", True), ("8", False)]),
        ("42", [("42", True), ("", False)]),
        ("42 7 7", [("42", True), ("7", True), ("7", False)]),
        ("", [("", False), ("", False)]),
    ],
)
def test_wrong_missing_and_superfluous_words_are_marked(said, expected):
    assert marked("42 7", said) == expected


def test_shares_by_length():
    tests = corpus(QUICK).test
    said = [one.target if int(one.label) < 3 else "0" for one in tests]
    found = by_length(tests, said)
    assert list(found) == [str(length) for length in range(1, 13)]
    each = QUICK.judged_lists // 12
    assert found["2"] == Share(each, each)
    assert found["12"] == Share(0, each)


def test_a_model_that_is_right_has_no_marks_and_a_full_curve():
    tests = corpus(QUICK).test
    right, wrong = Read(tuple(one.target for one in tests), 5), Read(tuple("x" for _ in tests), 4)
    station = present(QUICK, wrong, right)
    for lists in station.data["lists"].values():
        assert all(ok for one in lists for _, ok in one["additive"])
        assert not any(ok for one in lists for _, ok in one["none"])
    ways = {series.name: series for series in station.charts["ways"].series}
    assert {share for _, share in ways["attention"].points} == {1.0}
    assert {share for _, share in ways["a fixed state"].points} == {0.0}
    count = QUICK.judged_lists
    assert [station.facts[name] for name in ("none", "additive")] == [
        Share(0, count).text(),
        Share(count, count).text(),
    ]
    assert [station.facts[f"{name}.parameters"] for name in ("none", "additive")] == ["4", "5"]


def test_three_sizes_of_the_state_from_the_kept_results(stations):
    sizes = stations["bottleneck"].charts["sizes"].series
    assert [series.name for series in sizes] == ["state of 32", "state of 64", "state of 128"]
    trials = [trial.by_length[3].exact for trial in compared("lab-state-size").trials if trial.competitor.hidden == 32]
    assert dict(map(tuple, sizes[0].points))[4] == pytest.approx(sum(trials) / len(trials))


def test_real_outputs_are_kept(stations):
    table = stations["bottleneck"].tables[0]
    assert len(table.rows) == QUICK.judged_lists
    assert {row[0] for row in table.rows} == {str(length) for length in range(1, 13)}
