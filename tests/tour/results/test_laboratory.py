"""Kept comparisons are read back as the laboratory's own."""

import pytest

from regard.tour.results.laboratory import compared


@pytest.mark.parametrize("name", ["lab-comparison", "lab-state-size"])
def test_every_competitor_was_tried_with_every_seed(name):
    comparison = compared(name)
    assert comparison.seeds >= 3
    assert len(comparison.trials) == comparison.seeds * len(comparison.standings)
    assert all(sum(group.count for group in trial.by_length) > 0 for trial in comparison.trials)
