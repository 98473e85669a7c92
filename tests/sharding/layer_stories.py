"""A multi-head layer on shards beside the same layer on one process; tests/layers asks for these."""

import torch
import torch.distributed as dist
from tests.sharding import alike
from tests.sharding.refusals import refused
from torch import nn

from regard import Mask, MultiHeadAttention, scores, sharding
from regard.layers.positions import Alibi

DIM, HEADS, TOKENS = 8, 4, 11


def same(group, layer, mask=None, order="contiguous", cross=False):
    layer = layer.double()
    inputs = [torch.randn(2, TOKENS, DIM, dtype=torch.float64) for _ in range(1 + 2 * cross)]

    def on_shards(*own):
        return layer(*own, mask=mask, group=group, order=order)

    return alike.differences(lambda *x: layer(*x, mask=mask), on_shards, inputs, group, layer.parameters(), order)


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


def a_layer_that_drops_weights(group):
    layer = MultiHeadAttention(DIM, HEADS, dropout=0.5)
    own = sharding.split(torch.randn(2, TOKENS, DIM), dist.get_world_size(group))[dist.get_rank(group)]
    told = "dropout: got 0.5 on shards; needed none: the backward pass recomputes blocks, and would drop others"
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


STORIES = [
    a_layer_in_distributed_data_parallel,
    heads_of_any_score,
    heads_that_share_keys,
    heads_that_look_elsewhere,
    a_layer_that_drops_weights,
]
