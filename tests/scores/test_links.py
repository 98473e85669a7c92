"""Links: the logarithm of each kernel and its slope, finite everywhere, equal to the chapter's formulas."""

import math

import pytest
import torch
from tests import bounds, oracle

from regard.scores.links import LINKS, CompactLink

DISTANCES = torch.linspace(0, 1.6, 321, dtype=torch.float64)
SQUARED = DISTANCES.square()
ONE = torch.ones((), dtype=torch.float64)


def formula(name, distance):
    if name == "squared_distance":
        return -(distance**2)
    mass = oracle.KERNELS[name](distance)
    return math.log(mass) if mass > 0 else -math.inf


def test_every_kernel_of_the_oracle_is_a_link_and_the_reverse():
    assert set(LINKS) == {*oracle.KERNELS, "squared_distance"}
    assert all(link.name == name for name, link in LINKS.items())


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_the_logarithm_of_its_kernel(name):
    exact = torch.tensor([formula(name, d.item()) for d in DISTANCES], dtype=torch.float64)
    # The edge itself is a matter of rounding, tested where boxcars are.
    inside = (DISTANCES - 1).abs() > 1e-9
    found = LINKS[name].log_kernel(SQUARED, ONE, torch.float64)
    # The oracle takes the square root of a square: a rounding of z, and log f answers it by its slope there.
    sensitivity = LINKS[name].slope(SQUARED)[inside].abs().max().item()
    bounds.assert_close(found[inside], exact[inside], bounds.roundings(exact, 8) * max(1.0, sensitivity))


@pytest.mark.parametrize("name", LINKS)
def test_a_slope_is_the_derivative_of_its_link(name):
    z = SQUARED[SQUARED > 0].clone().requires_grad_()
    link = LINKS[name]
    values = link.of_ratio(z)
    finite = values.isfinite()
    if not link.differentiable:
        assert (link.slope(z) == 0).all()
        return
    (exact,) = torch.autograd.grad(values[finite].sum(), z)
    bounds.assert_close(link.slope(z), exact, bounds.roundings(exact, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LINKS)
def test_slopes_are_finite_everywhere(name, dtype):
    tiny = torch.finfo(dtype).tiny
    edge = torch.nextafter(torch.tensor(1.0, dtype=dtype), torch.tensor(0.0, dtype=dtype))
    z = torch.tensor([0.0, tiny, 1e-12, 0.5, edge, 1.0, 1.5, 1e30], dtype=dtype)
    assert LINKS[name].slope(z).isfinite().all()
    assert not LINKS[name].of_ratio(z).isnan().any()


@pytest.mark.parametrize("name", [name for name, link in LINKS.items() if isinstance(link, CompactLink)])
def test_outside_the_support_there_is_no_mass_and_no_slope(name):
    z = torch.tensor([1.0, 1.0001, 7.0, torch.inf])
    assert (LINKS[name].of_ratio(z) == -torch.inf).all()
    assert (LINKS[name].slope(z) == 0).all()


@pytest.mark.parametrize("name", LINKS)
def test_a_kernel_is_1_at_distance_0(name):
    assert LINKS[name].of_ratio(torch.zeros(1)).item() == 0


@pytest.mark.parametrize("name", LINKS)
def test_autograd_through_a_link_is_finite_at_0_and_at_the_edge(name):
    z = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    values = LINKS[name].of_ratio(z)
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.masked_fill(values == -torch.inf, 0.0).sum(), z)
        assert gradient.isfinite().all()


def test_triangular_is_what_the_chapter_prints_and_epanechnikov_what_statistics_means():
    half = torch.tensor([0.25], dtype=torch.float64)  # d = 1/2
    assert LINKS["triangular"].of_ratio(half).exp().item() == pytest.approx(0.5, abs=1e-15)
    assert LINKS["epanechnikov"].of_ratio(half).exp().item() == pytest.approx(0.75, abs=1e-15)
