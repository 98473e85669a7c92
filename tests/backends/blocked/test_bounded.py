"""Sums without a running maximum: taken where scores are bounded, as exact as online softmax, tails included."""

import math

import pytest
import torch
from tests import bounds

import regard
from regard import Mask
from regard.backends.blocked import bounded
from regard.scores.names import KERNEL_SCORES

DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _small_tiles(set_limits):
    set_limits(tile_pairs=1)


@pytest.fixture
def redone(monkeypatch):
    """The blocks of queries that online softmax sweeps again."""
    blocks, pool_rows = [], bounded.pool_rows
    monkeypatch.setattr(bounded, "pool_rows", lambda *at: blocks.append(at[2].start) or pool_rows(*at))
    return blocks


@pytest.fixture
def ran(monkeypatch):
    """How often this sweep ran."""
    calls, forward = [], bounded.forward
    monkeypatch.setattr(bounded, "forward", lambda *at: calls.append(at) or forward(*at))
    return calls


def assert_as_exact(query, key, value, score, **settings):
    found = regard.inspect(query, key, value, score, backend="blocked", **settings)
    reference = regard.inspect(query, key, value, score, backend="reference", **settings)
    wide = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in settings.items()}
    exact = regard.inspect(query.double(), key.double(), value.double(), score, backend="reference", **wide)
    for name in ("output", "log_mass"):
        results = getattr(found, name), getattr(reference, name), getattr(exact, name)
        if query.dtype == torch.float64:
            bounds.assert_close(results[0], results[2], bounds.roundings(results[2], 64), name)
        else:
            bounds.assert_as_good(*results, name)
    return found


@pytest.mark.parametrize("kernel", KERNEL_SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_takes_it_with_and_without_weights_of_keys(kernel, dtype, ran, redone):
    query, key, value = (torch.randn(*shape, dtype=dtype) for shape in [(2, 33, 3), (2, 150, 3), (2, 150, 4)])
    score = KERNEL_SCORES[kernel]() if kernel == "squared_distance" else KERNEL_SCORES[kernel](1.5)
    assert_as_exact(query, key, value, score)
    assert_as_exact(query, key, value, score, bias=(100 * torch.rand(150, dtype=dtype)).log() + 20)
    assert len(ran) == 2
    assert redone == []


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
@pytest.mark.parametrize("away", [3.0, 8.0, 40.0, 1e6])
def test_far_from_every_key_only_that_block_is_swept_again_and_the_nearest_key_is_the_limit(kernel, away, redone):
    key = torch.linspace(0, 1, 130, dtype=torch.float64).unsqueeze(-1)
    query = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
    query[20] = 1 + 0.05 * away
    value = torch.randn(130, 2, dtype=torch.float64)
    for dtype in DTYPES:
        redone.clear()
        found = assert_as_exact(query.to(dtype), key.to(dtype), value.to(dtype), KERNEL_SCORES[kernel](0.05))
        assert redone in ([], [16])
        assert bool(redone) == bool((found.log_mass < 0.5 * math.log(torch.finfo(dtype).tiny)).any())
    if away == 1e6 and kernel == "gaussian":
        torch.testing.assert_close(found.output[20], value[-1])


def test_an_outlier_outside_the_reach_of_float_adds_nothing():
    key = torch.tensor([[0.0], [0.1], [50.0]])
    value = torch.tensor([[1.0], [2.0], [1e30]])
    found = regard.attend(torch.tensor([[0.05]]), key, value, "gaussian", backend="blocked")
    assert found.item() == pytest.approx(1.5)


def test_keys_of_tiny_weight_count_where_there_are_no_others():
    """The bias is measured from its maximum: e^-300 of that is no float32, but the row has nothing else."""
    key, value = torch.tensor([[0.0], [1000.0]]), torch.tensor([[3.0], [5.0]])
    for kernel in ("gaussian", "boxcar"):
        found = assert_as_exact(torch.tensor([[0.0]]), key, value, kernel, bias=torch.tensor([-300.0, 0.0]))
        assert found.output.item() == 3.0
        assert found.log_mass.item() == -300.0


def test_a_window_without_keys_is_empty_and_costs_no_second_sweep(redone):
    key, value = torch.rand(100, 2), torch.rand(100, 1)
    found = regard.inspect(torch.full((20, 2), 9.0), key, value, "epanechnikov", backend="blocked")
    assert (found.output == 0).all()
    assert found.log_mass.isneginf().all()
    assert redone == []


def test_a_bias_of_pairs_takes_the_online_softmax(ran):
    query, key, value = torch.randn(20, 3), torch.randn(70, 3), torch.randn(70, 1)
    assert_as_exact(query, key, value, "gaussian", bias=torch.randn(20, 70))
    assert_as_exact(query, key, value, "gaussian", bias=torch.full((70,), -math.inf))
    assert ran == []
    assert_as_exact(query, key, value, "gaussian", mask=Mask.causal(align="top_left"))
    assert len(ran) == 1


def test_dropout_drops_what_the_online_softmax_drops(monkeypatch, ran):
    query, key, value = (torch.randn(*shape, dtype=torch.float64) for shape in [(3, 20, 3), (1, 70, 3), (1, 70, 2)])
    torch.manual_seed(1)
    found = regard.inspect(query, key, value, "gaussian", dropout=0.5, backend="blocked")
    plain = regard.inspect(query, key, value, "gaussian", backend="blocked")
    assert len(ran) == 2
    monkeypatch.setattr(bounded, "suits", lambda *at: False)
    torch.manual_seed(1)
    online = regard.inspect(query, key, value, "gaussian", dropout=0.5, backend="blocked")
    bounds.assert_close(found.output, online.output, bounds.roundings(online.output, 64))
    assert (found.output - plain.output).abs().max() > 0.01
    assert torch.equal(found.log_mass, plain.log_mass)


def test_nan_propagates():
    query, key, value = torch.randn(20, 3), torch.randn(70, 3), torch.randn(70, 1)
    query[3] = torch.nan
    found = regard.attend(query, key, value, "gaussian", backend="blocked")
    assert found.isnan().squeeze(-1).nonzero().flatten().tolist() == [3]
