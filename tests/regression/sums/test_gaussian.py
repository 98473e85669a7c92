"""The Gaussian by cells and pairs: which rows go where, and chunks."""

import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression.sums import Observations, gaussian, line


def grid(keys):
    return Observations(torch.rand(keys, 1, dtype=torch.float64), torch.randn(keys, 1, dtype=torch.float64))


@pytest.mark.parametrize("exclude", [None, 0])
@pytest.mark.parametrize("width", [2e-3, 0.02, 0.4, 3.0])
def test_chunks_do_not_matter(width, exclude, monkeypatch):
    data = grid(900)
    reach = 12 * width
    query = data.key if exclude == 0 else torch.rand(300, 1, dtype=torch.float64) * (1 + 2 * reach) - reach
    constants = {"CELLS": 3, "GATHERED": 2000, "ROWS": 40, "KEYS": 70}
    for constant, size in constants.items():
        monkeypatch.setattr(gaussian, constant, size)
    monkeypatch.setattr(line, "PAIRS", 500)
    monkeypatch.setattr(gaussian, "FEW_KEYS", 0)
    found = near_linear(query, data, Kernel("gaussian", width), exclude=exclude, moments=exclude is None)
    judged = exact.pool(query, data, Kernel("gaussian", width), exclude)
    exact.assert_close(found, judged, data.value, 2e-12)
    if exclude is None:
        exact.assert_moments_close(found.moments, judged.moments, width, 1e-10)


@pytest.mark.parametrize("exclude", [None, 0])
def test_where_data_are_dense_no_row_is_summed_pair_by_pair(exclude, monkeypatch):
    def refuse(totals, window, *_):
        pytest.fail(f"{len(window.rows)} rows pair by pair")

    monkeypatch.setattr(line, "sum_pairs", refuse)
    data = grid(5000)
    for width in (0.01, 0.3, 1.0, 70.0):
        near_linear(data.key, data, Kernel("gaussian", width), exclude=exclude)


def test_a_gap_between_dense_keys():
    """From the edge of the keys to the middle of a gap of 60 widths."""
    key = torch.cat([torch.rand(400, 1), 7 + torch.rand(300, 1)]).double()
    data = Observations(key, torch.randn(700, 1, dtype=torch.float64))
    query = torch.linspace(0.9, 7.1, 150, dtype=torch.float64).unsqueeze(-1)
    found = near_linear(query, data, Kernel("gaussian", 0.1))
    exact.assert_close(found, exact.pool(query, data, Kernel("gaussian", 0.1)), data.value, 2e-12)
