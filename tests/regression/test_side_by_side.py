"""Copies of the data side by side give what each width gives by itself."""

import numpy as np
import pytest
import torch

from regard.regression import criteria
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations
from regard.scores.names import KERNEL_SCORES

WIDTHS = [1e-7, 0.003, 0.02, 0.11, 0.5, 2.0, 60.0]


def smoother(kernel, width=1.0, weights=False, rows=90, offset=0.0):
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.random(rows - 10), 5 + 0.1 * rng.random(10)])
    y = np.stack([np.sin(4 * x), rng.standard_normal(rows)], -1)
    weight = torch.from_numpy(rng.choice([0.3, 1.0, 2.0, 3.7], rows)) if weights else None
    return Smoother(Observations(torch.from_numpy(x[:, None] + offset), torch.from_numpy(y), weight), kernel, width)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("kernel", KERNEL_SCORES)
def test_every_width_is_judged_as_by_itself(kernel, weights):
    found = criteria.evaluate_many(smoother(kernel, weights=weights), WIDTHS)
    for width, judgement in zip(WIDTHS, found, strict=True):
        alone = criteria.loo(smoother(kernel, width, weights), 0)
        assert float(judgement.value) == pytest.approx(float(alone.value), rel=1e-7)
        assert judgement.alone == alone.alone


def test_an_offset_and_many_calls_change_nothing(monkeypatch):
    whole = criteria.evaluate_many(smoother("gaussian"), WIDTHS)
    monkeypatch.setattr(criteria, "MOST_ROWS", 200)
    parts = criteria.evaluate_many(smoother("gaussian", offset=1e6), WIDTHS[1:])
    for first, second in zip(whole[1:], parts, strict=True):
        assert float(second.value) == pytest.approx(float(first.value), rel=1e-6)


def test_the_nearest_other_row_is_never_in_another_copy():
    two = Smoother(
        Observations(torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[1.0], [4.0]]).double()), "gaussian", 1.0
    )
    found = criteria.evaluate_many(two, [1e-6, 1e-5, 1e-3, 0.1, 10.0])
    assert [float(judgement.value) for judgement in found] == pytest.approx([9.0] * 5)


@pytest.mark.parametrize(
    ("change", "criterion", "exclude"),
    [({}, "aicc", 0), ({}, "loo", 2), ({"degree": 1}, "loo", 0)],
)
def test_what_it_does_not_suit(change, criterion, exclude):
    plain = smoother("gaussian")
    assert criteria.can_evaluate_many(plain, "loo", 0)
    other = Smoother(plain.data, "gaussian", 1.0, **change)
    assert not criteria.can_evaluate_many(other, criterion, exclude)
