"""Costs of scores: parameters by their formulas, memory and speed of every one."""

from tests.translation.lab.settings import DOT

from regard.translation.lab.competitors import ADDITIVE, EVERY, NONE
from regard.translation.lab.score_costs import measure_score_costs

HIDDEN = 8


def test_parameters_by_the_formulas_of_the_chapter():
    costs = measure_score_costs(EVERY, batch=2, queries=3, keys=5, hidden=HIDDEN)
    found = {str(one.competitor): one.parameters for one in costs.scores}
    pairs = HIDDEN * 2 * HIDDEN
    assert found["dot"] == found["scaled dot"] == found["squared distance"] == pairs  # keys to the query's size
    assert found["bilinear"] == pairs  # eq. 10
    assert found["additive"] == HIDDEN * (HIDDEN + 2 * HIDDEN + 1)  # eq. 12
    assert NONE not in [one.competitor for one in costs.scores]
    assert all(one.speed > 0 and one.bytes > 0 for one in costs.scores)
    assert "query size 8, key size 16" in str(costs)
    assert len(costs.table().rows) == len(EVERY) - 1


def test_additive_takes_more_memory_and_parameters_than_a_dot_product():
    """Speeds are not compared, because a busy machine changes their order."""
    costs = measure_score_costs((DOT, ADDITIVE))
    found = {str(one.competitor): one for one in costs.scores}
    assert found["additive"].bytes > 1.5 * found["scaled dot"].bytes
    assert found["additive"].parameters > found["scaled dot"].parameters
