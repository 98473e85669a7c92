"""Each observation is predicted from the others, also where it holds nearly all the mass."""

import numpy as np
import pytest
import torch
from tests.regression.curves import KERNELS, left_out, wave

from regard.regression import criteria
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations


def smoother(x, y, kernel, width, degree, weight=None):
    weight = None if weight is None else torch.tensor(weight)
    return Smoother(Observations(torch.tensor(x), torch.tensor(y).unsqueeze(-1), weight), kernel, width, degree)


@pytest.mark.parametrize("exclude", [0, 3])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", [0.1, 0.3, 2.0])
def test_the_formula(kernel, degree, width, exclude):
    x, y = wave(31)
    found = criteria.leave_one_out(smoother(x, y, kernel, width, degree), exclude)
    expected = left_out(x, y, kernel, width, degree=degree, exclude=exclude)
    trusted = np.ones(31, dtype=bool) if degree == 0 else ~one_key_holds_the_window(x, kernel, width, exclude)
    assert trusted.sum() >= 10
    np.testing.assert_allclose(found.mean[trusted, 0], expected[trusted], rtol=1e-7)


def one_key_holds_the_window(x, kernel, width, exclude):
    """(rows,): whether the line is not determined: regard's slope is then 0, that of np.linalg.lstsq is not."""
    mass = KERNELS[kernel](np.abs(x - x.T) / width)
    rows = np.arange(len(x))
    mass[np.abs(rows - rows[:, None]) <= exclude] = 0
    mass.sort(1)
    return (mass[:, -1] > 0) & (mass[:, -2] <= 1e-12 * mass[:, -1])


def test_no_digit_is_lost_where_the_row_is_nearly_alone():
    x, y = wave(31)
    x = np.sort(x, 0)
    found = criteria.leave_one_out(smoother(x, y, "gaussian", 1e-4, 0), 0).mean[:, 0]
    distance = np.abs(x - x.T) + np.diag(np.full(31, np.inf))
    np.testing.assert_allclose(found, y[distance.argmin(1)], rtol=1e-12)


@pytest.mark.parametrize("degree", [0, 1])
def test_one_copy_goes_the_others_stay(degree):
    x, y = wave(23)
    weight = np.random.default_rng(0).integers(1, 4, 23)
    counted = criteria.leave_one_out(smoother(x, y, "biweight", 0.5, degree, weight.astype(float)), 0)
    repeated = criteria.leave_one_out(smoother(x.repeat(weight, 0), y.repeat(weight), "biweight", 0.5, degree), 0)
    np.testing.assert_allclose(counted.mean.numpy().repeat(weight, 0), repeated.mean, rtol=1e-9)


def test_a_row_alone_is_predicted_by_the_mean_of_the_others():
    x, y = np.array([[0.0], [0.1], [9.0], [20.0]]), np.array([1.0, 2.0, 4.0, 9.0])
    found = criteria.leave_one_out(smoother(x, y, "boxcar", 0.5, 0), 0)
    assert found.isolated.tolist() == [False, False, True, True]
    np.testing.assert_allclose(found.mean[:, 0], [2.0, 1.0, 4.0, 7 / 3])
    found = criteria.leave_one_out(smoother(x, y, "boxcar", 0.5, 0), 1)
    assert found.isolated.all()
    np.testing.assert_allclose(found.mean[:, 0], [6.5, 9.0, 1.0, 1.5])
