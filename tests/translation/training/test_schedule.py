"""The learning rate over the updates."""

from itertools import pairwise

import pytest

from regard.translation.training.schedule import learning_rate


def rates(decay, updates=100, warmup=10):
    return [learning_rate(i, highest=2.0, warmup=warmup, decay=decay, updates=updates) for i in range(updates)]


@pytest.mark.parametrize("decay", ["none", "linear", "cosine", "inverse_sqrt"])
def test_it_rises_to_the_highest_and_never_again(decay):
    found = rates(decay)
    assert found[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(found) == pytest.approx(2.0)
    assert all(later <= earlier for earlier, later in pairwise(found[10:]))


def test_each_decay_has_its_middle_and_its_end():
    assert rates("none")[-1] == 2.0
    assert (rates("linear")[55], rates("linear")[-1]) == pytest.approx((1.0, 2 / 90))
    assert rates("cosine")[55] == pytest.approx(1.0)
    assert 0 < rates("cosine")[-1] < 0.001
    assert rates("inverse_sqrt")[39] == pytest.approx(1.0)


def test_it_stays_at_nothing_after_the_last_update_and_needs_no_warm_up():
    assert learning_rate(150, highest=2.0, warmup=10, decay="cosine", updates=100) == 0
    assert rates("linear", warmup=0)[0] == 2.0
    assert rates("inverse_sqrt", warmup=0)[3] == 1.0
