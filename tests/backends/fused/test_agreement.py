"""The fused kernels agree with the reference: every link, mask, bias and size, outputs and every gradient.

Without a GPU they run in Triton's interpreter, which warns where a GPU silently returns an infinity.
"""

import pytest
import torch
from tests.backends.fused.judge import disagreements, drawn
from torch import Tensor

import regard
from regard import Mask
from regard.backends.fused import configurations as tables
from regard.scores import Gaussian, Laplacian, Triangular
from regard.scores.kernels import KERNELS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHARED = {"batch": (2, 3), "key_batch": (2, 1)}
ALONE = ~Mask.window(0, 0, align="top_left")


def per_key(keys: int) -> Tensor:
    return torch.randn(1, keys, dtype=torch.float64)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 16 queries and keys, so that a few tokens make several of them."""
    for name in ("NARROW", "NARROW_BACKWARD"):
        monkeypatch.setattr(tables, name, (tables.Tile(16, 16, 1),))
    for name in ("PRODUCT", "WIDE_ROWS", "WIDE_COLUMNS", "PRODUCT_ROWS", "PRODUCT_COLUMNS"):
        monkeypatch.setattr(tables, name, dict.fromkeys((32, 64, 128), tables.Tile(16, 16, 1, 1)))
    monkeypatch.setattr(tables, "EXACT", tables.Tile(16, 16, 1, 1))


@pytest.mark.parametrize("link", KERNELS)
def test_every_link_in_few_dimensions(link):
    assert disagreements(drawn(link, 19, 37, 2, 3, (2, 2), (2, 1), spread=0.3)) == []


@pytest.mark.parametrize("link", KERNELS)
def test_every_link_in_many_dimensions(link):
    assert disagreements(drawn(link, 7, 13, 17, 3, spread=0.1)) == []


@pytest.mark.parametrize("score", [Gaussian, Laplacian, Triangular])
@pytest.mark.parametrize(("dim", "value_dim"), [(1, 1), (3, 19), (19, 2)])
def test_a_bandwidth_learns(score, dim, value_dim):
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
def test_around_the_edges_of_tiles(queries, keys, dim):
    mask = Mask.causal(align="lower_right")
    assert disagreements(drawn(Gaussian(3.0), queries, keys, dim, 1, mask=mask, bias=per_key(keys))) == []


MASKS = {
    "lengths": Mask.lengths(torch.tensor([29, 0])),
    "causal": Mask.causal(align="top_left"),
    "window": Mask.window(3, 2, align="top_left"),
    "leave one out": ALONE,
    "causal, padded, leave one out": Mask.causal(align="top_left") & ALONE & Mask.lengths(torch.tensor([13, 31])),
    "not a length": ~Mask.lengths(torch.tensor([3, 5])),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("score", "dim", "value_dim"), [("gaussian", 2, 2), ("biweight", 2, 9), (Gaussian(3.0), 17, 2)]
)
@pytest.mark.usefixtures("small_tiles")
def test_masks(mask, score, dim, value_dim):
    assert disagreements(drawn(score, 31, 31, dim, value_dim, (2,), spread=0.3, mask=MASKS[mask])) == []


@pytest.mark.parametrize(("score", "dim"), [("gaussian", 3), ("epanechnikov", 3), (Gaussian(3.0), 17)])
@pytest.mark.parametrize("shape", [(1, 23), (2, 1, 1, 23), (2, 3, 1, 23), (1, 1)])
def test_a_bias_for_each_key(score, dim, shape):
    bias = 3 * torch.randn(shape, dtype=torch.float64)
    assert disagreements(drawn(score, 5, 23, dim, 2, **SHARED, spread=0.3, bias=bias)) == []


@pytest.mark.parametrize(("score", "dim"), [("gaussian", 1), ("boxcar", 2), ("tricube", 1), (Gaussian(4.0), 17)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(score, dim, dtype):
    assert disagreements(drawn(score, 13, 29, dim, 2, (2,), spread=0.4), dtype) == []


def test_a_boxcar_counts_its_edge_in_the_dtype_of_the_data():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        points = (torch.arange(40) / 10).to(dtype).unsqueeze(-1)
        for width in (0.1, 0.3, 0.7, 1.1):
            found = regard.attend(points, points, points, regard.scores.Boxcar(width), backend="triton")
            inside = (points - points.mT).abs() <= torch.tensor(width, dtype=dtype)
            weights = inside / inside.sum(-1, keepdim=True)
            torch.testing.assert_close(found, (weights @ points.double().to(weights)).to(dtype))


@pytest.mark.parametrize(("dim", "value_dim"), [(2, 2), (2, 9), (17, 2)])
@pytest.mark.parametrize("score", ["gaussian", "laplacian"])
def test_a_far_query_gets_its_nearest_key(score, dim, value_dim):
    call = drawn(score, 7, 11, dim, value_dim)
    far = torch.logspace(0, 6, 7, dtype=torch.float64).unsqueeze(-1)
    direction = torch.nn.functional.normalize(torch.randn(1, dim, dtype=torch.float64), dim=-1)
    query = (far * direction).float()
    found = regard.inspect(query, call.key.float(), call.value.float(), score, backend="triton")
    exact = regard.inspect(query.double(), call.key, call.value, score, backend="reference")
    torch.testing.assert_close(found.output[:5].double(), exact.output[:5], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.log_mass.double(), exact.log_mass, rtol=1e-5, atol=1e-5)
    # The farthest are decided by the rounding of float32; whatever it decides, a mean of keys comes back.
    assert (found.output <= call.value.float().amax(0) + 1e-5).all()
    assert (found.output >= call.value.float().amin(0) - 1e-5).all()


@pytest.mark.parametrize(("dim", "value_dim"), [(2, 2), (17, 2)])
def test_far_queries_have_gradients_too(dim, value_dim):
    call = drawn("gaussian", 7, 11, dim, value_dim)
    far = torch.logspace(0, 1.5, 7, dtype=torch.float64).unsqueeze(-1)
    assert disagreements(call._replace(query=call.query * far)) == []


@pytest.mark.parametrize("score", ["triangular", "boxcar"])
@pytest.mark.parametrize("dim", [2, 17])
def test_a_row_without_keys_is_0(score, dim):
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
def test_clusters_far_apart_are_measured_by_differences():
    call = drawn(Gaussian(3.0), 24, 24, 17, 2)
    offset = torch.zeros(24, 1, dtype=torch.float64)
    offset[12:] = 1e4
    assert disagreements(call._replace(query=call.query + offset, key=call.key + offset)) == []


@pytest.mark.parametrize(("batch", "key_batch"), [((2, 3), (2, 1)), ((1, 3), (2, 1)), ((2, 1), (1, 1))], ids=str)
@pytest.mark.parametrize("mask", [None, Mask.causal(align="top_left")], ids=["all", "causal"])
@pytest.mark.usefixtures("small_tiles")
def test_near_and_far_queries_side_by_side(batch, key_batch, mask):
    """Some are far by their place, some by the width of their head."""
    call = drawn(Gaussian(torch.tensor([[3.0], [0.5], [40.0]]), learnable=True), 21, 37, 17, 5, (2, 3), mask=mask)
    call.query[..., ::4, :] += 8.0
    query, key, value = (
        x[: axes[0], : axes[1]] for x, axes in ((call.query, batch), (call.key, key_batch), (call.value, key_batch))
    )
    assert disagreements(call._replace(query=query, key=key, value=value)) == []


@pytest.mark.parametrize("link", ["gaussian", "laplacian"])
def test_more_values_than_a_product_is_wide(link):
    assert disagreements(drawn(link, 18, 21, 19, 150, spread=0.3)) == []


def test_a_width_whose_square_is_no_float():
    query, key = torch.tensor([[0.0], [1e-24]]), torch.tensor([[0.0], [2e-24]])
    found = regard.attend(query, key, torch.tensor([[0.0], [1.0]]), Gaussian(1e-24), backend="triton")
    assert found.isfinite().all()
    narrow = regard.attend(query, key, torch.tensor([[0.0], [1.0]]), Gaussian(1e-30), backend="triton")
    assert narrow.isfinite().all()


def test_gradients_of_shared_axes_are_summed():
    call = drawn("gaussian", 5, 7, 2, 2, (3, 2), (1, 2))
    assert disagreements(call) == []
