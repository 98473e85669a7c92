"""The additive score is a dense network with one hidden tanh layer on [q; k] (eq. 12)."""

import pytest
import torch
from tests import bounds
from tests.refuses import refuses
from torch import nn

import regard
from regard.scores import Additive

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
