"""`attention_interface`, called as transformers calls it, equals their eager attention written out here."""

import functools

import pytest
import torch
from tests.bounds import assert_same, assert_same_sums
from tests.refuses import refuses
from torch import nn

import regard
from regard import Mask, attention_interface
from regard.scores import Additive

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 6, 2, 5, 11, 4, 3
PACKED = "Pass a 4-D attention_mask that separates the documents, or pad the documents, and leave this out."


class Module(nn.Module):
    """What a model's attention module shows to its attention function."""

    def __init__(self, is_causal=True, groups=HEADS // KV_HEADS):
        super().__init__()
        self.is_causal = is_causal
        self.num_key_value_groups = groups


def eager(module, query, key, value, attention_mask, scaling, softcap=None, s_aux=None):
    """The eager attention of transformers (Llama, Gemma 2, GPT-OSS), with an additive 4-D mask."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores + attention_mask[:, :, :, : key.shape[-2]]
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def heads(queries=QUERIES, keys=KEYS, kv_heads=KV_HEADS, dtype=torch.float64):
    shapes = ((HEADS, queries, DIM), (kv_heads, keys, DIM), (kv_heads, keys, VALUE_DIM))
    return [torch.randn(BATCH, *shape, dtype=dtype).requires_grad_() for shape in shapes]


def additive(allowed):
    return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)


def lower_right(queries, keys, window=None):
    position = torch.arange(queries)[:, None] + keys - queries
    allowed = torch.arange(keys) <= position
    return allowed if window is None else allowed & (torch.arange(keys) > position - window)


def assert_equal(found, wanted, tensors):
    assert_same(found, wanted)
    direction = torch.randn_like(wanted)
    pairs = zip(
        torch.autograd.grad(found, tensors, direction),
        torch.autograd.grad(wanted, tensors, direction, retain_graph=True),
        strict=True,
    )
    for left, right in pairs:
        assert_same_sums(left, right)


@pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS, 1])
@pytest.mark.parametrize("queries", [1, QUERIES, KEYS])
def test_causal_without_a_mask(queries, kv_heads):
    module, tensors = Module(groups=HEADS // kv_heads), heads(queries, kv_heads=kv_heads)
    output, weights = attention_interface(module, *tensors, None, dropout=0.0, scaling=0.3, position_ids=None)
    assert weights is None
    assert output.shape == (BATCH, queries, HEADS, VALUE_DIM)
    assert output.is_contiguous()
    mask = additive(lower_right(queries, KEYS)[None, None])
    assert_equal(output, eager(module, *tensors, mask, 0.3)[0], tensors)


def test_causality_of_call_module_and_default():
    tensors = heads(KEYS)
    open_ = eager(Module(), *tensors, None, DIM**-0.5)[0]
    closed = eager(Module(), *tensors, additive(lower_right(KEYS, KEYS)[None, None]), DIM**-0.5)[0]
    assert_same(attention_interface(Module(is_causal=False), *tensors, None)[0], open_)
    assert_same(attention_interface(Module(), *tensors, None, is_causal=False)[0], open_)
    assert_same(attention_interface(Module(is_causal=False), *tensors, None, is_causal=True)[0], closed)
    assert_same(attention_interface(nn.Module(), *tensors, None)[0], closed)


@pytest.mark.parametrize("masked_heads", [1, HEADS])
def test_masks_of_four_axes(masked_heads):
    module, tensors = Module(), heads()
    allowed = torch.rand(BATCH, masked_heads, QUERIES, KEYS + 2) > 0.4
    allowed[..., 0] = True
    wanted = eager(module, *tensors, additive(allowed), 0.5)[0]
    assert_equal(attention_interface(module, *tensors, allowed, scaling=0.5)[0], wanted, tensors)
    assert_equal(attention_interface(module, *tensors, additive(allowed), scaling=0.5)[0], wanted, tensors)


@pytest.mark.parametrize("score", [None, "gaussian", "epanechnikov"])
def test_the_lowest_number_of_a_mask_hides_a_key_as_false_does(score):
    tensors = heads(KEYS)
    allowed = torch.rand(BATCH, 1, KEYS, KEYS) > 0.6
    allowed[0, :, 2] = False
    found, weights = attention_interface(Module(), *tensors, additive(allowed), score=score, output_attentions=True)
    wanted, _ = attention_interface(Module(), *tensors, allowed, score=score)
    assert not weights.masked_select(~allowed).any()
    assert not found[0, 2].any()
    assert_equal(found, wanted, tensors)


def test_a_float_mask_with_other_numbers_is_added():
    module, tensors = Module(), heads()
    mask = torch.randn(BATCH, 1, QUERIES, KEYS, dtype=torch.float64)
    mask[..., 3] = -1e4
    mask[..., 5] = -torch.inf
    assert_equal(
        attention_interface(module, *tensors, mask, scaling=0.5)[0], eager(module, *tensors, mask, 0.5)[0], tensors
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_padding_of_two_axes_joins_causality(dtype):
    module, tensors = Module(), heads()
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    real[1, :4] = False
    allowed = real[:, None, None] & lower_right(QUERIES, KEYS)
    wanted = eager(module, *tensors, additive(allowed), 0.5)[0]
    assert_equal(attention_interface(module, *tensors, real.to(dtype), scaling=0.5)[0], wanted, tensors)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[0.0, 0.0, -1e9, -1e9]], "numbers other than 0 and 1"),
        ([[1.0, 1.0, 0.5, 0.0]], "numbers other than 0 and 1"),
        ([[1.0, 1.0, float("nan"), 0.0]], "numbers other than 0 and 1"),
        ([[0.0, 0.0, 0.0, 0.0, -1e9]], "numbers other than 0 and 1"),  # beyond the keys, and telling all the same
        ([[0.0, 0.0, 0.0, 0.0]], "zeros only"),
    ],
)
def test_two_axes_that_may_be_meant_to_be_added_are_refused(rows, found):
    tokens, mask = torch.randn(1, 2, 4, 8), torch.tensor(rows)
    with refuses("attention_mask", str(tuple(mask.shape)), found):
        attention_interface(Module(is_causal=False), tokens, tokens, tokens, mask)


def test_two_axes_in_floating_point_are_refused_where_they_are_not_read():
    tokens = torch.randn(1, 2, 4, 8, device="meta")
    with refuses("attention_mask", "float32 (1, 4) on meta with"):
        attention_interface(Module(), tokens, tokens, tokens, torch.ones(1, 4, device="meta"))
    attention_interface(Module(), tokens, tokens, tokens, torch.ones(1, 4, device="meta").bool())


def test_no_sequences_have_no_padding():
    tokens = torch.randn(0, 2, 4, 8)
    output, _ = attention_interface(Module(), tokens, tokens, tokens, torch.ones(0, 4))
    assert output.shape == (0, 4, 2, 8)


def test_padding_that_leaves_nothing_gives_zero():
    tensors = heads(KEYS)
    real = torch.ones(BATCH, KEYS, dtype=torch.int64)
    real[1, :3] = 0
    output, weights = attention_interface(Module(), *tensors, real, output_attentions=True)
    assert not output[1, :3].any()
    assert not weights[1, :, :3].any()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(output.sum(), tensors))


@pytest.mark.parametrize("queries", [1, QUERIES])
def test_a_sliding_window_where_no_mask_speaks(queries):
    module, tensors = Module(), heads(queries)
    wanted = eager(module, *tensors, additive(lower_right(queries, KEYS, window=3)[None, None]), 0.5)[0]
    assert_equal(attention_interface(module, *tensors, None, scaling=0.5, sliding_window=3)[0], wanted, tensors)
    everything = torch.ones(1, 1, queries, KEYS, dtype=torch.bool)
    wanted = eager(module, *tensors, None, 0.5)[0]
    assert_same(attention_interface(module, *tensors, everything, scaling=0.5, sliding_window=3)[0], wanted)


def test_softcap_sinks_and_weights():
    module, tensors = Module(), heads()
    sinks = torch.randn(HEADS, dtype=torch.float64, requires_grad=True)
    mask = additive(lower_right(QUERIES, KEYS)[None, None])
    wanted, exact = eager(module, *tensors, mask, 2.0, softcap=1.5, s_aux=sinks)
    options = {"scaling": 2.0, "softcap": 1.5, "s_aux": sinks}
    assert_equal(attention_interface(module, *tensors, None, **options)[0], wanted, [*tensors, sinks])
    output, weights = attention_interface(module, *tensors, None, **options, output_attentions=True)
    assert_same(output, wanted)
    assert_same(weights, exact)


def test_a_position_bias_is_added():
    module, tensors = Module(), heads()
    bias = torch.randn(1, HEADS, QUERIES, KEYS, dtype=torch.float64)
    wanted = eager(module, *tensors, bias, 0.5)[0]
    assert_same(attention_interface(module, *tensors, None, 0.0, 0.5, False, position_bias=bias)[0], wanted)
    mask = additive(lower_right(QUERIES, KEYS)[None, None])
    wanted = eager(module, *tensors, mask + bias, 0.5)[0]
    assert_same(attention_interface(module, *tensors, mask, 0.0, 0.5, position_bias=bias)[0], wanted)


@pytest.mark.parametrize("score", ["gaussian", "cosine", Additive.of_projected(DIM, HEADS).double()], ids=str)
def test_any_score(score):
    query, key, value = heads()
    interface = functools.partial(attention_interface, score=score)
    found = interface(Module(), query, key, value, None, scaling=0.1, output_attentions=True)
    key, value = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (key, value))
    record = regard.inspect(query, key, value, score, Mask.causal("lower_right"))
    assert_same(found[0], record.output.transpose(1, 2))
    assert_same(found[1], record.weights())


def test_autocast_and_dropout():
    tensors = heads(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention_interface(Module(), *tensors, None)[0].dtype == torch.bfloat16
        rotated = attention_interface(Module(), *tensors[:2], tensors[2].bfloat16(), None)[0]
        assert torch.equal(rotated, attention_interface(Module(), *tensors, None)[0])
    first, second = (attention_interface(Module(), *tensors, None, dropout=0.5)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_errors_name_the_argument():
    query, key, value = heads()
    with refuses("attention_mask", "bool", "4-D"):
        attention_interface(Module(), query, key, value, torch.ones(BATCH, QUERIES, KEYS).bool())
    with refuses("key", "query", "divide the number of heads of the query"):
        attention_interface(Module(), query[:, :3], key, value, None)


def test_a_cap_of_zero_is_none_and_a_negative_one_is_refused():
    module, tensors = Module(), heads()
    plain, _ = attention_interface(module, *tensors, None)
    assert_same(attention_interface(module, *tensors, None, softcap=0.0)[0], plain)
    with refuses("softcap", "-1.0"):
        attention_interface(module, *tensors, None, softcap=-1.0)


@pytest.mark.parametrize(
    ("settings", "argument", "word"),
    [
        ({"query": torch.randn(2, 6, 5, 3)}, "key", "dim 4"),
        ({"query": None}, "query", "NoneType"),
        ({"attention_mask": [1]}, "attention_mask", "list"),
        ({"s_aux": [0] * 6}, "s_aux", "list"),
        ({"s_aux": torch.zeros(5)}, "s_aux", "float32 (5,)"),
        ({"s_aux": torch.zeros(6, dtype=torch.int64)}, "s_aux", "int64"),
        ({"sliding_window": 0}, "sliding_window", "0"),
        ({"sliding_window": 2.0}, "sliding_window", "2.0"),
        ({"scaling": "a"}, "scaling", "'a'"),
        ({"scaling": float("nan")}, "scaling", "nan"),
        (
            {"attention_mask": torch.zeros(2, 1, 5, 11), "position_bias": torch.zeros(3, 4, 4)},
            "position_bias",
            "float32 (3, 4, 4) on cpu",
        ),
        (
            {"attention_mask": torch.zeros(2, 1, 5, 7)},
            "attention_mask",
            "float32 (2, 1, 5, 7) on cpu",
        ),
        ({"attention_mask": torch.zeros(2, 2, 5, 13)}, "attention_mask", "float32 (2, 2, 5, 13)"),
        ({"attention_mask": torch.ones(2, 1, 4, 11).bool()}, "attention_mask", "bool (2, 1, 4, 11)"),
        (
            {"attention_mask": torch.ones(2, 1, 5, 13, dtype=torch.int32)},
            "attention_mask",
            "int32 (2, 1, 5, 13) on cpu",
        ),
        (
            {"attention_mask": torch.ones(2, 1, dtype=torch.int64)},
            "attention_mask",
            "int64 (2, 1) on cpu",
        ),
        ({"attention_mask": torch.ones(3, 11, dtype=torch.int64)}, "attention_mask", "int64 (3, 11)"),
        (
            {"attention_mask": torch.ones(2, 11, device="meta")},
            "attention_mask",
            "float32 (2, 11) on meta",
        ),
        ({"position_bias": torch.zeros(6, 5, 11, device="meta")}, "position_bias", "float32 (6, 5, 11) on meta"),
        ({"position_bias": torch.zeros(2, 5, 11)}, "position_bias", "float32 (2, 5, 11) on cpu"),
        ({"position_bias": torch.zeros(1, 2, 6, 5, 11)}, "position_bias", "float32 (1, 2, 6, 5, 11)"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings, argument, word):
    query, key, value = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 11, 4), torch.randn(2, 2, 11, 3)
    call = {"query": query, "key": key, "value": value, "attention_mask": None} | settings
    with refuses(argument, word):
        attention_interface(Module(), **call)


def test_tokens_without_dimensions_are_all_alike():
    query, value = torch.randn(2, 6, 5, 0), torch.randn(2, 6, 5, 3)
    output, _ = attention_interface(Module(is_causal=False), query, query, value, None)
    assert_same(output, value.mean(-2, keepdim=True).expand_as(value).transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@pytest.mark.parametrize("mask", [None, torch.zeros(BATCH, 1, QUERIES, KEYS), torch.ones(BATCH, KEYS).bool()])
def test_a_position_bias_is_a_number_whatever_the_mask(mask, dtype):
    bias = torch.ones(1, HEADS, QUERIES, KEYS, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    with refuses("position_bias", name, "a floating-point tensor", "Pass a boolean mask as attention_mask"):
        attention_interface(Module(), *heads(), mask, position_bias=bias)


@pytest.mark.parametrize(
    ("name", "repair"),
    [
        ("head_mask", "Use a MultiHeadAttention and its switch_off, or run the model with eager attention."),
        ("cu_seq_lens_q", PACKED),
        ("cu_seq_lens_k", PACKED),
        ("cu_seqlens_q", PACKED),
        ("cu_seqlens_k", PACKED),
        ("seq_idx", PACKED),
    ],
)
def test_what_would_change_the_result_is_refused_and_the_rest_accepted(name, repair):
    tensors, given = heads(), torch.tensor([0, 4, 11])
    with refuses(name, "int64 (3,)", repair):
        attention_interface(Module(), *tensors, None, **{name: given})
    plain, _ = attention_interface(Module(), *tensors, None)
    ignored = {name: None, "max_length_q": 7, "position_ids": torch.arange(QUERIES), "use_cache": True}
    assert_same(attention_interface(Module(), *tensors, None, **ignored)[0], plain)


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices"])
def test_a_tensor_of_unknown_meaning_is_refused(name):
    tensors, given = heads(), torch.zeros(BATCH, HEADS, QUERIES, 1)
    with refuses(name, "float32 (2, 6, 5, 1)", "no tensor of this name"):
        attention_interface(Module(), *tensors, None, **{name: given})
    plain, _ = attention_interface(Module(), *tensors, None)
    assert_same(attention_interface(Module(), *tensors, None, **{name: None})[0], plain)


@pytest.mark.parametrize("name", ["position_ids", "cache_position", "token_type_ids", "num_items_in_batch"])
def test_a_tensor_that_does_not_change_attention_is_accepted(name):
    tensors = heads()
    plain, _ = attention_interface(Module(), *tensors, None)
    found, _ = attention_interface(Module(), *tensors, None, **{name: torch.arange(QUERIES)})
    assert torch.equal(found, plain)


def test_autocast_does_not_round_tokens_whose_distance_is_taken():
    query, key, value = (torch.randn(2, 3, count, 4) + offset for count, offset in ((5, 100), (7, 100), (7, 0)))
    exact = regard.attend(query.double(), key.double(), value.double(), "laplacian").transpose(1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = regard.attention_interface(nn.Module(), query, key, value, None, is_causal=False, score="laplacian")
    assert output.dtype == torch.bfloat16
    assert (output.double() - exact).abs().max() < 0.02
