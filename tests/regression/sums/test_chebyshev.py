"""The Gaussian between two cells: products of Chebyshev polynomials within the error they promise."""

import pytest
import torch

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
