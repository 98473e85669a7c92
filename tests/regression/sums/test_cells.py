"""Cells and covers: half windows are made up of running sums of cells, and of no key twice."""

import pytest
import torch

from regard.regression.sums.running_sums import SPARE, Cells, half_windows


@pytest.mark.parametrize("width", [1e-9, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_cover_holds_exactly_the_half_window(width, offset):
    key = (torch.rand(200, dtype=torch.float64) + offset).sort().values
    cells = Cells.of(key, width * SPARE)
    first = torch.searchsorted(key, key - width)
    after = torch.arange(1, 201)
    found = half_windows(cells, first, after)
    index = torch.arange(200)
    for row in range(200):
        held = torch.zeros(200)
        if found.suffix[row]:
            held += (cells.rank == cells.rank[first[row]]) & (index >= first[row])
        if found.prefix[row]:
            held += (cells.rank == cells.rank[after[row] - 1]) & (index < after[row])
        if not found.needs_exact[row]:
            assert torch.equal(held == 1, (index >= first[row]) & (index < after[row]))
            assert held.max() <= 1
    assert found.needs_exact.sum() <= 2


def test_only_cells_with_keys_cost_memory():
    cells = Cells.of(torch.tensor([0.0, 1.0, 1e300], dtype=torch.float64), 1e-300)
    assert cells.rank.tolist() == [1, 2, 3]
    assert cells.centre.isfinite().all()
