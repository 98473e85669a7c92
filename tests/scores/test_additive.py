"""The additive score is a dense network with one hidden tanh layer on [q; k] (eq. 12), with a measured range."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from tests import bounds
from tests.refuses import refuses
from torch import nn

import regard
from regard.scores import Additive, additive
from regard.scores.additive import GRID, INITIAL_BOUND, LOGISTIC_ERROR, ActivationRange, AdditivePair, round_up

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="ranges are measured on a GPU")
BACKENDS = ("reference", "blocked")


def network_of(score):
    """Linear([q; k]) -> tanh -> Linear, with the weights of the score."""
    hidden, query_dim = score.query_weight.shape
    key_dim = score.key_weight.shape[1]
    network = nn.Sequential(
        nn.Linear(query_dim + key_dim, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, 1, bias=False)
    )
    network[0].weight.data.copy_(torch.cat([score.query_weight, score.key_weight], dim=1))
    network[2].weight.data.copy_(score.weight.unsqueeze(0))
    return network.double()


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_a_dense_network_on_the_pair_with_every_gradient(backend):
    """The chapter's remark below eq. 12."""
    score = Additive(3, 5, 7).double()
    network = network_of(score)
    query, key, value = (torch.randn(2, *s, dtype=torch.float64).requires_grad_() for s in ((5, 3), (11, 5), (11, 2)))

    def on_pairs(query, key):
        sizes = (2, query.shape[-2], key.shape[-2])
        left = query.unsqueeze(-2).expand(*sizes, 3)
        right = key.unsqueeze(-3).expand(*sizes, 5)
        return network(torch.cat([left, right], dim=-1)).squeeze(-1)

    ours = regard.attend(query, key, value, score, backend=backend)
    theirs = regard.attend(query, key, value, on_pairs, backend="reference")
    bounds.assert_close(ours, theirs, bounds.roundings(theirs, 128))
    cotangent = torch.randn_like(ours)
    leaves = (query, key, value)
    found = torch.autograd.grad(ours, (*leaves, *score.parameters()), cotangent)
    expected = torch.autograd.grad(theirs, (*leaves, *network.parameters()), cotangent)
    to_query, to_key = expected[3].split([3, 5], dim=1)
    for left, right in zip(found, (*expected[:3], to_query, to_key, expected[4].squeeze(0)), strict=True):
        bounds.assert_close(left, right, bounds.roundings(right, 512))


def test_without_projections_it_takes_projected_tokens():
    score = Additive(3, 5, 7).double()
    inner = Additive.of_projected(7).double()
    inner.weight.data.copy_(score.weight)
    query, key, value = (torch.randn(*s, dtype=torch.float64) for s in ((5, 3), (11, 5), (11, 2)))
    whole = regard.attend(query, key, value, score)
    split = regard.attend(query @ score.query_weight.mT, key @ score.key_weight.mT, value, inner)
    bounds.assert_same(split, whole)
    assert dict(inner.named_parameters()).keys() == {"weight"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_for_each_head(backend):
    score = Additive.of_projected(7, heads=3).double()
    query, key, value = (torch.randn(2, 3, n, 7, dtype=torch.float64) for n in (5, 11, 11))
    together = regard.attend(query, key, value, score, backend=backend)
    for head in range(3):
        one = Additive.of_projected(7).double()
        one.weight.data.copy_(score.weight[head])
        alone = regard.attend(query[:, head], key[:, head], value[:, head], one, backend=backend)
        bounds.assert_close(together[:, head], alone, bounds.roundings(alone, 64))


def test_tokens_it_was_not_built_for_are_refused():
    query, key = torch.randn(5, 3), torch.randn(7, 5)
    with refuses("query", "dim 3"):
        regard.attend(query, key, key, Additive(4, 5, 7))
    with refuses("key", "dim 5", "dim 4"):
        regard.attend(query, key, key, Additive(3, 4, 7))
    with refuses("query"):
        regard.attend(query.double(), key.double(), key.double(), Additive(3, 5, 7))
    with refuses("query", "dim 7"):
        regard.attend(query, key, key, Additive.of_projected(7))


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_weights_for_other_heads_than_the_batch_axis_are_refused(backend, batch):
    query, key = torch.randn(*batch, 5, 7), torch.randn(*batch, 7, 7)
    with refuses("score"):
        regard.attend(query, key, key, Additive.of_projected(7, heads=3), backend=backend)


@pytest.mark.parametrize(
    ("argument", "sizes"),
    [("query_dim", (0, 3, 3)), ("key_dim", (3, -1, 3)), ("hidden_dim", (3, 3, 2.0)), ("query_dim", (True, 3, 3))],
)
def test_sizes_that_are_not_whole_and_positive_are_refused(argument, sizes):
    with refuses(argument, "a whole number, at least 1"):
        Additive(*sizes)


def test_a_new_score_is_drawn_as_a_linear_layer_is():
    score = Additive(16, 25, 9)
    assert score.query_weight.abs().max() <= 1 / 4
    assert score.key_weight.abs().max() <= 1 / 5
    assert score.weight.abs().max() <= 1 / 3
    assert repr(score) == "Additive(query_dim=16, key_dim=25, hidden_dim=9)"
    assert "projected" in repr(Additive.of_projected(9))


def test_a_range_starts_on_the_grid_which_rises():
    assert ActivationRange().range == (INITIAL_BOUND, INITIAL_BOUND)
    assert INITIAL_BOUND in GRID
    assert list(GRID) == sorted(set(GRID))
    assert GRID[0] > 0


@pytest.mark.parametrize("step", GRID)
def test_round_up_gives_the_smallest_grid_value_that_is_not_below(step):
    assert round_up(step) == step
    assert round_up(math.nextafter(step, 0.0)) == step
    above = [other for other in GRID if other > step]
    assert round_up(math.nextafter(step, math.inf)) == (above[0] if above else GRID[-1])


@pytest.mark.parametrize(
    ("largest", "expected"), [(0.0, GRID[0]), (math.nan, GRID[0]), (1e4, GRID[-1]), (math.inf, GRID[-1])]
)
def test_values_outside_the_grid_round_to_its_ends(largest, expected):
    assert round_up(largest) == expected


def test_queries_and_keys_have_separate_ranges():
    ranges = ActivationRange()
    ranges.update(0.3, 4.2)
    assert ranges.range == (round_up(0.3), round_up(4.2))
    assert ranges.range[0] < 4.2 <= ranges.range[1]
    score = Additive.of_projected(4)
    score.reach.update(0.3, 4.2)
    assert score.pair(torch.randn(3, 4), torch.randn(5, 4)).reach == (round_up(0.3), round_up(4.2))


def test_outlier_tokens_do_not_widen_the_range(monkeypatch):
    monkeypatch.setattr(additive, "TOKENS_PER_OUTLIER", 10)
    tokens = torch.rand(4, 5, 3)
    tokens[0, 1, 2], tokens[3, 0, 0], tokens[2, 2, 2] = -50.0, 9.0, -3.0
    assert additive._activation_bound(tokens) == 3.0
    monkeypatch.setattr(additive, "TOKENS_PER_OUTLIER", 100)
    assert additive._activation_bound(tokens) == 50.0


@pytest.fixture
def measurements(monkeypatch):
    """The shapes of the tokens that scores have measured."""
    seen = []
    monkeypatch.setattr(ActivationRange, "observe", lambda self, query, key: seen.append((query.shape, key.shape)))
    return seen


def test_only_training_measures_activations(measurements):
    score, query, key = Additive(3, 5, 4), torch.randn(2, 6, 3), torch.randn(2, 7, 5)
    regard.attend(query, key, key, score)
    assert measurements == [((2, 6, 4), (2, 7, 4))]  # projected
    with torch.no_grad():
        regard.attend(query, key, key, score)
    regard.attend(query, key, key, score.eval())
    assert len(measurements) == 1


def test_activations_are_not_measured_on_a_cpu():
    ranges = ActivationRange()
    for _ in range(40):
        ranges.observe(torch.full((3, 4), 0.1, device="cpu"), torch.full((3, 4), 0.1, device="cpu"))
    assert ranges.range == (INITIAL_BOUND, INITIAL_BOUND)


def test_a_copy_keeps_the_range_and_drops_the_pending_measurement():
    score = Additive(3, 3, 4)
    score.reach.update(2.0, 3.0)
    score.reach._calls, score.reach._pending = 5, object()
    for other in (copy.deepcopy(score.reach), pickle.loads(pickle.dumps(score.reach))):
        assert other.range == (2.0, 3.0)
        assert (other._calls, other._pending) == (0, None)
    assert score.reach._calls == 5


def test_the_range_is_not_in_the_state_dict():
    assert set(Additive(3, 3, 4).state_dict()) == {"query_weight", "key_weight", "weight"}


@GPU
def test_a_measurement_is_used_some_calls_later():
    score = Additive.of_projected(4).to("cuda")
    query, key = torch.full((9, 4), 0.7, device="cuda"), torch.full((5, 4), -3.2, device="cuda")
    assert score.pair(query, key).reach == (INITIAL_BOUND, INITIAL_BOUND)
    torch.cuda.synchronize()
    assert score.pair(query, key).reach == (round_up(0.7), round_up(3.2))
    score.eval()
    for _ in range(2 * additive.CALLS_PER_MEASUREMENT):
        assert score.pair(7 * query, key).reach == (round_up(0.7), round_up(3.2))


@GPU
def test_activations_are_measured_once_per_calls_per_measurement():
    score = Additive.of_projected(4).to("cuda")
    small, large = (torch.full((3, 4), size, device="cuda") for size in (0.7, 7.7))
    score.pair(small, small)
    torch.cuda.synchronize()
    ranges = [score.pair(large, large).reach for _ in range(additive.CALLS_PER_MEASUREMENT)]
    torch.cuda.synchronize()
    assert set(ranges) == {(round_up(0.7), round_up(0.7))}
    assert score.pair(large, large).reach == (round_up(7.7), round_up(7.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_of_each_tanh_is_within_its_bound(dtype):
    """One hidden unit with weight 1, for activations of any size."""
    activations = torch.cat([torch.linspace(-40, 40, 40_001), torch.logspace(-8, 0, 2_001)]).to("cpu", dtype)
    pair = AdditivePair(activations[:, None], activations.new_zeros(1, 1), activations.new_ones(1, 1), (6.0, 6.0))
    exact = np.tanh(activations.numpy().astype(np.longdouble))
    error = np.abs(pair.scores()[:, 0].numpy().astype(np.longdouble) - exact).max()
    assert 0 < error <= LOGISTIC_ERROR * torch.finfo(dtype).eps
