"""The comparison of kernels: its intervals, its constant, and what the chapter's ranking is made of."""

import math

import pytest
import torch

from regard.regression.experiment import data
from regard.regression.experiment.comparison import FOLLOWED, interval
from regard.regression.experiment.draws import draw
from regard.scores.names import KERNEL_SCORES


def test_interval_is_the_standard_error_of_the_mean():
    found = interval(torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64))
    assert found.mean == 3.0
    assert found.half == pytest.approx(1.96 * math.sqrt(14 / 3) / 2, rel=1e-4)


def test_every_kernel_is_there_at_both_widths(experiment):
    comparison = experiment.comparison
    assert list(comparison.at_one) == list(comparison.at_own) == list(comparison.followed) == list(KERNEL_SCORES)
    for row in comparison.at_one.values():
        assert (row.widths == 1).all()
        assert row.errors.shape == (3,)
        assert row.filled == 0
    for widths, errors in comparison.followed.values():
        assert widths.shape == errors.shape == (len(FOLLOWED),)


def test_the_constant_is_the_mean_of_each_draw(experiment):
    y, truth = draw(3).y, data.truth(data.places())
    expected = [((y[row].mean() - truth) ** 2).mean().item() for row in range(3)]
    assert experiment.comparison.constant.tolist() == pytest.approx(expected)


def test_a_common_width_ranks_what_own_widths_level(experiment):
    means = [
        [row.errors.mean().item() for row in judged.values()]
        for judged in (experiment.comparison.at_one, experiment.comparison.at_own)
    ]
    at_one, at_own = (max(errors) / min(errors) for errors in means)
    assert at_one > 2.5
    assert at_own < 1.6
