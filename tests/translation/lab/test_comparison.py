"""From trials to standings: means over seeds, by length, in the order of the competitors."""

import pytest
from tests.translation.lab.settings import DOT, EMPTY, tiny, trials

from regard.translation.lab.comparison import compare, compare_sizes
from regard.translation.lab.competitors import ADDITIVE, NONE


@pytest.fixture
def comparison():
    return compare(tiny(), trials())


def test_standings_are_means_over_seeds(comparison):
    standings = {one.competitor: one for one in comparison.standings}
    assert list(standings) == [NONE, DOT, ADDITIVE]
    assert standings[NONE].exact.mean == pytest.approx((1 + 0.3) / 2)
    assert standings[DOT].by_length["2"].mean == pytest.approx(0.85)
    assert (standings[DOT].by_length["2"].lowest, standings[DOT].by_length["2"].highest) == (0.8, 0.9)
    assert standings[DOT].by_length["1"].mean == 1.0


def test_without_attention_there_is_nothing_to_look_at(comparison):
    nothing, dot, _ = comparison.standings
    assert nothing.on_span is nothing.sharpness is None
    assert dot.on_span is not None
    assert dot.on_span.mean == pytest.approx(0.9)


def test_the_text_has_quality_with_intervals_and_by_length(comparison):
    printed = str(comparison)
    assert "lists, 2 seeds" in printed
    assert "92.5 ± 31.8" in printed  # 4.3 is for 3 seeds; 12.7 * 0.025 for 2
    assert "scaled dot    100   85" in printed
    assert "in words" in printed


def test_the_table_has_every_trial_in_full(comparison):
    table = comparison.table()
    assert len(table.rows) == 6
    row = dict(zip(table.header, table.rows[2], strict=True))
    assert (row["model"], row["seed"], row["exact at 2"], row["on span"]) == ("scaled dot", 1, 0.8, 0.9)
    assert dict(zip(table.header, table.rows[0], strict=True))["on span"] is None


def test_sizes_go_from_small_to_large():
    sizes = compare_sizes(tiny(), trials())
    assert [one.competitor for one in sizes.standings] == [EMPTY, NONE]
    assert [sizes.hidden(one.competitor) for one in sizes.standings] == [4, 8]
    assert "8           1,000  65.0 ± " in str(sizes)
