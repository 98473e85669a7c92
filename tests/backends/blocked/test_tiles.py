"""Tiles of dot products and distances: one tile's scores and gradients are autograd's."""

import pytest
import torch
from tests import bounds

from regard.backends.blocked.tiles import WIDEST_DIFFERENCE, DistanceTiles, DotTiles, add_shared
from regard.scores.kernels import KERNELS

BOXCAR = KERNELS["boxcar"]
ROWS, COLS = slice(2, 5), slice(1, 8)


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
    tiles.backward(ROWS, COLS, grad.clone())
    found = tiles.gradients()
    wanted = torch.autograd.grad(expected, operands, grad, allow_unused=True, materialize_grads=True)
    for left, right in zip(found, wanted, strict=True):
        bounds.assert_close(left, right, bounds.roundings(right, 256))


@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_dot_tiles(softcap):
    tiles = DotTiles([randn(2, 6, 5), randn(1, 9, 5)], [True, True], 1.7, softcap)

    def scores(query, key):
        product = 1.7 * query[:, ROWS] @ key[:, COLS].mT
        return softcap * torch.tanh(product / softcap) if softcap else product

    assert_tile_gradients(tiles, scores)


@pytest.mark.parametrize("dim", [1, 5, WIDEST_DIFFERENCE, WIDEST_DIFFERENCE + 1])
@pytest.mark.parametrize("name", KERNELS)
def test_distance_tiles(name, dim):
    link = KERNELS[name]
    scale = 0.2 * (5 / dim) ** 0.5
    width = torch.tensor([[[1.3]]], dtype=torch.float64)
    tiles = DistanceTiles(
        [randn(2, 6, dim, scale=scale), randn(1, 9, dim, scale=scale), width], [True] * 3, link, torch.float64
    )

    def scores(query, key, width):
        squared = (query[:, ROWS].unsqueeze(-2) - key[:, COLS].unsqueeze(-3)).square().sum(-1)
        return link.log_kernel(squared, width, torch.float64) + 0 * squared

    assert_tile_gradients(tiles, scores)


def test_a_width_for_every_query():
    widths = torch.rand(2, 6, 1, dtype=torch.float64) + 0.5
    tiles = DistanceTiles([randn(2, 6, 3), randn(2, 9, 3), widths], [True] * 3, KERNELS["gaussian"], torch.float64)

    def scores(query, key, width):
        squared = (query[:, ROWS].unsqueeze(-2) - key[:, COLS].unsqueeze(-3)).square().sum(-1)
        return -0.5 * squared / width[:, ROWS].square()

    assert_tile_gradients(tiles, scores)


@pytest.mark.parametrize("dim", [3, WIDEST_DIFFERENCE + 1])
def test_distances_keep_their_precision_far_from_the_origin(dim):
    """At an offset of 1000 bandwidths the dot form 2 q'k - |k|^2 would have lost every digit of float32."""
    near = [randn(1, 6, dim), randn(1, 9, dim)]
    far = [(x + 1000).float() for x in near]
    width = torch.ones(1, 1, 1)
    tiles = DistanceTiles([*far, width], [True] * 3, KERNELS["gaussian"], torch.float32)
    query, key = (x.double() for x in far)
    exact = -0.5 * (query[:, ROWS].unsqueeze(-2) - key[:, COLS].unsqueeze(-3)).square().sum(-1)
    bounds.assert_same(tiles.scores(ROWS, COLS), exact)


def test_a_gradient_is_summed_over_the_axes_it_was_shared_along():
    total = torch.zeros(1, 3, 1)
    add_shared(total, torch.ones(2, 3, 5))
    assert (total == 10).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_pair_at_the_edge_of_a_boxcar_is_where_the_equations_have_it(dtype, dim):
    lattice = 0.1 * torch.cartesian_prod(*[torch.arange(9, dtype=dtype)] * dim).reshape(-1, dim)
    for width in (0.1, 0.3, 0.5):
        tiles = DistanceTiles([lattice, lattice, torch.full((1, 1), width, dtype=dtype)], [False] * 3, BOXCAR, dtype)
        inside = (lattice.unsqueeze(1) - lattice).square().sum(-1).sqrt() <= torch.tensor(width, dtype=dtype)
        everything = slice(0, len(lattice))
        assert torch.equal(tiles.scores(everything, everything) == 0, inside)
        assert torch.equal(tiles.masses(everything, everything) == 1, inside)
