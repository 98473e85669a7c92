"""A multi-head layer on shards beside the same layer on one process; tests/layers asks for these."""

import torch
import torch.distributed as dist
from tests.sharding import determinism_program
from tests.sharding.refusals import refused
from torch import nn

from regard import Mask, MultiHeadAttention, scores, sharding
from regard.scores.positions import Alibi

DIM, HEADS, TOKENS = 8, 4, 11


def same(group, layer, mask=None, order="contiguous", cross=False, bias=None):
    layer = layer.double()
    inputs = [torch.randn(2, TOKENS, DIM, dtype=torch.float64) for _ in range(1 + 2 * cross)]

    def on_shards(*own):
        return layer(*own, mask=mask, bias=bias, group=group, order=order)

    parameters = [*layer.parameters(), *([bias] if bias is not None else [])]
    return determinism_program.differences(
        lambda *x: layer(*x, mask=mask, bias=bias), on_shards, inputs, group, parameters, order
    )


def heads_of_any_score(group):
    wrong = []
    for score in ("scaled_dot", "additive", "gaussian", scores.Rotary("scaled_dot"), lambda q, k: (q @ k.mT).tanh()):
        found = same(group, MultiHeadAttention(DIM, HEADS, score), Mask.causal(), "balanced")
        wrong += [f"{score}: {line}" for line in found]
    return wrong


def heads_that_share_keys(group):
    layer = MultiHeadAttention(DIM, HEADS, scores.ScaledDot(sink=HEADS), kv_heads=2, position_bias=Alibi(HEADS))
    return same(group, layer, Mask.causal() & Mask.lengths(torch.tensor([4, TOKENS])), "balanced")


def heads_that_look_elsewhere(group):
    return same(group, MultiHeadAttention(DIM, HEADS, "laplacian"), Mask.lengths(torch.tensor([4, 0])), cross=True)


class LearnedSlopes(nn.Module):
    """A bias of positions with a parameter for each head."""

    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(torch.linspace(0.1, 1, HEADS).reshape(HEADS, 1, 1))

    def forward(self, queries, keys):
        return -self.slopes * (queries[:, None] - keys).abs()


def heads_with_a_bias_of_the_call(group):
    """Its gradient arrives with and without a bias of the layer, which makes the sum of both a callable."""
    wrong = []
    for position_bias in (None, LearnedSlopes()):
        bias = torch.randn(1, HEADS, TOKENS, TOKENS, dtype=torch.float64, requires_grad=True)
        layer = MultiHeadAttention(DIM, HEADS, "gaussian", kv_heads=2, position_bias=position_bias)
        wrong += same(group, layer, Mask.causal(), "balanced", bias=bias)
    return wrong


def a_layer_that_drops_weights(group):
    layer = MultiHeadAttention(DIM, HEADS, dropout=0.5)
    own = sharding.split(torch.randn(2, TOKENS, DIM), dist.get_world_size(group))[dist.get_rank(group)]
    told = "dropout: got 0.5 with sharded tokens; needed 0, because the backward pass recomputes blocks"
    wrong = refused(lambda: layer(own, group=group), told)
    return wrong + [f"shape {tuple(x.shape)}" for x in [layer.eval()(own, group=group)] if x.shape != own.shape]


def a_layer_in_distributed_data_parallel(group):
    """It takes the mean of the ranks' gradients, which is the gradient of the mean of their losses."""
    torch.manual_seed(0)
    layer, ranks = MultiHeadAttention(DIM, HEADS, "gaussian").double(), dist.get_world_size(group)
    whole = torch.randn(2, TOKENS, DIM, dtype=torch.float64)
    wanted = torch.autograd.grad(layer(whole).square().sum() / ranks, list(layer.parameters()))
    wrapped = nn.parallel.DistributedDataParallel(layer)
    for _ in range(2):
        layer.zero_grad()
        wrapped(sharding.split(whole, ranks)[dist.get_rank(group)], group=group).square().sum().backward()
    errors = [float((p.grad - grad).abs().max()) for p, grad in zip(layer.parameters(), wanted, strict=True)]
    return [f"errors {errors}"] * (max(errors) > 1e-12)


SCENARIOS = [
    a_layer_in_distributed_data_parallel,
    heads_of_any_score,
    heads_that_share_keys,
    heads_that_look_elsewhere,
    heads_with_a_bias_of_the_call,
    a_layer_that_drops_weights,
]
