"""Copies of the data side by side give what each width gives by itself."""

from dataclasses import replace

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
    found = criteria.evaluate_many(smoother(kernel, weights=weights), "loo", WIDTHS)
    for width, judgement in zip(WIDTHS, found, strict=True):
        alone = criteria.loo(smoother(kernel, width, weights), 0)
        assert float(judgement.value) == pytest.approx(float(alone.value), rel=1e-7)
        assert judgement.isolated == alone.isolated


def test_an_offset_and_many_calls_change_nothing(monkeypatch):
    whole = criteria.evaluate_many(smoother("gaussian"), "loo", WIDTHS)
    monkeypatch.setattr(criteria, "ROWS_PER_CALL", 200)
    parts = criteria.evaluate_many(smoother("gaussian", offset=1e6), "loo", WIDTHS[1:])
    for first, second in zip(whole[1:], parts, strict=True):
        assert float(second.value) == pytest.approx(float(first.value), rel=1e-6)


def test_the_nearest_other_row_is_never_in_another_copy():
    two = Smoother(
        Observations(torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[1.0], [4.0]]).double()), "gaussian", 1.0
    )
    found = criteria.evaluate_many(two, "loo", [1e-6, 1e-5, 1e-3, 0.1, 10.0])
    assert [float(judgement.value) for judgement in found] == pytest.approx([9.0] * 5)


@pytest.mark.parametrize("criterion", ["loo", "aicc", "gcv"])
@pytest.mark.parametrize("kernel", KERNEL_SCORES)
@pytest.mark.parametrize("weights", [False, True])
def test_every_criterion_of_lines_is_evaluated_as_by_itself(kernel, criterion, weights):
    plain = replace(smoother(kernel, weights=weights), degree=1)
    found = criteria.evaluate_many(plain, criterion, WIDTHS[1:])
    for width, together in zip(WIDTHS[1:], found, strict=True):
        alone = criteria.CRITERIA[criterion](replace(plain, width=width), 0)
        if together is None:
            assert width == 0.003, "only where the curve passes through all observations"
        else:
            assert float(together.value) == pytest.approx(float(alone.value), rel=1e-6)
            assert together.isolated == alone.isolated


@pytest.mark.parametrize(("columns", "exclude"), [(2, 0), (1, 2)])
def test_what_it_does_not_suit(columns, exclude):
    plain = smoother("gaussian")
    assert criteria.can_evaluate_many(plain, 0)
    other = replace(plain, data=replace(plain.data, key=plain.data.key.expand(-1, columns)))
    assert not criteria.can_evaluate_many(other, exclude)
