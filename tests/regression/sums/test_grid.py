"""Sums on a grid keep their promise wherever they say that they are sure, and are sure where a scan needs them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.regression.criteria import BINNING_TOLERANCE, binned_leave_one_out
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations


def line(seed, rows=300, outliers=0, weights=False, offset=0.0):
    rng = np.random.default_rng(seed)
    key = np.concatenate([rng.random(rows - outliers), 3 + rng.random(outliers)])
    value = np.stack([np.sin(9 * key) + 50, rng.standard_normal(rows)], -1)
    weight = torch.from_numpy(rng.choice([0.01, 1.0, 5.5], rows)) if weights else None
    return Observations(torch.from_numpy(key[:, None] + offset), torch.from_numpy(value), weight)


def worst(data, widths):
    """Where the grid is sure: the error of each width as a share of the range, judged by the sums of one width."""
    found, accurate = binned_leave_one_out(data, widths)
    spread = data.value.amax(0) - data.value.amin(0)
    exact = [Smoother(data, "gaussian", width).pool_left_out(0).mean for width in widths]
    errors = [float(((mean - one) / spread).abs().max()) for mean, one in zip(found, exact, strict=True)]
    return [error for error, sure in zip(errors, accurate, strict=True) if sure], accurate


@given(
    st.integers(0, 2**16), st.integers(2, 60), st.sampled_from([0, 1, 2]), st.booleans(), st.sampled_from([0.0, -1e4])
)
def test_the_promise_holds(seed, rows, outliers, weights, offset):
    data = line(seed, rows + outliers, outliers, weights, offset)
    errors, _ = worst(data, np.geomspace(1e-4, 30, 12).tolist())
    assert max(errors, default=0.0) <= BINNING_TOLERANCE


@pytest.mark.parametrize("weights", [False, True])
def test_wide_kernels_are_exact(weights):
    errors, sure = worst(line(0, weights=weights), [0.02, 0.1, 1.0, 40.0])
    assert sure == [True] * 4
    assert max(errors) < 1e-13


def test_no_width_is_wide_enough_and_keys_may_be_equal():
    assert binned_leave_one_out(line(2), [1e-9, 1e-6])[1] == [False, False]
    same = Observations(torch.ones(5, 1).double(), torch.arange(5.0).double()[:, None], None)
    assert binned_leave_one_out(same, [1e-3, 2.0])[1] == [False, False]


def test_it_is_not_sure_of_narrow_kernels_and_lonely_rows():
    assert binned_leave_one_out(line(1), [1e-5, 1e-3, 0.1])[1] == [False, False, True]
    assert binned_leave_one_out(line(1, outliers=1), [0.1])[1] == [False]
    assert binned_leave_one_out(line(1, outliers=1), [5.0])[1] == [True]
