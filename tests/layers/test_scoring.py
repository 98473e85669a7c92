"""A score inside a layer: by name, with parameters per head, or any callable."""

import pytest
import torch
from tests.bounds import assert_same
from tests.layers.sizes import BATCH, KEYS, QUERIES
from tests.refuses import refuses

import regard
from regard import Attention, MultiHeadAttention
from regard.layers.scoring import Custom, as_score
from regard.scores import Additive, Bilinear, Gaussian


def test_kernels_learn_a_bandwidth_per_head_and_start_inside_their_support():
    for name in ("gaussian", "laplacian", "epanechnikov", "boxcar"):
        layer = MultiHeadAttention(16, 4, name)
        assert layer.score.bandwidth.shape == (4, 1)
        assert ("score.log_bandwidth" in dict(layer.named_parameters())) is (name != "boxcar")
        tokens = torch.randn(BATCH, 11, 16)
        assert bool((layer.inspect(tokens).weights() > 0).float().mean() > 0.9)


def test_bilinear_inside_the_layer_is_the_bilinear_score_of_its_tokens():
    layer = MultiHeadAttention(5, 1, "bilinear", key_dim=7, head_dim=7, bias=False).double()
    query, key = torch.randn(QUERIES, 5, dtype=torch.float64), torch.randn(KEYS, 7, dtype=torch.float64)
    outside = Bilinear(5, 7).double()
    outside.matrix.data = layer.input.query_weight.mT @ layer.input.key_weight
    weights = regard.inspect(query, key, key, outside).weights()
    assert_same(layer.inspect(query, key).weights()[0], weights)


def test_additive_inside_the_layer_has_w_alone():
    layer = MultiHeadAttention(12, 4, "additive")
    assert {name: tuple(p.shape) for name, p in layer.score.named_parameters()} == {"weight": (4, 3)}


def test_a_name_makes_a_score_of_the_layer_alone():
    assert as_score("dot") is not as_score("dot")
    given = Gaussian(2.0)
    assert as_score(given) is given
    assert isinstance(as_score(torch.dot), Custom)


def test_a_custom_score_is_checked_where_it_returns_nonsense():
    query, key = torch.randn(2, QUERIES, 3), torch.randn(2, KEYS, 3)
    with refuses("score", "(2, 7, 5)"):
        Attention(lambda q, k: k @ q.mT)(query, key, key)


@pytest.mark.parametrize(
    "score", [Gaussian(torch.ones(4, 1)), Additive.of_projected(8, heads=4), Bilinear(8, 8, heads=4)]
)
def test_parameters_for_other_heads_are_refused(score):
    with refuses("score", "for 1"):
        MultiHeadAttention(8, 1, score)


def test_a_name_that_is_none_is_told_all_that_a_layer_knows():
    with refuses("score", "'aditive'"):
        MultiHeadAttention(12, 3, "aditive")
