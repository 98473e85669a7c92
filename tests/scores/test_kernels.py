"""Kernels: log f and its slope, finite everywhere and equal to the chapter's formulas, and every tabulated fact."""

import math

import pytest
import torch
from scipy.integrate import quad
from tests import bounds, oracle

from regard.scores.kernels import KERNELS, TaperedKernel

DISTANCES = torch.linspace(0, 1.6, 321, dtype=torch.float64)
SQUARED = DISTANCES.square()
ONE = torch.ones((), dtype=torch.float64)


def formula(name, distance):
    if name == "squared_distance":
        return -(distance**2)
    mass = oracle.KERNELS[name](distance)
    return math.log(mass) if mass > 0 else -math.inf


def test_the_oracle_and_the_table_have_the_same_kernels():
    assert set(KERNELS) == {*oracle.KERNELS, "squared_distance"}
    assert all(kernel.name == name for name, kernel in KERNELS.items())


@pytest.mark.parametrize("name", KERNELS)
def test_log_kernel_is_the_logarithm_of_the_formula(name):
    exact = torch.tensor([formula(name, d.item()) for d in DISTANCES], dtype=torch.float64)
    # The edge itself is a matter of rounding, tested where boxcars are.
    inside = (DISTANCES - 1).abs() > 1e-9
    found = KERNELS[name].log_kernel(SQUARED, ONE, torch.float64)
    # The oracle takes the square root of a square: a rounding of z, and log f answers it by its slope there.
    sensitivity = KERNELS[name].slope(SQUARED)[inside].abs().max().item()
    bounds.assert_close(found[inside], exact[inside], bounds.roundings(exact, 8) * max(1.0, sensitivity))


@pytest.mark.parametrize("name", KERNELS)
def test_a_slope_is_the_derivative_of_the_log_kernel(name):
    z = SQUARED[SQUARED > 0].clone().requires_grad_()
    kernel = KERNELS[name]
    values = kernel.log_of_ratio(z)
    finite = values.isfinite()
    if not kernel.is_differentiable:
        assert (kernel.slope(z) == 0).all()
        return
    (exact,) = torch.autograd.grad(values[finite].sum(), z)
    bounds.assert_close(kernel.slope(z), exact, bounds.roundings(exact, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_slopes_are_finite_everywhere(name, dtype):
    tiny = torch.finfo(dtype).tiny
    edge = torch.nextafter(torch.tensor(1.0, dtype=dtype), torch.tensor(0.0, dtype=dtype))
    z = torch.tensor([0.0, tiny, 1e-12, 0.5, edge, 1.0, 1.5, 1e30], dtype=dtype)
    assert KERNELS[name].slope(z).isfinite().all()
    assert not KERNELS[name].log_of_ratio(z).isnan().any()


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if isinstance(kernel, TaperedKernel)])
def test_outside_the_support_there_is_no_mass_and_no_slope(name):
    z = torch.tensor([1.0, 1.0001, 7.0, torch.inf])
    assert (KERNELS[name].log_of_ratio(z) == -torch.inf).all()
    assert (KERNELS[name].slope(z) == 0).all()


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_1_at_distance_0(name):
    assert KERNELS[name].log_of_ratio(torch.zeros(1)).item() == 0


@pytest.mark.parametrize("name", KERNELS)
def test_autograd_through_a_log_kernel_is_finite_at_0_and_at_the_edge(name):
    z = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    values = KERNELS[name].log_of_ratio(z)
    if values.requires_grad:
        (gradient,) = torch.autograd.grad(values.masked_fill(values == -torch.inf, 0.0).sum(), z)
        assert gradient.isfinite().all()


def test_the_gradient_of_a_boxcar_is_0_everywhere():
    z = torch.tensor([0.0, 0.5, 1.0, 2.0], requires_grad=True)
    for values in (KERNELS["boxcar"].log_of_ratio(z), KERNELS["boxcar"].log_kernel(z, torch.ones(1), z.dtype)):
        assert values.tolist() == [0, 0, 0, -math.inf]
        assert torch.autograd.grad(values[:3].sum(), z)[0].tolist() == [0] * 4


def test_the_hessian_of_a_boxcar_is_0_at_distance_0():
    key = torch.tensor([0.3, -0.2])

    def log_kernel(query):
        return KERNELS["boxcar"].log_of_ratio((query - key).square().sum())

    assert not torch.autograd.functional.hessian(log_kernel, key.clone()).any()


def test_triangular_is_what_the_chapter_prints_and_epanechnikov_what_statistics_means():
    half = torch.tensor([0.25], dtype=torch.float64)  # d = 1/2
    assert KERNELS["triangular"].log_of_ratio(half).exp().item() == pytest.approx(0.5, abs=1e-15)
    assert KERNELS["epanechnikov"].log_of_ratio(half).exp().item() == pytest.approx(0.75, abs=1e-15)


def value(name, distance):
    return KERNELS[name].log_of_ratio(torch.tensor([distance**2], dtype=torch.float64)).exp().item()


def moment(name, power, of_square=False):
    """The integral of d^power f, or f^2, over the line."""
    reach = 1 if KERNELS[name].is_compact else 60
    return 2 * quad(lambda d: value(name, d) ** (1 + of_square) * d**power, 0, reach, points=[1], limit=200)[0]


@pytest.mark.parametrize("name", KERNELS)
def test_roughness_and_variance_are_the_integrals(name):
    total = moment(name, 0)
    assert KERNELS[name].roughness == pytest.approx(moment(name, 0, of_square=True) / total**2, rel=1e-7)
    assert KERNELS[name].variance == pytest.approx(moment(name, 2) / total, rel=1e-7)


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.polynomial is not None])
def test_the_polynomial_is_the_kernel_inside_its_support(name):
    distances = DISTANCES[DISTANCES < 1]
    found = sum(factor * distances**power for power, factor in enumerate(KERNELS[name].polynomial))
    torch.testing.assert_close(found, KERNELS[name].log_of_ratio(distances.square()).exp(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.square is not None])
def test_the_square_is_the_named_kernel_of_the_given_width(name):
    other, width = KERNELS[name].square
    inside = (DISTANCES - 1).abs() > 1e-9
    squared = 2 * KERNELS[name].log_of_ratio(SQUARED[inside])
    torch.testing.assert_close(KERNELS[other].log_kernel(SQUARED, width * ONE, torch.float64)[inside], squared)


@pytest.mark.parametrize("name", KERNELS)
def test_a_compact_kernel_is_0_beyond_one_width_and_no_other_is(name):
    assert (value(name, 1.0001) == 0) is KERNELS[name].is_compact
    assert value(name, 0.9999) > 0


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.is_compact])
def test_the_edge_of_a_compact_kernel_is_inside_where_it_says_so(name):
    assert (value(name, 1.0) > 0) is KERNELS[name].is_edge_inside


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_differentiable_unless_it_is_flat(name):
    assert KERNELS[name].is_differentiable is (value(name, 0.9) < value(name, 0.1))
