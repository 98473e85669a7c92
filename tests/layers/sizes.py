"""Layers and inputs whose sizes are all different, so that a swapped axis cannot pass by luck."""

import torch

from regard import MultiHeadAttention

BATCH, QUERIES, KEYS = 3, 5, 7


def inputs(layer, *batch, dtype=torch.float64):
    dim, key_dim, value_dim = layer.input.inputs
    sizes = ((QUERIES, dim), (KEYS, key_dim), (KEYS, value_dim))
    return [torch.randn(*batch, *size, dtype=dtype) for size in sizes]


def free_sizes(score="scaled_dot", **options):
    sizes = {"key_dim": 13, "value_dim": 17, "output_dim": 19, "head_dim": 4, "value_head_dim": 3}
    return MultiHeadAttention(11, 6, score, **sizes, **options).double()
