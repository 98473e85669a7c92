"""The number of neighbours is chosen by a criterion."""

import numpy as np
import pytest
from tests.refuses import refuses
from tests.regression.curves import estimate, wave

from regard.regression import BandwidthWarning, NadarayaWatson, Nearest


def test_the_best_number_of_neighbours():
    x, y = wave(43)
    model = NadarayaWatson("tricube", Nearest("loo")).fit(x, y)
    errors = {}
    for k in range(2, 43):
        found = []
        for row in range(43):
            others = np.arange(43) != row
            width = np.sort(np.abs(x[others, 0] - x[row, 0]))[k - 1]
            found.append(estimate(x[row], x[others], y[others], "tricube", width))
        errors[k] = np.mean((y - found) ** 2)
    assert model.criterion_ == pytest.approx(errors[model.bandwidth_.k], rel=1e-9)
    assert model.criterion_ <= sorted(errors.values())[2], "among the three best of all k"
    assert model.trials_.tried.tolist() == sorted(set(model.trials_.tried.tolist()))


def test_the_edge_is_told():
    x = np.linspace(0, 1, 30).reshape(-1, 1)
    with pytest.warns(BandwidthWarning, match="at the edge of what was tried, 2 neighbours"):
        NadarayaWatson(bandwidth=Nearest("loo")).fit(x, np.sin(40 * x[:, 0]))


def test_a_criterion_that_is_nowhere_finite_is_refused():
    with refuses("bandwidth", "'aicc'", "(3 rows)"):
        NadarayaWatson(bandwidth=Nearest("aicc")).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
