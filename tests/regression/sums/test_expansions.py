"""Kernels as polynomials in positions of query and key: the products give the kernel back, and the bound holds."""

import numpy as np
import pytest
import torch
from tests.regression.sums import exact

from regard.regression.sums import running_sums
from regard.regression.sums.running_sums import polynomial, squared
from regard.scores.kernels import KERNELS


def products(coefficients, query, key, side, powers=1):
    """The factors of the running sums times the powers of the key: (powers, terms, pairs)."""
    matrix = running_sums._query_matrices(coefficients, powers)[side]
    terms = matrix.shape[-1]
    rows = np.arange(terms)[:, None]
    return (matrix @ query**rows) * key**rows


@pytest.mark.parametrize("name", exact.COMPACT)
@pytest.mark.parametrize("power", [0, 2])
@pytest.mark.parametrize("is_right", [False, True])
def test_the_products_are_the_kernel(name, power, is_right):
    """A key at t and a query at s on one side of it, in widths from the centre of a cell."""
    key, distance = np.linspace(-0.5, 0.5, 11), np.linspace(0, 0.999, 11)
    query = key - distance if is_right else key + distance
    coefficients = polynomial(KERNELS[name])
    found = products(coefficients, query, key, int(is_right), power + 1)
    kernel = np.ones_like(distance) if name == "boxcar" else exact.KERNELS[name](distance).astype(float)
    for more in range(power + 1):
        # Each product is rounded a few times, and so is their sum, by the size of what is added.
        allowed = 4 * len(found[more]) * np.finfo(float).eps * np.abs(found[more]).sum(0) + 3e-15
        assert (np.abs(found[more].sum(0) - kernel * (key - query) ** more) <= allowed).all()
    bound = running_sums._absolute(coefficients, torch.tensor(np.abs(query) + 0.5)).numpy()
    assert (bound * (1 + 1e-12) >= np.abs(found[0]).sum(0)).all()


@pytest.mark.parametrize("name", exact.COMPACT)
def test_the_products_of_a_square_are_the_squared_kernel(name):
    key, distance = np.linspace(-0.5, 0.5, 11), np.linspace(0, 0.999, 11)
    for side, sign in enumerate((1, -1)):
        query = key + sign * distance
        found = []
        for kernel in (KERNELS[name], squared(KERNELS[name])):
            terms = products(polynomial(kernel), query, key, side)[0]
            found.append(terms.sum(0))
            bound = running_sums._absolute(polynomial(kernel), torch.tensor(np.abs(query) + 0.5)).numpy()
            assert (bound * (1 + 1e-12) >= np.abs(terms).sum(0)).all()
        np.testing.assert_allclose(found[0] ** 2, found[1], rtol=0, atol=1e-9)
