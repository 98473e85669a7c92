"""The fast Gauss transform: its expansions, the near and the far field, and the rows that are summed exactly."""

import pytest
import torch
from tests.regression.sums import exact
from tests.regression.sums.exact import Kernel, near_linear

from regard.regression.sums import Observations, gaussian, line
from regard.regression.sums.gaussian import error_bounds, polynomials, translation_matrices


@pytest.mark.parametrize("cell", [0.51, 0.75, 1.0])
@pytest.mark.parametrize("power", [0, 1, 2])
def test_the_interaction_of_two_cells_is_within_its_error(cell, power):
    reach = 20
    place = torch.linspace(-1, 1, 31, dtype=torch.float64)
    basis = polynomials(place)
    matrices, allowed = translation_matrices(cell, reach, power, place), error_bounds(cell, reach, place)
    for offset in range(-reach, reach + 1):
        u = (place.unsqueeze(-1) - place) * cell / 2 - offset * cell
        kernel = u**power * (-0.5 * u.square()).exp()
        error = (basis.T @ matrices[offset + reach] @ basis - kernel).abs().max()
        assert error <= allowed[offset + reach] * (abs(offset) * cell + cell + 1) ** power


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
