"""Scores of the distance: the kernels of Nadaraya-Watson regression, their bandwidths and their edges (eq. 4 to 6)."""

import math

import numpy as np
import pytest
import torch
from tests import bounds, oracle
from tests.contracts.agreement import DTYPES
from tests.refuses import refuses
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.scores import Boxcar, Epanechnikov, Gaussian, SquaredDistance, Triangular
from regard.scores.names import KERNEL_SCORES

BACKENDS = ("reference", "blocked")


def drawn(queries=5, keys=7, dim=2, value_dim=3, dtype=torch.float64):
    return [torch.randn(n, d, dtype=dtype) for n, d in ((queries, dim), (keys, dim), (keys, value_dim))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bandwidth", [0.5, 2.0])
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_attention_with_a_log_kernel_is_nadaraya_watson(name, bandwidth, backend):
    """eq. 4, written as the fraction f / sum f, is eq. 3 with the score log f."""
    query, key, value = drawn(queries=11)
    found = regard.attend(query, key, value, KERNEL_SCORES[name](bandwidth), backend=backend)
    exact = torch.from_numpy(oracle.nadaraya_watson(name, query.numpy(), key.numpy(), value.numpy(), bandwidth))
    bounds.assert_close(found, exact, bounds.roundings(exact, 256))


@pytest.mark.parametrize("backend", BACKENDS)
def test_squared_distance_is_the_dot_form_of_eq_7(backend):
    """softmax(-|q - k|^2) = softmax(2 q'k - |k|^2): the norm of the query cancels, that of the key does not."""
    query, key, value = drawn()
    distance = regard.inspect(query, key, value, "squared_distance", backend=backend)
    norms = key.square().sum(-1)
    dot = regard.inspect(2 * query, key, value, "dot", bias=-norms, backend=backend)
    bounds.assert_close(distance.output, dot.output, bounds.roundings(dot.output, 64))
    # log_mass is that of the full score: here the query's own norm is in it.
    log_mass = dot.log_mass - query.square().sum(-1)
    bounds.assert_close(distance.log_mass, log_mass, bounds.roundings(log_mass, 64))


def test_squared_distance_is_a_gaussian_of_width_one_over_root_two():
    leaves = drawn()
    narrow = regard.attend(*leaves, Gaussian(1 / math.sqrt(2)))
    bounds.assert_close(regard.attend(*leaves, SquaredDistance()), narrow, bounds.roundings(narrow, 64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_an_offset_of_1000_bandwidths_costs_no_precision(name, backend):
    """Differences of tokens that float32 holds exactly are exact, wherever the tokens stand."""
    query, key, value = drawn(queries=31, keys=37, dtype=torch.float32)
    grid = 2.0**-12
    query, key = (grid * (x / grid).round() for x in (query, key))
    kernel = KERNEL_SCORES[name](1.0)
    near = regard.inspect(query, key, value, kernel, backend=backend)
    far = regard.inspect(query + 1000, key + 1000, value, kernel, backend=backend)
    assert torch.equal(far.output, near.output)
    assert torch.equal(far.log_mass, near.log_mass)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_far_clusters_keep_their_precision(backend):
    """Centring would not help here: the clusters stand 2000 bandwidths apart."""
    near = 0.25 * torch.randn(40, 1).mul(2**10).round().div(2**10)
    offsets = torch.tensor([-1000.0, 1000.0]).repeat(20).unsqueeze(-1)
    value = torch.randn(40, 2)
    found = regard.attend(near + offsets, near + offsets, value, "gaussian", backend=backend)
    alone = regard.attend(near[::2], near[::2], value[::2], "gaussian", backend="reference")
    bounds.assert_same(found[::2], alone)


# --- The edge of the boxcar ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bandwidth", [1.0, 0.1, 0.3, 1 / 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_inside_a_boxcar_is_abs_of_the_difference_at_most_the_bandwidth(dtype, bandwidth, backend):
    """That expression in the input's dtype and no other, at and around every edge."""
    query = torch.randn(40, 1).to(dtype)
    steps = torch.tensor([-2, -1, 0, 1, 2]) * torch.finfo(dtype).eps
    sides = torch.tensor([-1.0, 1.0])
    edges = (query + (sides * bandwidth).unsqueeze(-1).mul(1 + steps).flatten().to(dtype)).reshape(-1, 1)
    key = torch.cat([edges, query, torch.randn(50, 1).to(dtype)])
    record = regard.inspect(query, key, key, Boxcar(bandwidth), backend=backend)
    inside = (query - key.mT).abs() <= bandwidth
    assert torch.equal(record.scores() == 0, inside)
    count = inside.sum(-1)
    assert (inside & (query - key.mT != 0)).any()
    bounds.assert_same(record.log_mass, count.double().log())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_edge_of_a_boxcar_is_inside_and_that_of_every_other_kernel_outside(backend):
    query, key = torch.zeros(1, 1), torch.tensor([[1.0], [-1.0], [0.5]])
    for name, kernel in KERNEL_SCORES.items():
        weights = regard.inspect(query, key, key, kernel(1.0), backend=backend).weights()[0]
        if name == "boxcar":
            assert weights.tolist() == pytest.approx([1 / 3] * 3)
        elif name not in ("gaussian", "laplacian"):
            assert weights.tolist() == [0, 0, 1]


def test_the_kernel_that_the_chapter_calls_epanechnikov_is_triangular():
    query, key = torch.zeros(1, 1), torch.tensor([[0.0], [0.5]])
    triangular = regard.inspect(query, key, key, Triangular()).weights()[0]
    epanechnikov = regard.inspect(query, key, key, Epanechnikov()).weights()[0]
    assert triangular.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert epanechnikov.tolist() == pytest.approx([4 / 7, 3 / 7])


# --- Bandwidths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bandwidth_for_each_head(backend):
    query, key, value = (torch.randn(2, 3, n, 2, dtype=torch.float64) for n in (5, 7, 7))
    widths = torch.tensor([0.5, 1.0, 3.0])
    together = regard.attend(query, key, value, Gaussian(widths.unsqueeze(-1)), backend=backend)
    for head, width in enumerate(widths.tolist()):
        alone = regard.attend(query[:, head], key[:, head], value[:, head], Gaussian(width), backend=backend)
        bounds.assert_same(together[:, head], alone)


def test_a_bandwidth_for_each_dimension_rescales_the_axes():
    query, key, value = drawn()
    widths = torch.tensor([0.5, 2.0], dtype=torch.float64)
    found = regard.attend(query, key, value, Gaussian([0.5, 2.0]))
    bounds.assert_same(found, regard.attend(query / widths, key / widths, value, "gaussian"))


def test_a_learnable_bandwidth_stays_positive_under_any_step():
    score = Gaussian(0.01, learnable=True)
    optimizer = torch.optim.SGD(score.parameters(), lr=1e3)
    for _ in range(3):
        optimizer.zero_grad()
        score.bandwidth.backward()
        optimizer.step()
        assert score.bandwidth > 0


def test_learning_finds_the_width_that_data_were_drawn_with():
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 40).unsqueeze(-1)
    target = regard.attend(x, x, x.sin(), Gaussian(0.7))
    score = Gaussian(2.0, learnable=True)
    optimizer = torch.optim.Adam(score.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (regard.attend(x, x, x.sin(), score, backend="blocked") - target).square().sum().backward()
        optimizer.step()
    assert score.bandwidth.item() == pytest.approx(0.7, rel=1e-2)


def test_a_small_bandwidth_finds_the_nearest_neighbour_and_a_large_one_the_mean():
    query, key, value = drawn()
    nearest = torch.cdist(query, key).argmin(-1)
    bounds.assert_same(regard.attend(query, key, value, Gaussian(1e-2)), value[nearest])
    wide = regard.attend(query, key, value, Gaussian(1e9))
    bounds.assert_close(wide, value.mean(0).expand_as(wide), bounds.roundings(value, 32))


@pytest.mark.parametrize("width", [1e-60, 1e-30, 1e30, 1e60])
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_no_bandwidth_however_extreme_gives_nan(name, width):
    key = torch.tensor([[0.0], [1.0], [2.0]])
    for backend in BACKENDS:
        record = regard.inspect(key, key, key, KERNEL_SCORES[name](width), backend=backend)
        assert not record.output.isnan().any()
        exact = key if width < 1 else torch.ones_like(key)
        bounds.assert_same(record.output, exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_bandwidth_per_dimension_that_underflows_in_float32_gives_no_nan(name, backend):
    key = torch.tensor([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]])
    output = regard.attend(key, key, key, KERNEL_SCORES[name]([1e-60, 1e-60]), backend=backend)
    bounds.assert_same(output, key)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_learnable_bandwidth_that_underflows_gives_no_nan(shape, backend):
    key, score = torch.tensor([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]]), Gaussian(torch.ones(shape), learnable=True)
    score.log_bandwidth.data.fill_(-200.0)
    assert (score.bandwidth == 0).all()
    output = regard.attend(key, key, key, score, backend=backend)
    output.sum().backward()
    bounds.assert_same(output, key)
    assert torch.equal(score.log_bandwidth.grad, torch.zeros(shape))


def test_changing_an_array_later_does_not_change_the_bandwidth():
    widths = np.array([1.0, 2.0])
    score = Gaussian(widths)
    widths[:] = 5.0
    assert score.bandwidth.tolist() == [1.0, 2.0]


def test_a_learnable_boxcar_is_refused_with_the_reason():
    with refuses("learnable", "bandwidth", "gradient", "Boxcar"):
        Boxcar(1.0, learnable=True)


@pytest.mark.parametrize(
    "bandwidth",
    [0, -1.0, math.nan, math.inf, 10**400, "1", None, True, [1.0, 0.0], [], torch.tensor([]), [10**400], [[1], [1, 2]]],
)
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_a_bandwidth_that_is_not_positive_and_finite_is_refused(name, bandwidth):
    with refuses("bandwidth", "positive", "numbers", "finite"):
        KERNEL_SCORES[name](bandwidth)


def test_a_bandwidth_per_dimension_that_does_not_fit_is_refused_with_the_shape_for_heads():
    with refuses("query", "dim 2", "(3,)", "(heads, 1)"):
        regard.attend(*drawn(), Gaussian([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_bandwidths_for_other_heads_than_the_batch_axis_are_refused(backend):
    query, key, value = (torch.randn(2, n, 2) for n in (5, 7, 7))
    with refuses("score"):
        regard.attend(query, key, value, Gaussian(torch.ones(3, 1)), backend=backend)


def test_queries_and_keys_of_different_width_are_refused():
    with refuses("key", "Gaussian", "combines", "entry"):
        regard.attend(torch.randn(5, 4), torch.randn(7, 3), torch.randn(7, 3), "gaussian")


def test_a_score_shows_its_bandwidth():
    assert repr(Gaussian(0.5)) == "Gaussian(bandwidth=0.5, learnable=False)"
    assert "learnable=True" in repr(Gaussian(0.5, learnable=True))


def test_bandwidths_move_and_save_with_the_module():
    score = Gaussian([1.0, 2.0])
    assert set(score.state_dict()) == {"fixed_bandwidth"}
    assert score.double().bandwidth.dtype == torch.float64
    assert set(Gaussian(1.0, learnable=True).state_dict()) == {"log_bandwidth"}


def test_a_parameter_is_not_silently_detached():
    with refuses("bandwidth", "learnable=True"):
        regard.scores.Gaussian(torch.nn.Parameter(torch.ones(2)))


def test_a_bandwidth_without_numbers_is_taken_as_it_is():
    with FakeTensorMode():
        score = Gaussian(torch.full((2, 1), 0.5), learnable=True)
    assert "bandwidth=float32 (2, 1) on cpu" in f"{score}"


@pytest.mark.parametrize("tokens", [10, 400])
def test_a_boxcar_is_flat_and_not_without_a_gradient(tokens):
    query, key = torch.randn(1, tokens, 2, requires_grad=True), torch.randn(1, tokens, 2)
    regard.attend(query, key, key, "boxcar").sum().backward()
    assert torch.equal(query.grad, torch.zeros_like(query))
