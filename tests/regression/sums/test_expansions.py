"""Kernels as sums of products: the products give the kernel back, mirrored too, and the bound holds."""

import pytest
import torch
from tests.regression.sums import exact

from regard.regression.sums.running_sums import EXPANSIONS, SQUARES


@pytest.mark.parametrize("name", EXPANSIONS)
@pytest.mark.parametrize("power", [0, 2])
@pytest.mark.parametrize("is_right", [False, True])
def test_the_products_are_the_kernel(name, power, is_right):
    """A key at t and a query at s on one side of it, in widths from the centre of a cell."""
    key = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)
    distance = torch.linspace(0, 0.999, 11, dtype=torch.float64)
    query = key - distance if is_right else key + distance
    sign = torch.full_like(query, -1.0 if is_right else 1.0)
    expansion = EXPANSIONS[name]
    terms = expansion.of_keys(key, torch.ones_like(key).unsqueeze(0), power).squeeze(1)
    factors = expansion.of_queries(query * sign, torch.ones_like(query), power)
    expansion.mirror(factors, sign)
    assert terms.shape[0] == factors.shape[1] == expansion.terms(power)
    kernel = (
        torch.ones_like(distance)
        if name == "boxcar"
        else torch.from_numpy(exact.KERNELS[name](distance.numpy()).astype(float))
    )
    for more in range(power + 1):
        products = factors[more] * terms
        # Each product is rounded a few times, and so is their sum, by the size of what is added.
        allowed = 4 * len(products) * torch.finfo(torch.float64).eps * products.abs().sum(0)
        assert ((products.sum(0) - kernel * distance**more).abs() <= allowed).all()
    size = expansion.size(query.abs() + 0.5, terms[0])
    assert (size * (1 + 1e-12) >= (factors[0] * terms).abs().sum(0)).all()


@pytest.mark.parametrize("name", SQUARES)
def test_the_products_of_a_square_are_the_squared_kernel(name):
    key = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)
    distance = torch.linspace(0, 0.999, 11, dtype=torch.float64)
    for sign in (torch.ones_like(key), -torch.ones_like(key)):
        query = key + sign * distance
        found = []
        for expansion in (EXPANSIONS[name], SQUARES[name]):
            terms = expansion.of_keys(key, torch.ones_like(key).unsqueeze(0), 0).squeeze(1)
            factors = expansion.of_queries(query * sign, torch.ones_like(query), 0)
            expansion.mirror(factors, sign)
            found.append((factors[0] * terms).sum(0))
            size = expansion.size(query.abs() + 0.5, terms[0])
            assert (size * (1 + 1e-12) >= (factors[0] * terms).abs().sum(0)).all()
        assert torch.allclose(found[0].square(), found[1], rtol=0, atol=1e-9)
