"""Many queries in one gap, or beyond the last key: interpolated between exact sums, and as exact as these."""

import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression.sums import Observations, gaussian


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_gap_and_both_ends(offset, weighted, monkeypatch):
    """From 1 to 1000 widths away; in the middle of the gap both sides count."""
    key = torch.cat([torch.rand(200, 1), 4 + torch.rand(100, 1)]).double()
    weight = 0.1 + torch.rand(300, dtype=torch.float64) if weighted else None
    data = Observations(key + offset, torch.randn(300, 2, dtype=torch.float64), weight)
    away = torch.logspace(-1, 2, 1500, dtype=torch.float64)
    query = torch.cat([1 + 3 * torch.rand(600).double(), 2.5 + 0.01 * torch.rand(60).double(), -away, 5 + away])
    query = query.unsqueeze(-1) + offset
    kernel = Kernel("gaussian", 0.1)
    left_over = []
    accumulate = gaussian.GaussianSums.accumulate

    def counted(self, sums):
        rows = accumulate(self, sums)
        left_over.append(0 if rows is None else len(rows.rows))
        return rows

    monkeypatch.setattr(gaussian.GaussianSums, "accumulate", counted)
    found, judged = near_linear(query, data, kernel, moments=True), exact.pool(query, data, kernel)
    exact.assert_close(found, judged, data.value, 2e-12)
    exact.assert_moments_close(found.moments, judged.moments, kernel.width, 1e-10)
    assert sum(left_over) < len(query) // 3


def test_the_nearest_of_tied_keys():
    """So far away that all squares overflow, the tied keys at the end share by weight."""
    key = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    data = Observations(key, torch.tensor([[9.0], [1.0], [4.0]]).double(), torch.tensor([1.0, 2.0, 1.0]).double())
    query = torch.linspace(1e5, 1.1e5, 100, dtype=torch.float64).unsqueeze(-1)
    found = near_linear(query, data, Kernel("gaussian", 1e-155))
    assert torch.allclose(found.mean, torch.full_like(found.mean, 2.0), rtol=1e-14)
    assert found.log_mass.isfinite().all()


@pytest.mark.parametrize("place", [1e100, -1e100, 1e300, -1e300, 1.7e308])
def test_however_far_away_the_nearest_key_answers(place):
    key = torch.linspace(0, 4, 50, dtype=torch.float64).unsqueeze(-1)
    query = torch.full((2000, 1), place, dtype=torch.float64)
    pooled = exact.pool_any(
        query, Observations(key, torch.arange(50.0, dtype=torch.float64).unsqueeze(-1)), Kernel("gaussian", 0.3)
    )
    assert (pooled.mean - (49 if place > 0 else 0)).abs().max() < 1e-12
    assert pooled.log_mass.isfinite().all()
