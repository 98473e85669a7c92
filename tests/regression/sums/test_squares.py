"""Sums of squared kernels are those of every pair; and which of them are cheap."""

import numpy as np
import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel

from regard.regression.sums import Observations, can_square, line, pool_squared
from regard.scores.names import KERNEL_SCORES


def rows(count, dim=1):
    return Observations(torch.rand(count, dim, dtype=torch.float64), torch.rand(count, 1, dtype=torch.float64))


@pytest.mark.parametrize("name", KERNEL_SCORES)
@pytest.mark.parametrize("width", [0.02, 0.3, 4.0])
def test_they_are_the_squares_of_every_pair(name, width):
    data, query = rows(400), torch.linspace(-0.1, 1.1, 301, dtype=torch.float64).unsqueeze(-1)
    kernel = Kernel(name, width)
    task = exact.task_of(query, data, kernel)
    assert can_square(task)
    found = pool_squared(task)
    log, taken_out = exact.log_kernel(name, query[:, 0].numpy(), data.key[:, 0].numpy(), width)
    pairs = np.exp(2 * log)
    mass = pairs.sum(-1)
    seen = mass > 0
    assert np.array_equal(found.log_mass.numpy() > -np.inf, seen)
    judged = np.log(mass[seen]) + 2 * taken_out[seen, 0]
    np.testing.assert_allclose(found.log_mass.numpy()[seen], judged.astype(float), rtol=0, atol=1e-8)
    mean = (pairs @ data.value.numpy())[seen] / mass[seen, None]
    np.testing.assert_allclose(found.mean.numpy()[seen], mean.astype(float), rtol=1e-8)


@pytest.mark.parametrize("name", exact.COMPACT)
def test_where_data_are_dense_no_row_is_summed_pair_by_pair(name, monkeypatch):
    def refuse(totals, window, *_):
        pytest.fail(f"{len(window.rows)} rows pair by pair")

    monkeypatch.setattr(line, "sum_pairs", refuse)
    data = rows(1000)
    for width in (0.03, 0.3, 1.0, 7.0):
        pool_squared(exact.task_of(data.key, data, Kernel(name, width)))


def test_in_several_dimensions_only_squares_that_are_kernels():
    data = rows(50, 2)
    cheap = {name for name in KERNEL_SCORES if can_square(exact.task_of(data.key, data, Kernel(name, 0.3)))}
    assert cheap == {"gaussian", "laplacian", "boxcar", "epanechnikov"}
