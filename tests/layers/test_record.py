"""The record of a multi-head layer: the output joined, everything else per head."""

import torch
from tests.bounds import assert_same
from tests.layers.sizes import BATCH, KEYS, QUERIES, free_sizes, inputs
from tests.refuses import refuses

import regard
from regard import Mask


def test_heads_of_records_merge_over_sets_of_keys():
    layer = free_sizes("additive", kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    parts = [layer.inspect(query, key[:, at], value[:, at]) for at in (slice(0, 3), slice(3, None))]
    merged = regard.merge([part.heads for part in parts])
    assert_same(layer.join(merged.output), layer(query, key, value))
    assert_same(merged.weights(), layer.inspect(query, key, value).weights())
    with refuses("parts", "r.heads"):
        regard.merge(parts)
    assert repr(parts[0]) == "MultiHeadAttended(output=(3, 5, 19), heads=(3, 6, 5, 3))"


def test_one_head_of_a_single_query_can_be_looked_at():
    layer = free_sizes(kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    record = layer.recall_inspect(query[:, :1], layer.remember(key, value))
    for method in (record.weights, record.scores):
        assert_same(method(batch=(0, 5)), method()[0, 5])
        assert_same(method(batch=(slice(None), 3)), method()[:, 3])


def test_recalls_can_be_looked_at():
    layer = free_sizes(kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    record = layer.recall_inspect(query, layer.remember(key, value, Mask.causal()))
    assert torch.equal(record.weights() > 0, torch.ones(QUERIES, KEYS).tril(KEYS - QUERIES).bool().expand(3, 6, 5, 7))
    assert record.entropy().shape == (BATCH, 6, QUERIES)
    assert record.top(2).keys.shape == (BATCH, 6, QUERIES, 2)
