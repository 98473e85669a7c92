"""Scores of one tile: its scores and gradients are those of autograd; the product in float64 is as exact."""

import pytest
import torch
from tests import bounds

import regard
from regard.backends.blocked.scores import (
    ALIGNMENT,
    MAX_DIFFERENCE_DIM,
    MAX_PRODUCT_TERM,
    DistanceScores,
    DotScores,
    Float64Product,
    Scratch,
    add_reduced,
    gaussian_factor,
)
from regard.scores.distance import DistancePair
from regard.scores.dot import DotPair
from regard.scores.kernels import KERNELS

BOXCAR = KERNELS["boxcar"]
GAUSSIAN = KERNELS["gaussian"]
ROWS, COLS = slice(2, 5), slice(1, 8)
PRODUCT_ROWS, PRODUCT_COLS = slice(2, 11), slice(1, 13)


def dot_scores(query, key, scale, softcap):
    return DotScores(DotPair(query, key, scale, softcap), [query, key], [True, True])


def distance_scores(query, key, width, kernel, needs=True):
    """The tile scores of data in the dtype of the width."""
    return DistanceScores(DistancePair(query, key, width, kernel), [query, key, width], [needs] * 3)


def randn(*shape, scale=0.2):
    return scale * torch.randn(shape, dtype=torch.float64)


def plain(tiles, squared_or_product):
    """The tile's scores under ordinary autograd."""
    query, key = tiles.operands[0][..., ROWS, :], tiles.operands[1][..., COLS, :]
    return squared_or_product(query, key)


def assert_tile_gradients(tiles, scores_by_autograd):
    operands = [x.clone().requires_grad_() for x in tiles.operands]
    expected = scores_by_autograd(*operands)
    bounds.assert_close(tiles.scores(ROWS, COLS), expected, bounds.roundings(expected, 64))
    grad = torch.randn_like(expected)
    tiles.accumulate(ROWS, COLS, grad.clone())
    found = tiles.grads
    wanted = torch.autograd.grad(expected, operands, grad, allow_unused=True, materialize_grads=True)
    for left, right in zip(found, wanted, strict=True):
        bounds.assert_close(left, right, bounds.roundings(right, 256))


@pytest.mark.parametrize("softcap", [None, 0.7])
def test_dot_tiles(softcap):
    tiles = dot_scores(randn(2, 6, 5), randn(1, 9, 5), 1.7, softcap)

    def scores(query, key):
        product = 1.7 * query[:, ROWS] @ key[:, COLS].mT
        return softcap * torch.tanh(product / softcap) if softcap else product

    assert_tile_gradients(tiles, scores)


@pytest.mark.parametrize("dim", [1, 5, MAX_DIFFERENCE_DIM, MAX_DIFFERENCE_DIM + 1])
@pytest.mark.parametrize("name", KERNELS)
def test_distance_tiles(name, dim):
    kernel = KERNELS[name]
    scale = 0.2 * (5 / dim) ** 0.5
    width = torch.tensor([[[1.3]]], dtype=torch.float64)
    tiles = distance_scores(randn(2, 6, dim, scale=scale), randn(1, 9, dim, scale=scale), width, kernel)

    def scores(query, key, width):
        squared = (query[:, ROWS].unsqueeze(-2) - key[:, COLS].unsqueeze(-3)).square().sum(-1)
        return kernel.log_kernel(squared, width, torch.float64) + 0 * squared

    assert_tile_gradients(tiles, scores)


def test_a_width_for_every_query():
    widths = torch.rand(2, 6, 1, dtype=torch.float64) + 0.5
    tiles = distance_scores(randn(2, 6, 3), randn(2, 9, 3), widths, GAUSSIAN)

    def scores(query, key, width):
        squared = (query[:, ROWS].unsqueeze(-2) - key[:, COLS].unsqueeze(-3)).square().sum(-1)
        return -0.5 * squared / width[:, ROWS].square()

    assert_tile_gradients(tiles, scores)


@pytest.mark.parametrize("dim", [3, MAX_DIFFERENCE_DIM + 1])
def test_distances_keep_their_precision_far_from_the_origin(dim):
    """At an offset of 1000 bandwidths the dot form 2 q'k - |k|^2 would have lost every digit of float32."""
    near = [randn(1, 6, dim), randn(1, 9, dim)]
    far = [(x + 1000).float() for x in near]
    width = torch.ones(1, 1, 1)
    tiles = distance_scores(*far, width, GAUSSIAN)
    query, key = (x.double() for x in far)
    exact = -0.5 * (query[:, ROWS].unsqueeze(-2) - key[:, COLS].unsqueeze(-3)).square().sum(-1)
    bounds.assert_same(tiles.scores(ROWS, COLS), exact)


def test_a_gradient_is_summed_over_the_axes_it_was_shared_along():
    total = torch.zeros(1, 3, 1)
    add_reduced(total, torch.ones(2, 3, 5))
    assert (total == 10).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_pair_at_the_edge_of_a_boxcar_is_where_the_equations_have_it(dtype, dim):
    lattice = 0.1 * torch.cartesian_prod(*[torch.arange(9, dtype=dtype)] * dim).reshape(-1, dim)
    for width in (0.1, 0.3, 0.5):
        tiles = distance_scores(lattice, lattice, torch.full((1, 1), width, dtype=dtype), BOXCAR, needs=False)
        inside = (lattice.unsqueeze(1) - lattice).square().sum(-1).sqrt() <= torch.tensor(width, dtype=dtype)
        everything = slice(0, len(lattice))
        assert torch.equal(tiles.scores(everything, everything) == 0, inside)
        assert torch.equal(tiles.kernel_values(everything, everything) == 1, inside)


def test_tiles_share_their_memory_and_the_tensors_of_a_tile_do_not():
    scratch = Scratch(torch.device("cpu"), torch.float64, torch.float32)
    first = scratch.views((2, 3, 4), (2, 1, 3, 4))
    smaller = scratch.views((2, 3, 3), (2, 1, 3, 3))
    assert [x.dtype for x in first] == [torch.float64, torch.float32]
    assert [tuple(x.shape) for x in (*first, *smaller)] == [(2, 3, 4), (2, 1, 3, 4), (2, 3, 3), (2, 1, 3, 3)]
    assert len({x.untyped_storage().data_ptr() for x in (*first, *smaller)}) == 1
    for tile in (first, smaller):
        assert tile[0].data_ptr() + tile[0].nbytes <= tile[1].data_ptr()
        assert all(x.data_ptr() % ALIGNMENT == 0 for x in tile)
    assert all(x.is_contiguous() for x in smaller)


def test_a_stretch_that_is_too_short_grows():
    scratch = Scratch(torch.device("cpu"), torch.float32)
    scratch.views((2, 2))
    (larger,) = scratch.views((3, 5, 7))
    assert larger.shape == (3, 5, 7)


def test_a_tile_may_ask_for_the_first_of_its_tensors_alone():
    scratch = Scratch(torch.device("cpu"), torch.float32, torch.float64)
    (alone,) = scratch.views((3, 5))
    assert alone.dtype == torch.float32
    assert scratch.buffer.nbytes == ALIGNMENT


@pytest.fixture
def small_tiles(set_limits):
    set_limits(tile_pairs=1)


def tokens(*shape, offset=0.0):
    return torch.randn(shape) + offset


def product(query, key, width, kernel=GAUSSIAN):
    return Float64Product.of(query, key, gaussian_factor(width, kernel))


def exact_scores(query, key, width, kernel=GAUSSIAN):
    squared = (query.double().unsqueeze(-2) - key.double().unsqueeze(-3)).square().sum(-1)
    return kernel.log_kernel(squared, width.double(), torch.float64)[..., PRODUCT_ROWS, PRODUCT_COLS]


@pytest.mark.parametrize("name", ["gaussian", "squared_distance"])
@pytest.mark.parametrize("dim", [1, 3, 40])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.usefixtures("small_tiles")
def test_scores_are_the_exact_ones_rounded_once(name, dim, offset):
    query, key, width = tokens(2, 13, dim, offset=offset), tokens(1, 17, dim, offset=offset), torch.full((1, 1, 1), 0.1)
    found = product(query, key, width, KERNELS[name]).scores(PRODUCT_ROWS, PRODUCT_COLS)
    exact = exact_scores(query, key, width, KERNELS[name])
    assert found.dtype == torch.float32
    rounding = torch.finfo(torch.float32).eps / 2 * exact.abs() + torch.finfo(torch.float32).eps / 4
    assert ((found - exact).abs() <= rounding).all()


@pytest.mark.usefixtures("small_tiles")
def test_each_query_and_each_head_may_have_its_width():
    query, key, width = tokens(1, 13, 2), tokens(1, 17, 2), 0.5 + torch.rand(3, 13, 1)
    found = product(query, key, width).scores(PRODUCT_ROWS, PRODUCT_COLS)
    exact = exact_scores(query, key, width)
    bounds.assert_close(found, exact, bounds.roundings(exact, 2, torch.float32))


@pytest.mark.usefixtures("small_tiles")
def test_a_form_whose_terms_are_too_large_or_not_numbers_has_no_product():
    query, key = tokens(13, 3), tokens(17, 3)
    assert product(query, key, torch.full((1, 1), 1e-2)) is not None
    assert product(query, key, torch.full((1, 1), 1e-4)) is None
    for bad in (torch.nan, torch.inf):
        assert product(query, torch.full_like(key, bad), torch.ones(1, 1)) is None
    assert product(query.double(), key.double(), torch.ones(1, 1).double()) is None


@pytest.mark.usefixtures("small_tiles")
def test_what_fits_into_one_tile_has_no_product(set_limits):
    query, key, width = tokens(13, 3), tokens(17, 3), torch.ones(1, 1)
    set_limits(tile_pairs=13 * 17)
    assert product(query, key, width) is None
    assert product(torch.cat([query, query]), key, width) is not None


@pytest.mark.usefixtures("small_tiles")
def test_a_width_has_no_rate_where_its_square_is_no_number_of_the_dtype():
    assert gaussian_factor(torch.full((1, 1), 0.5), GAUSSIAN).item() == -2
    assert gaussian_factor(torch.full((1, 1), 0.5), KERNELS["squared_distance"]).item() == -4
    assert gaussian_factor(torch.full((1, 1), 0.5), KERNELS["laplacian"]) is None
    for width in (1e-30, 1e30, torch.nan):
        assert gaussian_factor(torch.tensor([[1.0], [width]]), GAUSSIAN) is None
    assert gaussian_factor(torch.full((1, 1), 1e-30).double(), GAUSSIAN) is not None


@pytest.mark.usefixtures("small_tiles")
def test_the_largest_term_leaves_a_quarter_of_the_rounding_of_float32():
    assert MAX_PRODUCT_TERM * torch.finfo(torch.float64).eps == torch.finfo(torch.float32).eps / 4


@pytest.mark.parametrize("bandwidth", [1.0, 1e-4, 1e-30])
@pytest.mark.usefixtures("small_tiles")
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
