"""Dropping the norms of the keys: what is exact, what is bounded, and what does not go away."""

import torch

from regard.regression.experiment.norms import total_variation


def test_the_identity_is_exact(experiment):
    assert experiment.dropped.exact < 1e-14


def test_equal_norms_cost_nothing_except_by_the_factor_2(experiment):
    seven, eight, gaussian = experiment.dropped.by_spread.values()
    assert seven[0] < 1e-14
    assert gaussian[0] < 1e-14
    assert eight[0] > 0.1


def test_the_cost_of_eq_7_grows_with_the_spread_below_its_bound(experiment):
    dropped = experiment.dropped
    seven, _, gaussian = dropped.by_spread.values()
    assert (dropped.spreads.diff() > 0).all()
    assert (seven.diff() > 0).all()
    assert (seven[1:] < dropped.bound[1:]).all()
    # Half the norms are dropped for the Gaussian of eq. 5: half the cost while it is small.
    torch.testing.assert_close(gaussian[1:4], seven[1:4] / 2, rtol=0.05, atol=0)


def test_more_dimensions_do_not_help_keys_of_spread_norms(experiment):
    drawn, level = experiment.dropped.by_dimension.values()
    assert drawn.min() > 0.2
    assert level.max() < 1e-13


def test_total_variation_is_the_weight_that_moved():
    one = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    other = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    assert total_variation(one, other) == (0.25 + 1.0) / 2
