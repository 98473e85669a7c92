"""Projections are one product where they can be, and nn.MultiheadAttention's in every case."""

import pytest
import torch
from tests.bounds import assert_as_good, assert_same, assert_same_sums
from tests.layers.sizes import BATCH, KEYS, QUERIES
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from regard import MultiHeadAttention
from regard.backends import sdpa
from regard.layers import projections
from regard.layers.projections import MIN_COPIED_TOKENS, QKVProjection, apply_linear, linear
from regard.torch_compat import has_onednn_linear, onednn_linear


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


# --- Products by oneDNN ----------------------------------------------------------------------------------------------


@pytest.fixture
def onednn_calls(monkeypatch):
    """The shapes of tokens and weight of every product by oneDNN, on a processor for which any size pays."""
    if not has_onednn_linear():
        pytest.skip("torch was built without oneDNN")
    calls = []

    def counted(tokens, weight, bias):
        calls.append((tuple(tokens.shape), tuple(weight.shape)))
        return onednn_linear(tokens, weight, bias)

    monkeypatch.setattr(projections, "onednn_linear", counted)
    monkeypatch.setattr(projections, "is_amd_cpu", lambda: True)
    monkeypatch.setattr(projections, "MIN_ONEDNN_WORK", 0)
    return calls


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (5, 7, 24), (2, 3, 5, 24)], ids=str)
def test_onednn_is_as_accurate_as_torch(onednn_calls, shape, has_bias):
    inputs = [torch.randn(shape), torch.randn(11, 24), torch.randn(11) if has_bias else None]
    found, right = linear(*inputs), functional.linear(*(None if x is None else x.double() for x in inputs))
    assert len(onednn_calls) == 1
    assert_as_good(found, functional.linear(*inputs), right)
    assert found.stride() == right.stride()


def test_layer_in_evaluation_uses_onednn_for_all_products(onednn_calls):
    layer, tokens = MultiHeadAttention(24, 3).eval(), torch.randn(2, 5, 24)
    with torch.no_grad():
        found = layer(tokens)
        assert onednn_calls == [((2, 5, 24), (72, 24)), ((2, 5, 24), (24, 24))]
        layer.recall(tokens[:, :1], layer.remember(tokens))
    assert onednn_calls[2:] == [((2, 5, 24), (48, 24)), ((2, 1, 24), (24, 24)), ((2, 1, 24), (24, 24))]
    onednn_calls.clear()
    torch.testing.assert_close(found, layer(tokens))
    assert onednn_calls == []


def test_small_products_and_other_processors_do_not_use_onednn(onednn_calls, monkeypatch):
    tokens, weight = torch.randn(5, 24), torch.randn(11, 24)
    for least, expected in ((5 * 24 * 11, 1), (5 * 24 * 11 + 1, 0)):
        onednn_calls.clear()
        monkeypatch.setattr(projections, "MIN_ONEDNN_WORK", least)
        linear(tokens, weight, None)
        assert len(onednn_calls) == expected
    monkeypatch.setattr(projections, "MIN_ONEDNN_WORK", 0)
    monkeypatch.setattr(projections, "is_amd_cpu", lambda: False)
    assert torch.equal(linear(tokens, weight, None), functional.linear(tokens, weight))
    assert onednn_calls == []


class Subclass(torch.Tensor):
    """A tensor with rules of its own."""


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x, w, b: (x.double(), w.double(), b.double()), id="float64"),
        pytest.param(lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()), id="bfloat16"),
        pytest.param(lambda x, w, b: (x.requires_grad_(), w, b), id="gradient of tokens"),
        pytest.param(lambda x, w, b: (x, w.requires_grad_(), b), id="gradient of weights"),
        pytest.param(lambda x, w, b: (x, w, b.requires_grad_()), id="gradient of bias"),
        pytest.param(lambda x, w, b: (x.as_subclass(Subclass), w, b), id="subclass of tokens"),
        pytest.param(lambda x, w, b: (x, w.as_subclass(Subclass), b), id="subclass of weights"),
        pytest.param(lambda x, w, b: (x, w, torch.randn(11, 2)[:, 1]), id="strided bias"),
        pytest.param(lambda x, w, b: (x, w, b[:1].expand(11)), id="shared bias"),
        pytest.param(lambda x, w, b: (x, w, b[:1]), id="one bias"),
    ],
)
def test_products_that_onednn_would_get_wrong_are_computed_by_torch(onednn_calls, change):
    inputs = change(torch.randn(5, 24), torch.randn(11, 24), torch.randn(11))
    assert torch.equal(linear(*inputs), functional.linear(*inputs))
    assert onednn_calls == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated", "ignore:TF32 acceleration on top of oneDNN")
def test_transforms_modes_and_flags_are_obeyed(onednn_calls):
    tokens, weight, bias = torch.randn(2, 5, 24), torch.randn(11, 24), torch.randn(11)
    right = functional.linear(tokens, weight, bias)
    with torch.autocast("cpu"):
        assert linear(tokens, weight, bias).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(linear(tokens, weight, bias), right)
    with FlopCounterMode(display=False) as counter:
        linear(tokens, weight, bias)
    assert counter.get_total_flops() > 0
    with forward_ad.dual_level():
        dual = linear(forward_ad.make_dual(tokens, tokens), weight, None)
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, functional.linear(tokens, weight))
    torch.testing.assert_close(torch.vmap(lambda x: linear(x, weight, bias))(tokens), right)
    torch.testing.assert_close(torch.compile(linear, fullgraph=True, backend="aot_eager")(tokens, weight, bias), right)
    assert onednn_calls == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: m.register_forward_hook(lambda module, inputs, output: output + 1), id="hook"),
        pytest.param(lambda m: m.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,)), id="pre-hook"),
        pytest.param(lambda m: setattr(m, "forward", lambda tokens: tokens[..., :11] + 1), id="patched forward"),
        pytest.param(lambda m: prune.l1_unstructured(m, "weight", 0.5), id="pruning"),
        pytest.param(lambda m: parametrizations.weight_norm(m), id="weight norm"),
    ],
)
def test_changed_module_is_called(onednn_calls, change):
    module, tokens = nn.Linear(24, 11), torch.randn(5, 24)
    with torch.no_grad():
        apply_linear(module, tokens)
        assert len(onednn_calls) == 1
        change(module)
        assert torch.equal(apply_linear(module, tokens), module(tokens))
        assert torch.equal(apply_linear(nn.Sequential(module), tokens), module(tokens))
    assert len(onednn_calls) == 1
