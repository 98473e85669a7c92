"""Compact kernels by cells: which rows they promise, and the same sums in many chunks."""

import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression.sums import Observations, line, running_sums


def grid(keys):
    """Keys in an order of their own, evenly drawn on [0, 1]."""
    return Observations(torch.rand(keys, 1, dtype=torch.float64), torch.randn(keys, 1, dtype=torch.float64))


@pytest.mark.parametrize("name", exact.COMPACT)
@pytest.mark.parametrize("exclude", [None, 0])
def test_chunks_do_not_matter(name, exclude, monkeypatch):
    data = grid(400)
    query = data.key if exclude == 0 else torch.rand(300, 1, dtype=torch.float64) * 1.4 - 0.2
    for module, constant, size in (
        (running_sums, "CHUNK", 600),
        (running_sums, "ROWS", 90),
        (running_sums, "ROWS", 70),
        (line, "PAIRS", 50),
    ):
        monkeypatch.setattr(module, constant, size)
    for width in (1e-3, 0.08, 1.5):
        found = near_linear(query, data, Kernel(name, width), exclude=exclude)
        exact.assert_close(found, exact.pool(query, data, Kernel(name, width), exclude), data.value, 2e-12)


@pytest.mark.parametrize("name", exact.COMPACT)
def test_where_data_are_dense_no_row_is_summed_pair_by_pair(name, monkeypatch):
    def refuse(totals, window, *_):
        pytest.fail(f"{len(window.rows)} rows pair by pair")

    monkeypatch.setattr(line, "sum_pairs", refuse)
    data = grid(5000)
    for width in (0.03, 0.3, 1.0, 7.0):
        near_linear(data.key, data, Kernel(name, width))


@pytest.mark.parametrize("name", exact.COMPACT[1:])
def test_a_window_with_keys_at_its_very_edge_only(name):
    """The mass is a cancellation of sums that are far larger: such rows are summed pair by pair."""
    data = Observations(
        torch.linspace(0, 1e-4, 50, dtype=torch.float64).unsqueeze(-1), torch.randn(50, 1, dtype=torch.float64)
    )
    query = torch.tensor([[1.0], [0.99995], [1 + 5e-5], [-0.99999]], dtype=torch.float64)
    found = near_linear(query, data, Kernel(name, 1.0))
    exact.assert_close(found, exact.pool(query, data, Kernel(name, 1.0)), data.value, 1e-9)


def test_a_looser_tolerance_is_kept_too():
    data = grid(300)
    query = torch.linspace(-0.3, 1.3, 200, dtype=torch.float64).unsqueeze(-1)
    judged = exact.pool(query, data, Kernel("tricube", 0.2))
    found = near_linear(query, data, Kernel("tricube", 0.2), tolerance=1e-6)
    exact.assert_close(found, judged, data.value, 1e-6)
