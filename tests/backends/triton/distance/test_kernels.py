"""The Triton kernels of distances agree with the reference: every radial kernel, mask, bias and size, every gradient.

Without a GPU they run in Triton's interpreter, which warns where a GPU silently returns an infinity.
"""

from collections import Counter

import pytest
import torch
from tests.backends.triton.distance.judge import disagreements, drawn
from torch import Tensor

import regard
from regard import Mask
from regard.backends.triton.distance import narrow, split, tiled_backward, tiled_forward
from regard.backends.triton.launch import Tile
from regard.scores import Epanechnikov, Gaussian, Laplacian, Triangular, Tricube
from regard.scores.kernels import KERNELS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHARED_KEYS = {"batch": (2, 3), "key_batch": (2, 1)}
LEAVE_ONE_OUT = ~Mask.window(0, 0, align="top_left")


def per_key(keys: int) -> Tensor:
    return torch.randn(1, keys, dtype=torch.float64)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 16 queries and keys, so that a few tokens make several of them."""
    tile = Tile(16, 16, 1, 1)
    for name in ("FORWARD_TILES", "BACKWARD_TILES"):
        monkeypatch.setattr(narrow, name, (tile,))
    monkeypatch.setattr(tiled_forward, "DIFFERENCE_TILE", tile)
    monkeypatch.setattr(tiled_forward, "PRODUCT_TILES", dict.fromkeys((32, 64, 128), tile))
    for name in ("DIFFERENCE_QUERY_TILES", "DIFFERENCE_KEY_TILES", "PRODUCT_QUERY_TILES", "PRODUCT_KEY_TILES"):
        monkeypatch.setattr(tiled_backward, name, dict.fromkeys((32, 64, 128), tile))


@pytest.fixture
def launches(monkeypatch):
    """The name of each kernel that is launched."""
    names = []
    for module in (narrow, split, tiled_forward, tiled_backward):

        def recorded(kernel, *operands, launch=module.launch, **settings):
            names.append(kernel.__name__)
            launch(kernel, *operands, **settings)

        monkeypatch.setattr(module, "launch", recorded)
    return names


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_radial_kernel_agrees_in_few_dimensions(kernel):
    assert disagreements(drawn(kernel, 19, 37, 2, 3, (2, 2), (2, 1), spread=0.3)) == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_radial_kernel_agrees_in_many_dimensions(kernel):
    assert disagreements(drawn(kernel, 7, 13, 17, 3, spread=0.1)) == []


@pytest.mark.parametrize("score", [Gaussian, Laplacian, Triangular])
@pytest.mark.parametrize(("dim", "value_dim"), [(1, 1), (3, 19), (19, 2)])
def test_bandwidth_gets_a_gradient(score, dim, value_dim):
    call = drawn(score(torch.tensor([[[2.0]], [[3.0]]]), learnable=True), 11, 23, dim, value_dim, (2, 1), spread=0.4)
    assert disagreements(call) == []


@pytest.mark.parametrize(
    ("queries", "keys", "dim"),
    [
        *((queries, keys, 2) for queries in (15, 16, 17) for keys in (31, 32, 33)),
        (15, 33, 18),
        (16, 32, 18),
        (17, 31, 18),
    ],
)
@pytest.mark.usefixtures("small_tiles")
def test_sizes_around_the_edges_of_tiles_agree(queries, keys, dim):
    mask = Mask.causal(align="lower_right")
    assert disagreements(drawn(Gaussian(3.0), queries, keys, dim, 1, mask=mask, bias=per_key(keys))) == []


MASKS = {
    "lengths": Mask.lengths(torch.tensor([29, 0])),
    "causal": Mask.causal(align="top_left"),
    "window": Mask.window(3, 2, align="top_left"),
    "leave one out": LEAVE_ONE_OUT,
    "causal, padded, leave one out": Mask.causal(align="top_left")
    & LEAVE_ONE_OUT
    & Mask.lengths(torch.tensor([13, 31])),
    "not a length": ~Mask.lengths(torch.tensor([3, 5])),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("score", "dim", "value_dim"), [("gaussian", 2, 2), ("biweight", 2, 9), (Gaussian(3.0), 17, 2)]
)
@pytest.mark.usefixtures("small_tiles")
def test_masks_agree(mask, score, dim, value_dim):
    assert disagreements(drawn(score, 31, 31, dim, value_dim, (2,), spread=0.3, mask=MASKS[mask])) == []


@pytest.mark.parametrize(("score", "dim"), [("gaussian", 3), ("epanechnikov", 3), (Gaussian(3.0), 17)])
@pytest.mark.parametrize("shape", [(1, 23), (2, 1, 1, 23), (2, 3, 1, 23), (1, 1)])
def test_key_bias_agrees(score, dim, shape):
    bias = 3 * torch.randn(shape, dtype=torch.float64)
    assert disagreements(drawn(score, 5, 23, dim, 2, **SHARED_KEYS, spread=0.3, bias=bias)) == []


@pytest.mark.parametrize(("score", "dim"), [("gaussian", 1), ("boxcar", 2), ("tricube", 1), (Gaussian(4.0), 17)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees(score, dim, dtype):
    assert disagreements(drawn(score, 13, 29, dim, 2, (2,), spread=0.4), dtype) == []


def test_boxcar_compares_its_edge_in_the_dtype_of_the_data():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        points = (torch.arange(40) / 10).to(dtype).unsqueeze(-1)
        for width in (0.1, 0.3, 0.7, 1.1):
            found = regard.attend(points, points, points, regard.scores.Boxcar(width), backend="triton")
            is_inside = (points - points.mT).abs() <= torch.tensor(width, dtype=dtype)
            weights = is_inside / is_inside.sum(-1, keepdim=True)
            torch.testing.assert_close(found, (weights @ points.double().to(weights)).to(dtype))


@pytest.mark.parametrize(("dim", "value_dim"), [(2, 2), (2, 9), (17, 2)])
@pytest.mark.parametrize("score", ["gaussian", "laplacian"])
def test_far_query_gets_the_value_of_its_nearest_key(score, dim, value_dim):
    call = drawn(score, 7, 11, dim, value_dim)
    far = torch.logspace(0, 6, 7, dtype=torch.float64).unsqueeze(-1)
    direction = torch.nn.functional.normalize(torch.randn(1, dim, dtype=torch.float64), dim=-1)
    query = (far * direction).float()
    found = regard.inspect(query, call.key.float(), call.value.float(), score, backend="triton")
    exact = regard.inspect(query.double(), call.key, call.value, score, backend="reference")
    torch.testing.assert_close(found.output[:5].double(), exact.output[:5], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.log_mass.double(), exact.log_mass, rtol=1e-5, atol=1e-5)
    # The rounding of float32 decides about the farthest queries. Their output is a mean of values in any case.
    assert (found.output <= call.value.float().amax(0) + 1e-5).all()
    assert (found.output >= call.value.float().amin(0) - 1e-5).all()


@pytest.mark.parametrize(("dim", "value_dim"), [(2, 2), (17, 2)])
def test_gradients_of_far_queries_agree(dim, value_dim):
    call = drawn("gaussian", 7, 11, dim, value_dim)
    far = torch.logspace(0, 1.5, 7, dtype=torch.float64).unsqueeze(-1)
    # On a GPU the products of the backward pass are summed in another order than in the interpreter.
    roundings = 8 if call.query.is_cuda else 0
    assert disagreements(call._replace(query=call.query * far), roundings=roundings) == []


@pytest.mark.parametrize("score", ["triangular", "boxcar"])
@pytest.mark.parametrize("dim", [2, 17])
def test_query_without_keys_has_output_and_gradient_0(score, dim):
    call = drawn(score, 5, 7, dim, 2, spread=0.05)
    query = call.query.clone()
    query[1] += 100
    leaves = [x.float().requires_grad_() for x in (query, call.key, call.value)]
    record = regard.inspect(*leaves, score, backend="triton")
    assert record.log_mass.isneginf().tolist() == [False, True, False, False, False]
    assert (record.output[1] == 0).all()
    grads = torch.autograd.grad(record.output.sum() + record.log_mass[0], leaves)
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][1] == 0).all()


@pytest.mark.usefixtures("small_tiles")
def test_clusters_far_apart_agree():
    call = drawn(Gaussian(3.0), 24, 24, 17, 2)
    offset = torch.zeros(24, 1, dtype=torch.float64)
    offset[12:] = 1e4
    assert disagreements(call._replace(query=call.query + offset, key=call.key + offset)) == []


@pytest.mark.parametrize(("batch", "key_batch"), [((2, 3), (2, 1)), ((1, 3), (2, 1)), ((2, 1), (1, 1))], ids=str)
@pytest.mark.parametrize("mask", [None, Mask.causal(align="top_left")], ids=["all", "causal"])
@pytest.mark.usefixtures("small_tiles")
def test_near_and_far_queries_in_one_tile_agree(batch, key_batch, mask):
    """Some queries are far because of their position, some because of the width of their head."""
    call = drawn(Gaussian(torch.tensor([[3.0], [0.5], [40.0]]), learnable=True), 21, 37, 17, 5, (2, 3), mask=mask)
    call.query[..., ::4, :] += 8.0
    query, key, value = (
        x[: axes[0], : axes[1]] for x, axes in ((call.query, batch), (call.key, key_batch), (call.value, key_batch))
    )
    assert disagreements(call._replace(query=query, key=key, value=value)) == []


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_values_wider_than_a_tile_agree(kernel):
    assert disagreements(drawn(kernel, 18, 21, 19, 150, spread=0.3)) == []


def test_width_whose_square_is_not_a_normal_number_gives_finite_output():
    query, key = torch.tensor([[0.0], [1e-24]]), torch.tensor([[0.0], [2e-24]])
    found = regard.attend(query, key, torch.tensor([[0.0], [1.0]]), Gaussian(1e-24), backend="triton")
    assert found.isfinite().all()
    narrow = regard.attend(query, key, torch.tensor([[0.0], [1.0]]), Gaussian(1e-30), backend="triton")
    assert narrow.isfinite().all()


@pytest.mark.parametrize("width", [1e-20, 1e-24, 1e25])
@pytest.mark.parametrize("score", [Epanechnikov, Triangular, Tricube])
def test_width_whose_square_is_not_a_normal_number_gives_finite_output_for_a_compact_kernel(score, width):
    # Each query is a key, and all other keys are far outside of its support.
    key, value = 10 * width * torch.arange(5.0).unsqueeze(-1), torch.randn(5, 2)
    found = regard.inspect(key[:3], key, value, score(width), backend="triton")
    if width > 1e-23:  # the square of a smaller distance is 0 in float32
        torch.testing.assert_close(found.output, value[:3])
        torch.testing.assert_close(found.log_mass, torch.zeros(3))
    assert found.output.isfinite().all()
    assert found.log_mass.isfinite().all()


def test_gradients_are_summed_over_shared_axes():
    call = drawn("gaussian", 5, 7, 2, 2, (3, 2), (1, 2))
    assert disagreements(call) == []


@pytest.mark.parametrize(
    ("batch", "key_batch"),
    [((2, 3, 2), (2, 1, 2)), ((3, 2, 1, 2), (1, 2, 1, 1)), ((2, 3, 2, 3), (2, 1, 2, 1))],
    ids=str,
)
@pytest.mark.parametrize("dim", [2, 17])
def test_axes_shared_in_more_than_two_groups_agree(batch, key_batch, dim):
    call = drawn(Gaussian(2.0), 5, 7, dim, 2, batch, key_batch)
    assert disagreements(call._replace(value=call.value[tuple(slice(size) for size in key_batch)])) == []


def test_bias_at_masked_keys_is_ignored():
    bias = per_key(7)
    bias[:, 4:] = torch.nan
    mask = Mask.lengths(torch.tensor([4, 3]))
    assert disagreements(drawn("gaussian", 5, 7, 2, 2, (2,), mask=mask, bias=bias)) == []


DIFFERENCES_BACKWARD = {
    "write_value_parts",
    "write_d_output_parts",
    "difference_query_gradients",
    "difference_key_gradients",
}
PRODUCTS_BACKWARD = {"write_query_parts", "write_key_parts", "product_query_gradients", "product_key_gradients"}
NARROW_BACKWARD = {"narrow_query_gradients", "narrow_key_gradients"}


@pytest.mark.parametrize(
    ("kernel", "dim", "value_dim", "forward", "backward"),
    [
        ("gaussian", 16, 8, {"narrow_forward", "difference_forward"}, NARROW_BACKWARD),
        ("tricube", 16, 8, {"narrow_forward", "difference_forward"}, NARROW_BACKWARD),
        ("boxcar", 16, 8, {"narrow_forward"}, NARROW_BACKWARD),
        ("gaussian", 16, 9, {"difference_forward"}, DIFFERENCES_BACKWARD),
        ("laplacian", 17, 2, {"difference_forward"}, DIFFERENCES_BACKWARD),
        (
            "squared_distance", 17, 2,
            {"write_forward_parts", "product_forward", "difference_forward"},
            DIFFERENCES_BACKWARD | PRODUCTS_BACKWARD,
        ),
    ],
)  # fmt: skip
def test_each_kernel_is_launched_once(launches, kernel, dim, value_dim, forward, backward):
    tokens = [torch.randn(2, 5, size, requires_grad=True) for size in (dim, dim, value_dim)]
    output = regard.attend(*tokens, kernel, backend="triton")
    assert Counter(launches) == dict.fromkeys(forward, 1)
    launches.clear()
    output.sum().backward()
    assert Counter(launches) == dict.fromkeys(backward, 1)


@pytest.mark.parametrize(("dim", "value_dim"), [(2, 2), (2, 9), (17, 2)])
@pytest.mark.parametrize(("needed", "side"), [("query", "query"), ("key", "key"), ("value", "key")])
def test_kernels_run_only_for_gradients_that_are_needed(launches, dim, value_dim, needed, side):
    tokens = {"query": torch.randn(5, dim), "key": torch.randn(7, dim), "value": torch.randn(7, value_dim)}
    tokens[needed].requires_grad_()
    output = regard.attend(*tokens.values(), "gaussian", backend="triton")
    launches.clear()
    output.sum().backward()
    assert {name.split("_")[1] for name in launches if name.endswith("_gradients")} == {side}
