"""The Laplacian by decaying running sums: chunks, moments and gaps."""

import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression.sums import Observations, running_sums


@pytest.mark.parametrize("width", [1e-5, 0.02, 0.4, 100.0])
@pytest.mark.parametrize("gap", [0.0, 50.0])
def test_chunks_do_not_matter(width, gap, monkeypatch):
    monkeypatch.setattr(running_sums, "CHUNK", 1600)
    key = torch.rand(900, 1, dtype=torch.float64)
    data = Observations(torch.where(key > 0.5, key + gap, key), torch.randn(900, 2, dtype=torch.float64))
    query = torch.rand(300, 1, dtype=torch.float64) * (gap + 2) - 0.5
    found = near_linear(query, data, Kernel("laplacian", width), moments=True)
    judged = exact.pool(query, data, Kernel("laplacian", width))
    exact.assert_close(found, judged, data.value, 1e-13)
    exact.assert_moments_close(found.moments, judged.moments, width, 1e-11)
