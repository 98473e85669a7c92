"""Identity A: additive tiles without a tanh per pair, inside the bound that the file states, in each of its ways."""

import numpy as np
import pytest
import torch
from tests.contracts.additive_ways import in_plain_operations, take_units

from regard.backends.blocked import chunks
from regard.backends.blocked.additive import TANH_ERROR
from regard.backends.blocked.chunks import ChunkTiles
from regard.backends.blocked.loops import LoopTiles
from regard.backends.blocked.memory import ALIGNMENT

ALL = slice(0, 101), slice(0, 103)
DTYPES = [torch.float32, torch.float64]
WAYS = [ChunkTiles, LoopTiles]


@pytest.fixture(autouse=True)
def _plain_loops(monkeypatch):
    in_plain_operations(monkeypatch)


def drawn(reach, hidden, dtype, heads=2):
    """Queries, keys and weights; |activations| reach up to `reach` and cancel, where their rounding is seen most."""
    signs = 2 * torch.randint(2, (heads, 1, hidden)) - 1
    centre = reach * signs * (1 - 0.1 * torch.rand(heads, 1, hidden, dtype=torch.float64))
    query, key = (side * centre + 0.3 * torch.randn(heads, n, hidden) for side, n in ((1, 101), (-1, 103)))
    query, key = (x.clamp(-reach, reach) for x in (query, key))
    weight = 2.0 * torch.randint(2, (heads, 1, hidden)) - 1
    return [x.to(dtype) for x in (query, key, weight)]


def by_tanh(query, key, weight):
    """eq. 12 in more digits than float64 needs: long double is not to be had, so float64 by tanh itself."""
    hidden = torch.tanh(query.double().unsqueeze(-2) + key.double().unsqueeze(-3))
    return (hidden * weight.double().unsqueeze(-2)).sum(-1)


@pytest.fixture(params=[2**11, 2**15, 2**21, "units", "loops"])
def way(request, monkeypatch, set_limits):
    """Chunks of a few pairs, of some rows and of the whole tile, the last ones shorter; unit by unit; or loops."""
    if request.param == "loops":
        return LoopTiles
    if request.param == "units":
        take_units(monkeypatch)
        monkeypatch.setattr(chunks, "SUMMED", 16)
    else:
        set_limits(additive_chunk_elements=request.param)
    return ChunkTiles


@pytest.mark.parametrize("hidden", [1, 7, 84, 1000])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_is_off_by_at_most_the_written_bound(way, dtype, share, hidden):
    operands = drawn(share * way.reaches[dtype], hidden, dtype)
    tiles = way(operands, [False] * 3)
    assert tiles._within_reach(*ALL)
    allowed = TANH_ERROR * torch.finfo(dtype).eps * operands[2].double().abs().sum(-1).max()
    assert (tiles.scores(*ALL).double() - by_tanh(*operands)).abs().max() <= allowed


@pytest.mark.parametrize("hidden", [7, 20])
@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gradient_is_off_by_at_most_the_written_bound(way, dtype, share, hidden):
    operands = drawn(share * way.reaches[dtype], hidden, dtype)
    tiles = way(operands, [True] * 3)
    grad = torch.randn(2, 101, 103, dtype=torch.float64).to(dtype)
    tiles.backward(*ALL, grad.clone())
    leaves = [x.double().requires_grad_() for x in operands]
    exact = torch.autograd.grad(by_tanh(*leaves), leaves, grad.double())
    each = TANH_ERROR * torch.finfo(dtype).eps
    size, weight = grad.double().abs(), operands[2].double().abs()
    allowed = (
        size.sum(-1, keepdim=True) * weight,
        size.sum(-2).unsqueeze(-1) * weight,
        size.sum((-2, -1))[:, None, None],
    )
    for found, right, bound in zip(tiles.gradients(), exact, allowed, strict=True):
        assert ((found.double() - right).abs() <= each * bound).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_kept_where_the_largest_activations_nearly_cancel(dtype, way):
    """One factor of uv is huge there, and the other tiny; in long double, more exact than float64."""
    for gap in (0.1, 0.5, 1.0):
        query = way.reaches[dtype] * (0.9 + 0.1 * torch.rand(200, 4)) * (2 * torch.randint(2, (200, 4)) - 1)
        key = (gap - query).clamp(-way.reaches[dtype], way.reaches[dtype])
        operands = [x.to(dtype) for x in (query, key, torch.randn(1, 4))]
        found = way(operands, [False] * 3).scores(slice(0, 200), slice(0, 200)).numpy()
        a, b, w = (x.numpy().astype(np.longdouble) for x in operands)
        exact = (np.tanh(a[:, None] + b) * w).sum(-1)
        assert np.abs(found - exact).max() <= TANH_ERROR * torch.finfo(dtype).eps * np.abs(w).sum()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hidden", [64, 1024, 4096])
@pytest.mark.parametrize("activation", [0.15487, 0.687448263168335])
def test_the_bound_is_kept_where_every_rounding_goes_the_same_way(way, hidden, activation, monkeypatch):
    """All units are alike."""
    if way is ChunkTiles:
        take_units(monkeypatch)
        monkeypatch.setattr(chunks, "SUMMED", 16)
    elif hidden > 1000:
        pytest.skip("how loops are summed is the compiler's choice")
    query, weight = torch.full((1, hidden), activation), torch.full((1, hidden), 1.0008704662322998)
    key = (2 * torch.rand(512, 1) - 1).expand(-1, hidden).contiguous()
    found = way([query, key, weight], [False] * 3).scores(slice(0, 1), slice(0, 512)).double()
    allowed = TANH_ERROR * torch.finfo(torch.float32).eps * weight.double().sum()
    assert (found - by_tanh(query, key, weight)).abs().max() <= allowed


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_bound_is_kept_for_weights_of_any_size(way, size, share):
    query, key, weight = drawn(share * way.reaches[torch.float32], 84, torch.float32)
    weight *= size * torch.randn(weight.shape)
    weight[..., 0] *= 1e-6
    found = way([query, key, weight], [False] * 3).scores(*ALL).double()
    allowed = TANH_ERROR * torch.finfo(torch.float32).eps * weight.double().abs().sum(-1).max()
    allowed += 84 * 2.0**-149  # subnormal weights: each product may be off by the smallest number
    assert (found - by_tanh(query, key, weight)).abs().max() <= allowed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_beyond_the_reach_take_tanh_and_stay_exact(dtype, way):
    operands = drawn(1.01 * way.reaches[dtype], 7, dtype)
    operands[0][0, 0, 0] = 1.01 * way.reaches[dtype]
    tiles = way(operands, [False] * 3)
    assert not tiles._within_reach(*ALL)
    allowed = 4 * torch.finfo(dtype).eps * operands[2].double().abs().sum(-1).max()
    assert (tiles.scores(*ALL).double() - by_tanh(*operands)).abs().max() <= allowed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e30])
def test_one_wild_token_leaves_the_others_alone(garbage, way):
    query, key, weight = drawn(1.0, 7, torch.float32)
    key[:, 3] = garbage
    scores = way([query, key, weight], [False] * 3).scores(*ALL)
    others = [j for j in range(103) if j != 3]
    exact = by_tanh(query, key[:, others], weight)
    allowed = TANH_ERROR * torch.finfo(torch.float32).eps * weight.double().abs().sum(-1).max()
    assert (scores[..., others].double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("most", [2**12, 2**16])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("learns", [False, True])
def test_no_tensor_has_more_numbers_with_a_hidden_axis_than_a_chunk(most, heads, learns, set_limits):
    """The textbook form would hold a number for each of the tile's pairs and 64 hidden units."""
    set_limits(additive_chunk_elements=most)
    query, key, weight = drawn(1.0, 64, torch.float32, heads)
    tiles = ChunkTiles([query[:1], key[:1], weight], [learns] * 3)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.ndim > 3 and min(result.shape[-3:-1]) > 1:
                largest = max(largest, result.numel())
            return result

    with Watch():
        tiles.scores(*ALL)
        if learns:
            tiles.backward(*ALL, torch.ones(heads, 101, 103))
    assert most / 8 < largest <= most
    assert tiles.memory.stretch.nbytes <= 4 * most + 2 * ALIGNMENT


@pytest.mark.parametrize("shared", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}])
def test_an_operand_that_heads_share_gets_the_gradients_of_all(shared, way):
    operands = [x[:1] if place in shared else x for place, x in enumerate(drawn(1.0, 7, torch.float64, heads=3))]
    tiles = way(operands, [True] * 3)
    torch.testing.assert_close(tiles.scores(*ALL), by_tanh(*operands))
    grad = torch.randn(3, 101, 103, dtype=torch.float64)
    tiles.backward(*ALL, grad.clone())
    leaves = [x.clone().requires_grad_() for x in operands]
    exact = torch.autograd.grad(by_tanh(*leaves), leaves, grad)
    for found, right in zip(tiles.gradients(), exact, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wild", [torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("is_forbidden", [False, True])
def test_gradients_beside_an_activation_of_any_size(side, wild, is_forbidden, way):
    """tanh is flat there, and nothing of it may reach the group's other units; a mask may hide the token altogether."""
    operands = drawn(1.0, 7, torch.float32)
    operands[side][:, 3, 2] = wild
    grad = torch.randn(2, 101, 103)
    if is_forbidden:
        grad.select(side + 1, 3).zero_()
    tiles = way(operands, [True] * 3)
    tiles.backward(*ALL, grad.clone())
    leaves = [x.double().requires_grad_() for x in operands]
    exact = torch.autograd.grad(by_tanh(*leaves), leaves, grad.double())
    for found, right in zip(tiles.gradients(), exact, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)
