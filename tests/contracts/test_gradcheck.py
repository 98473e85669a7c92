"""Every gradient against finite differences in float64, away from kinks; kinks have tests of their own below."""

import pytest
import torch
from tests import bounds
from tests.contracts.cases import HEADS, SCORES
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard.backends.blocked.softmax import TiledProblem
from regard.scores.names import KERNEL_SCORES, NAMED_SCORES, SIZED_SCORES

BACKENDS = ("reference", "blocked")
SEEN = regard.Mask.keep(torch.tensor([[True, False, True], [False, True, True]]))
# A kernel whose bandwidth learns has every gradient of the one whose bandwidth is fixed, and one more.
# One score of each closed form is compared entry by entry, the others along random directions.
ENTRY_BY_ENTRY = ("dot", "softcap", "gaussian learnable", "triangular learnable", "additive")
NAMES = [name for name in SCORES if f"{name} learnable" not in SCORES]


@pytest.fixture(autouse=True)
def _tiny_tiles(monkeypatch, set_limits):
    """One query by two keys: every case has four tiles, two of them ragged."""
    monkeypatch.setattr(TiledProblem, "_tile_shape", lambda self: (1, 2))
    set_limits(row_block_elements=1, row_block_queries=1)


def randn(*shape, scale=1.0):
    return (scale * torch.randn(shape, dtype=torch.float64)).requires_grad_()


def inputs(query_dim, key_dim):
    """query, key, value, bias; keys are shared by the heads."""
    shapes = (HEADS, 2, query_dim), (1, 3, key_dim), (HEADS, 3, 2), (1, 2, 3)
    return [randn(*shape, scale=scale) for shape, scale in zip(shapes, (0.2, 0.2, 1.0, 1.0), strict=True)]


def pooling(score, backend):
    def pooled(query, key, value, bias, *parameters):
        del parameters  # finite differences change the score's own in place
        record = regard.inspect(query, key, value, score, SEEN, bias=bias, backend=backend)
        return record.output, record.log_mass

    return pooled


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_inputs_bias_and_parameters(name, backend):
    case = SCORES[name]
    score = case.build().double()
    arguments = (*inputs(case.query_dim, case.key_dim), *score.parameters())
    whole = backend == "blocked" and name in ENTRY_BY_ENTRY
    assert gradcheck(pooling(score, backend), arguments, fast_mode=not whole)


@pytest.mark.parametrize("name", [*NAMED_SCORES, *SIZED_SCORES])
def test_second_gradients_through_the_reference(name):
    case = SCORES[name]
    score = case.build().double()
    arguments = (*inputs(case.query_dim, case.key_dim), *score.parameters())
    assert gradgradcheck(pooling(score, "reference"), arguments, fast_mode=True)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_a_callable_reach_what_it_closes_over(backend, check):
    weight = randn(5, 5)

    def pooled(query, key, value, bias, weight):
        matrix = torch.tanh(weight)  # not a leaf
        record = regard.inspect(query, key, value, lambda q, k: (q @ matrix) @ k.mT, SEEN, bias=bias, backend=backend)
        return record.output, record.log_mass

    assert check(pooled, (*inputs(5, 5), weight), fast_mode=True)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_a_callable_bias_reach_what_it_closes_over(backend, check):
    slope = randn(1)

    def pooled(query, key, value, bias, slope):
        decay = slope.exp()
        return regard.attend(
            query, key, value, "gaussian", SEEN, bias=lambda i, j: -decay * (i[:, None] - j).abs(), backend=backend
        )

    assert check(pooled, (*inputs(5, 5), slope), fast_mode=True)


def test_the_callable_ran_in_several_blocks():
    heights = []

    def score(query, key):
        heights.append(query.shape[-2])
        return query @ key.mT

    query, key, value, _ = inputs(5, 5)
    regard.attend(query, key, value, score, backend="blocked").sum().backward()
    assert heights == [1] * 4, "two blocks of one query, each run once forward and once backward"


# --- Kinks ---------------------------------------------------------------------------------------------------


def kinked(name, backend, query, key):
    """Output, log_mass and the gradients of query, key, value and bandwidth, all of one pooling in one dimension."""
    kernel = KERNEL_SCORES[name](1.0, learnable=KERNEL_SCORES[name]().kernel.is_differentiable)
    query, key = (torch.tensor(x, dtype=torch.float64).unsqueeze(-1).requires_grad_() for x in (query, key))
    value = torch.linspace(-1, 2, len(key), dtype=torch.float64).unsqueeze(-1).requires_grad_()
    record = regard.inspect(query, key, value, kernel.double(), backend=backend)
    leaves = (query, key, value, *kernel.parameters())
    gradients = torch.autograd.grad(record.output.sum(), leaves, allow_unused=True, materialize_grads=True)
    return record.output, record.log_mass, gradients


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_gradients_are_finite_where_query_is_key(name, backend):
    output, _, gradients = kinked(name, backend, [0.0, 0.5], [0.0, 0.5, 0.25])
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_a_key_on_the_edge_of_the_support_gives_finite_gradients(name, backend):
    output, _, gradients = kinked(name, backend, [0.0], [1.0, -1.0, 0.5])
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [n for n in KERNEL_SCORES if n not in ("gaussian", "laplacian")])
def test_a_query_that_no_kernel_reaches_gets_zero_and_zero_gradients(name, backend):
    output, log_mass, gradients = kinked(name, backend, [9.0], [0.0, 1.0])
    assert output.item() == 0
    assert log_mass.item() == -torch.inf
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("place", [[0.0, 0.5, 0.25], [0.5, -0.5, 1.0], [2.0, 3.0, 1.5]])
@pytest.mark.parametrize("name", KERNEL_SCORES)
def test_blocks_and_reference_take_the_same_gradient_at_a_kink(name, place):
    _, _, reference = kinked(name, "reference", [0.0, 0.5], place)
    _, _, blocked = kinked(name, "blocked", [0.0, 0.5], place)
    for left, right in zip(reference, blocked, strict=True):
        bounds.assert_close(right, left, bounds.roundings(left, 16))


@pytest.mark.parametrize("dim", [16, 17])
def test_clusters_far_apart_keep_their_gradients(dim, monkeypatch):
    """One tile holds both clusters, a thousand bandwidths apart in each dimension."""
    monkeypatch.setattr(TiledProblem, "_tile_shape", lambda self: (600, 600))
    points = torch.randn(600, dim) + 1000 * (torch.arange(600) % 2).unsqueeze(-1)
    value = torch.randn(600, 1)

    def gradient(dtype, backend):
        query = points.to(dtype).requires_grad_()
        output = regard.attend(query, points.to(dtype), value.to(dtype), "gaussian", backend=backend)
        return torch.autograd.grad(output.sum(), query)[0]

    exact = gradient(torch.float64, "reference")
    reference, blocked = gradient(torch.float32, "reference"), gradient(torch.float32, "blocked")
    bounds.assert_as_good(blocked, reference, exact)
