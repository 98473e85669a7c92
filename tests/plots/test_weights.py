"""Weights of any library: nn.MultiheadAttention's, a tuple of layers, our own record's."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from torch import nn

import regard
from regard.plots.weights import as_heads

SHAPE = (2, 3, 5, 7)


def four():
    return torch.rand(SHAPE).softmax(-1)


def test_one_map_is_one_head():
    assert as_heads([[0.5, 0.5], [1.0, 0.0]]).shape == (1, 2, 2)
    assert as_heads(np.eye(3)).shape == (1, 3, 3)


def test_heads_and_one_sequence_of_a_batch():
    weights = four()
    np.testing.assert_array_equal(as_heads(weights[1]), weights[1].double().numpy())
    np.testing.assert_array_equal(as_heads(weights, batch=1), weights[1].double().numpy())
    np.testing.assert_array_equal(as_heads(weights[:1]), weights[0].double().numpy())


def test_a_tuple_of_layers_as_hugging_face_returns_it():
    layers = (four(), four(), four())
    np.testing.assert_array_equal(as_heads(layers, layer=2, batch=0), layers[2][0].double().numpy())
    np.testing.assert_array_equal(as_heads(layers[:1], batch=0), layers[0][0].double().numpy())


def test_a_layer_without_weights_keeps_its_number():
    layers = (None, four(), four())
    np.testing.assert_array_equal(as_heads(layers, layer=1, batch=0), layers[1][0].double().numpy())
    np.testing.assert_array_equal(as_heads(layers, layer=-1, batch=0), layers[2][0].double().numpy())
    np.testing.assert_array_equal(as_heads(layers[:2], batch=0), layers[1][0].double().numpy())
    for empty in (0, -3):
        with refuses("layer", f"got {empty}", "one that has weights: 1, 2"):
            as_heads(layers, layer=empty, batch=0)


def test_nn_multihead_attention_averaged_and_by_head():
    module = nn.MultiheadAttention(12, 3, batch_first=True)
    tokens = torch.randn(2, 5, 12)
    averaged = module(tokens, tokens, tokens)[1]
    by_head = module(tokens, tokens, tokens, average_attn_weights=False)[1]
    assert as_heads(averaged[0]).shape == (1, 5, 5)
    np.testing.assert_allclose(as_heads(averaged[0])[0], as_heads(by_head, batch=0).mean(0), atol=1e-6)


def test_our_own_record():
    layer = regard.MultiHeadAttention(12, 3)
    assert as_heads(layer.inspect(torch.randn(1, 5, 12)).weights()).shape == (3, 5, 5)


@pytest.mark.parametrize(
    ("weights", "chosen", "argument", "word"),
    [
        (torch.zeros(SHAPE), {}, "batch", "none"),
        (torch.zeros(SHAPE), {"batch": 2}, "batch", "one of 2"),
        (torch.zeros(SHAPE), {"layer": 0, "batch": 0}, "layer", "0 for the weights of one layer"),
        ((torch.zeros(SHAPE),) * 3, {"batch": 0}, "layer", "none"),
        (torch.zeros(3, 5, 7), {"batch": 0}, "batch", "0 for weights of 3 axes"),
        (torch.zeros(2, 2, 3, 5, 7), {}, "weights", "5 axes"),
        (torch.zeros(7), {}, "weights", "1 axes"),
        (torch.zeros(0, 7), {}, "weights", "shape (0, 7)"),
    ],
)
def test_what_is_not_said_is_asked_for(weights, chosen, argument, word):
    with refuses(argument, word):
        as_heads(weights, **chosen)


def test_layers_may_be_arrays_and_rows_are_no_layers():
    layers = tuple(np.random.default_rng(0).random((2, 1, 3, 4, 4)))
    np.testing.assert_array_equal(as_heads(layers, layer=1), layers[1][0])
    rows = list(torch.rand(4, 4))
    np.testing.assert_array_equal(as_heads(rows), torch.stack(rows)[None].double().numpy())


def test_lists_in_lists_are_heads_too():
    weights = np.full((2, 2, 3), 1 / 3)
    assert as_heads(weights.tolist()).shape == (2, 2, 3)
    assert as_heads(tuple(weights)).shape == (2, 2, 3)
    assert as_heads([[0.5, 0.5]]).shape == (1, 1, 2)


def test_numbers_of_numpy_choose_a_layer_and_a_sequence():
    weights = (torch.zeros(2, 3, 4, 4), torch.ones(2, 3, 4, 4))
    assert as_heads(weights, layer=np.int64(1), batch=np.int64(0)).sum() == 48


@pytest.mark.parametrize("settings", [{}, {"layer": 1}, {"layer": 0, "batch": 0}])
def test_layers_that_were_not_asked_for_weights(settings):
    with refuses("weights", "2 layers without", "output_attentions=True"):
        as_heads((None, None), **settings)
