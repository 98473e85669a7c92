"""Rows of the hat matrix come in blocks of bounded size, and their lines are those of the moments."""

import pytest
import torch
from tests.regression.curves import wave

from regard.regression import hat_matrix
from regard.regression.smoother import Smoother
from regard.regression.sums import Observations


@pytest.mark.parametrize("dim", [1, 2])
def test_lines_by_blocks_are_the_lines_of_the_moments(monkeypatch, dim):
    x, y = wave(dim=dim)
    data = Observations(torch.tensor(x), torch.stack([torch.tensor(y), torch.tensor(y) ** 2], -1))
    smoother = Smoother(data, "gaussian", 0.8, degree=1)
    monkeypatch.setattr(hat_matrix, "ENTRIES_PER_BLOCK", 700)
    assert len(list(hat_matrix.row_blocks(data, len(data.key)))) > 10
    lines, fit = hat_matrix.local_lines(smoother.task(data.key)), smoother.fit(data.key)
    torch.testing.assert_close(lines.mean, fit.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lines.slope, fit.slope, rtol=1e-7, atol=1e-7)
    rows = hat_matrix.hat_rows(smoother.task(data.key), 1)
    torch.testing.assert_close(rows.weight @ data.value, fit.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rows.weight.diagonal(), fit.leverage, rtol=1e-9, atol=1e-9)
    slopes = torch.einsum("qkd,ko->qdo", rows.slope_weight, data.value)
    torch.testing.assert_close(slopes, fit.slope, rtol=1e-7, atol=1e-7)
