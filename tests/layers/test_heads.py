"""The score of a layer's heads, and grouped heads: masks, parameters, padding."""

import pytest
import torch
from tests.bounds import assert_same
from tests.layers.sizes import BATCH, KEYS, QUERIES, free_sizes, inputs
from tests.refuses import refuses
from torch import nn

import regard
from regard import Attention, Mask, MultiHeadAttention
from regard.backends import sdpa
from regard.layers.heads import CallableScore, resolve_score, scores_shape
from regard.scores import Additive, Bilinear, Gaussian, ScaledDot
from regard.scores.distance import DistancePair
from regard.scores.kernels import KERNELS

MASKS = {
    "lengths": lambda: Mask.lengths(torch.tensor([7, 3, 0])),
    "keys": lambda: Mask.keys(torch.rand(BATCH, KEYS) > 0.5),
    "keep": lambda: Mask.keep(torch.rand(QUERIES, KEYS) > 0.5),
    "keep for all heads": lambda: Mask.keep(torch.rand(BATCH, 1, QUERIES, KEYS) > 0.5),
    "drop per head": lambda: Mask.drop(torch.rand(BATCH, 6, QUERIES, KEYS) > 0.5),
    "heads only": lambda: ~Mask.drop(torch.rand(1, 6, 1, KEYS) > 0.5),
    "lengths per head": lambda: Mask.lengths(torch.randint(0, 8, (BATCH, 6))),
    "per query": lambda: Mask.lengths_per_query(torch.randint(0, 8, (BATCH, QUERIES))),
    "documents": lambda: Mask.documents(torch.randint(0, 2, (BATCH, QUERIES)), torch.randint(0, 2, (BATCH, KEYS))),
    "joined": lambda: (
        Mask.causal("lower_right") & Mask.lengths(torch.tensor([7, 3, 6])) | ~Mask.keep(torch.rand(1, 6, 5, 7) > 0.3)
    ),
}


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_mean_the_same_for_grouped_heads(name, score):
    layer = free_sizes(score, kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    mask = MASKS[name]()
    allowed = mask.to_sdpa((BATCH, 6), QUERIES, KEYS)
    record = layer.inspect(query, key, value, mask)
    assert torch.equal(record.weights() > 0, allowed)
    assert_same(layer(query, key, value, mask), record.output)
    assert_same(layer.recall(query, layer.remember(key, value, mask)), record.output)


@pytest.mark.parametrize("shared", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}], ids=str)
def test_a_mask_may_have_the_batch_axes_of_any_input(shared):
    layer = free_sizes(kv_heads=2)
    query, key, value = (x[:1] if place in shared else x for place, x in enumerate(inputs(layer, BATCH)))
    mask = Mask.lengths(torch.tensor([7, 3, 5]))
    wanted = layer(*(x.expand(BATCH, -1, -1) for x in (query, key, value)), mask)
    assert_same(layer(query, key, value, mask), wanted)
    assert_same(layer.recall(query, layer.remember(key, value, mask)), wanted)


def test_garbage_in_padding_does_not_reach_grouped_heads():
    layer = free_sizes("gaussian", kv_heads=3)
    query, key, value = inputs(layer, BATCH)
    mask = Mask.lengths(torch.tensor([7, 3, 5]))
    wanted = layer(query, key, value, mask)
    padded = torch.arange(KEYS) >= torch.tensor([[7], [3], [5]])
    key, value = (x.masked_fill(padded.unsqueeze(-1), 1e300) for x in (key, value))
    assert_same(layer(query, key, value, mask), wanted)


def test_scores_with_parameters_per_head_meet_grouped_heads():
    sink = ScaledDot(sink=6)
    nn.init.normal_(sink.sink)
    for score in (sink, Additive.of_projected(4, 6), Gaussian(torch.rand(6, 1) + 0.5), Bilinear(4, 4, heads=6)):
        layer = free_sizes(score, kv_heads=2)
        tensors = inputs(layer, BATCH)
        assert_same(layer(*tensors), layer.inspect(*tensors).output)
        assert_same(layer.recall(tensors[0], layer.remember(*tensors[1:])), layer(*tensors))


def test_a_callable_sees_groups_and_a_module_brings_its_parameters():
    seen = []

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, query, key):
            seen.append((query.shape, key.shape))
            return self.scale * query @ key.mT

    layer = free_sizes(Own(), kv_heads=2)
    layer(*inputs(layer, BATCH)).sum().backward()
    assert seen[0] == ((BATCH, 2, 3, QUERIES, 4), (BATCH, 2, 1, KEYS, 4))
    assert layer.score.function.scale.grad is not None


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "gaussian", "epanechnikov"])
def test_groups_equal_repeated_keys_at_sizes_that_run_in_blocks(score):
    layer = free_sizes(score, kv_heads=2)
    query, key, value = (torch.randn(2, 67, size, dtype=torch.float64) for size in layer.input.inputs)
    mask = Mask.causal() & Mask.lengths(torch.tensor([67, 31]))
    outputs = layer(query, key, value, mask), layer.inspect(query, key, value, mask).output
    assert_same(*outputs, dtype=torch.float32)
    shared, repeated = (torch.autograd.grad(x.square().sum(), list(layer.parameters())) for x in outputs)
    for found, wanted in zip(shared, repeated, strict=True):
        assert_same(found / wanted.abs().max(), wanted / wanted.abs().max(), torch.float32)


def test_shared_keys_reach_torch_unrepeated(monkeypatch):
    seen = []

    def spy(query, key, value, *rest, **options):
        seen.append((query.shape, key.shape, options["enable_gqa"]))
        return real(query, key, value, *rest, **options)

    real = sdpa.functional.scaled_dot_product_attention
    monkeypatch.setattr(sdpa.functional, "scaled_dot_product_attention", spy)
    layer = free_sizes(kv_heads=2)
    layer(*inputs(layer, BATCH))
    assert seen == [((BATCH, 6, QUERIES, 4), (BATCH, 2, KEYS, 4), True)]


@pytest.mark.parametrize("bias", [torch.zeros(2, 5, 5), lambda i, j: torch.zeros(2, len(i), len(j))])
def test_a_bias_for_the_heads_of_keys_is_refused(bias):
    layer = MultiHeadAttention(8, 4, kv_heads=2, position_bias=lambda i, j: torch.zeros(4, len(i), len(j)))
    layer.position_bias = bias
    with refuses("bias", "needed 4", "or 1"):
        layer(torch.randn(2, 5, 8))


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
    assert resolve_score("dot") is not resolve_score("dot")
    given = Gaussian(2.0)
    assert resolve_score(given) is given
    assert isinstance(resolve_score(torch.dot), CallableScore)


def test_a_custom_score_is_checked_where_it_returns_nonsense():
    query, key = torch.randn(2, QUERIES, 3), torch.randn(2, KEYS, 3)
    with refuses("score", "(2, 7, 5)"):
        Attention(lambda q, k: k @ q.mT)(query, key, key)


@pytest.mark.parametrize("argument", ["key", "value", "score"])
def test_error_names_the_input_whose_batch_does_not_fit(argument):
    key, value, width = (torch.ones(3 if argument == name else 2, 4, 5, 1) for name in ("key", "value", "score"))
    pair = DistancePair(torch.ones(2, 4, 5, 1), key, width, KERNELS["gaussian"])
    with refuses(argument, "batch axes"):
        scores_shape(pair, value)


@pytest.mark.parametrize(
    "score", [Gaussian(torch.ones(4, 1)), Additive.of_projected(8, heads=4), Bilinear(8, 8, heads=4)]
)
def test_parameters_for_other_heads_are_refused(score):
    with refuses("score", "for 1"):
        MultiHeadAttention(8, 1, score)


def test_a_name_that_is_none_is_told_all_that_a_layer_knows():
    with refuses("score", "'aditive'"):
        MultiHeadAttention(12, 3, "aditive")
