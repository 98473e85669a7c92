"""Projections are one product where they can be, and nn.MultiheadAttention's in every case."""

import pytest
import torch
from tests.bounds import assert_same, assert_same_sums
from tests.layers.sizes import BATCH, KEYS, QUERIES
from torch import nn

from regard import MultiHeadAttention
from regard.backends import sdpa
from regard.layers.projections import MIN_COPIED_TOKENS, QKVProjection


def test_self_attention_is_one_packed_product():
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    ours = MultiHeadAttention.from_torch(theirs)
    tokens = torch.randn(BATCH, QUERIES, 12, dtype=torch.float64, requires_grad=True)
    wanted = theirs(tokens, tokens, tokens, need_weights=False)[0]
    found = ours(tokens)
    assert_same(found, wanted)
    exact = torch.autograd.grad(wanted.square().sum(), [tokens, theirs.in_proj_weight])
    for left, right in zip(torch.autograd.grad(found.square().sum(), [tokens, ours.input.weight]), exact, strict=True):
        assert_same_sums(left, right)
    query, key, value = ours.input(tokens, tokens, tokens)
    assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    assert_same(found, ours(tokens, tokens.clone(), tokens.clone()))
    assert_same(found, ours(tokens, tokens.clone()))


@pytest.mark.parametrize("value_head_dim", [4, 3])
def test_the_product_of_keys_and_values_is_shared_too(value_head_dim):
    projections = QKVProjection((11, 11, 11), (6, 2, 2), (4, 4, value_head_dim), bias=True).double()
    nn.init.normal_(projections.bias)
    tokens = torch.randn(BATCH, KEYS, 11, dtype=torch.float64)
    _, key, value = projections(None, tokens, tokens)
    assert key.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    query, whole_key, whole_value = projections(tokens, tokens, tokens)
    assert (query.shape, key.shape, value.shape[-1]) == ((BATCH, 6, KEYS, 4), (BATCH, 2, KEYS, 4), value_head_dim)
    apart = projections(tokens, tokens.clone(), tokens.clone())
    wholes = (query, whole_key, whole_value)
    for parts in ((projections(tokens, None, None)[0], key, value), apart):
        for found, wanted in zip(parts, wholes, strict=True):
            assert_same(found, wanted)


def test_heads_reach_torch_as_views_of_the_product_and_come_back_uncopied(monkeypatch):
    seen = []

    def spy(query, key, value, *rest, **options):
        output = real(query, key, value, *rest, **options)
        seen.extend([query, key, value, output])
        return output

    real = sdpa.functional.scaled_dot_product_attention
    monkeypatch.setattr(sdpa.functional, "scaled_dot_product_attention", spy)
    MultiHeadAttention(16, 4)(torch.randn(BATCH, KEYS, 16))
    query, key, value, output = seen
    assert len({x.untyped_storage().data_ptr() for x in (query, key, value)}) == 1
    assert output.transpose(1, 2).is_contiguous()


def test_heads_of_long_sequences_in_training_are_contiguous():
    projections = QKVProjection((6, 6, 6), (2, 2, 2), (3, 3, 3), bias=True).double()
    tokens = torch.randn(1, MIN_COPIED_TOKENS, 6, dtype=torch.float64, requires_grad=True)
    long, apart = projections(tokens, tokens, tokens), projections(tokens, tokens.clone(), tokens.clone())
    assert all(part[0].is_contiguous() for part in long)
    assert not any(part[0].is_contiguous() for part in apart)
    for found, wanted in zip(long, apart, strict=True):
        assert_same(found, wanted)
        gradients = [
            torch.autograd.grad(x.square().sum(), projections.weight, retain_graph=True)[0] for x in (found, wanted)
        ]
        assert_same(*gradients)
    with torch.no_grad():
        assert not any(part[0].is_contiguous() for part in projections(tokens, tokens, tokens))


def test_matrices_are_those_of_query_key_and_value():
    packed = QKVProjection((5, 5, 5), (2, 1, 1), (3, 3, 7), bias=False)
    assert [tuple(part.shape) for part in packed.matrices()] == [(6, 5), (3, 5), (7, 5)]
    apart = QKVProjection((5, 11, 13), (2, 1, 1), (3, 3, 7), bias=False)
    assert [tuple(part.shape) for part in apart.matrices()] == [(6, 5), (3, 11), (7, 13)]
    assert sorted(dict(apart.named_parameters())) == ["key_weight", "query_weight", "value_weight"]
