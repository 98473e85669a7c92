"""Wilson's interval, judged by statsmodels."""

import pytest
from statsmodels.stats.proportion import proportion_confint

from regard.tour.shares import Share


@pytest.mark.parametrize(("hits", "count"), [(0, 7), (7, 7), (97, 100), (300, 600), (1, 1)])
def test_interval(hits, count):
    low, high = proportion_confint(hits, count, alpha=0.05, method="wilson")
    assert Share(hits, count).interval == pytest.approx((low, high), abs=1e-12)


def test_row_and_text():
    low, high = Share(97, 100).interval
    assert Share(97, 100).row() == [0.97, low, high, 100]
    assert Share(97, 100).text() == "97.0% (91.5 to 99.0, n = 100)"
