"""Gaussian scores by a product in float64: as exact as differences at any offset, refused where they are not."""

import pytest
import torch
from tests import bounds

import regard
from regard.backends.blocked.gaussian import LARGEST_TERM, GaussianProduct, gaussian_rate
from regard.scores.kernels import KERNELS

ROWS, COLS = slice(2, 11), slice(1, 13)
GAUSSIAN = KERNELS["gaussian"]


@pytest.fixture(autouse=True)
def _small_tiles(set_limits):
    set_limits(tile_pairs=1)


def tokens(*shape, offset=0.0):
    return torch.randn(shape) + offset


def product(query, key, width, link=GAUSSIAN):
    return GaussianProduct.of(query, key, gaussian_rate(width, link))


def exact_scores(query, key, width, link=GAUSSIAN):
    squared = (query.double().unsqueeze(-2) - key.double().unsqueeze(-3)).square().sum(-1)
    return link.log_kernel(squared, width.double(), torch.float64)[..., ROWS, COLS]


@pytest.mark.parametrize("name", ["gaussian", "squared_distance"])
@pytest.mark.parametrize("dim", [1, 3, 40])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_scores_are_the_exact_ones_rounded_once(name, dim, offset):
    query, key, width = tokens(2, 13, dim, offset=offset), tokens(1, 17, dim, offset=offset), torch.full((1, 1, 1), 0.1)
    found = product(query, key, width, KERNELS[name]).scores(ROWS, COLS)
    exact = exact_scores(query, key, width, KERNELS[name])
    assert found.dtype == torch.float32
    rounding = torch.finfo(torch.float32).eps / 2 * exact.abs() + torch.finfo(torch.float32).eps / 4
    assert ((found - exact).abs() <= rounding).all()


def test_each_query_and_each_head_may_have_its_width():
    query, key, width = tokens(1, 13, 2), tokens(1, 17, 2), 0.5 + torch.rand(3, 13, 1)
    found = product(query, key, width).scores(ROWS, COLS)
    exact = exact_scores(query, key, width)
    bounds.assert_close(found, exact, bounds.roundings(exact, 2, torch.float32))


def test_a_form_whose_terms_are_too_large_or_not_numbers_has_no_product():
    query, key = tokens(13, 3), tokens(17, 3)
    assert product(query, key, torch.full((1, 1), 1e-2)) is not None
    assert product(query, key, torch.full((1, 1), 1e-4)) is None
    for bad in (torch.nan, torch.inf):
        assert product(query, torch.full_like(key, bad), torch.ones(1, 1)) is None
    assert product(query.double(), key.double(), torch.ones(1, 1).double()) is None


def test_what_fits_into_one_tile_has_no_product(set_limits):
    query, key, width = tokens(13, 3), tokens(17, 3), torch.ones(1, 1)
    set_limits(tile_pairs=13 * 17)
    assert product(query, key, width) is None
    assert product(torch.cat([query, query]), key, width) is not None


def test_a_width_has_no_rate_where_its_square_is_no_number_of_the_dtype():
    assert gaussian_rate(torch.full((1, 1), 0.5), GAUSSIAN).item() == -2
    assert gaussian_rate(torch.full((1, 1), 0.5), KERNELS["squared_distance"]).item() == -4
    assert gaussian_rate(torch.full((1, 1), 0.5), KERNELS["laplacian"]) is None
    for width in (1e-30, 1e30, torch.nan):
        assert gaussian_rate(torch.tensor([[1.0], [width]]), GAUSSIAN) is None
    assert gaussian_rate(torch.full((1, 1), 1e-30).double(), GAUSSIAN) is not None


def test_the_largest_term_leaves_a_quarter_of_the_rounding_of_float32():
    assert LARGEST_TERM * torch.finfo(torch.float64).eps == torch.finfo(torch.float32).eps / 4


@pytest.mark.parametrize("bandwidth", [1.0, 1e-4, 1e-30])
def test_the_backend_agrees_with_the_reference_whether_there_is_a_product_or_not(bandwidth):
    query = tokens(50, 3, offset=300.0)
    key, value = torch.cat([query[:40], tokens(30, 3, offset=300.0)]), torch.randn(70, 2)
    score = regard.scores.Gaussian(bandwidth)
    found = regard.inspect(query, key, value, score, backend="blocked")
    reference = regard.inspect(query, key, value, score, backend="reference")
    exact = regard.inspect(query.double(), key.double(), value.double(), score, backend="reference")
    seen = ~reference.log_mass.isinf()
    assert seen[:40].all()
    bounds.assert_as_good(found.output[seen], reference.output[seen], exact.output[seen])
    bounds.assert_as_good(found.log_mass[seen], reference.log_mass[seen], exact.log_mass[seen])
