"""A layer takes a bias in each call, and the backend that computes all of its calls."""

import pytest
import torch
from tests.bounds import assert_same
from tests.refuses import refuses
from torch import nn

import regard
from regard import Attention, Mask, MultiHeadAttention
from regard.layers import Alibi
from regard.testing import dispatch_log

SCORES = ("scaled_dot", "gaussian", "additive")


def layer_and_tokens(score="scaled_dot", tokens=5, **options):
    return MultiHeadAttention(12, 4, score, **options).double(), torch.randn(2, tokens, 12, dtype=torch.float64)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("shape", [(5, 5), (1, 5), (1, 4, 5, 5), (2, 1, 1, 5), (2, 4, 5, 5)], ids=str)
def test_a_bias_of_minus_infinity_is_a_mask(shape, kv_heads, score):
    layer, tokens = layer_and_tokens(score, kv_heads=kv_heads)
    allowed = torch.rand(shape) < 0.7
    allowed[..., 0] = True
    bias = torch.where(allowed, 0.0, -torch.inf).double()
    mask = Mask.keep(allowed)
    assert_same(layer(tokens, bias=bias), layer(tokens, mask=mask))
    assert_same(layer.inspect(tokens, bias=bias).weights(), layer.inspect(tokens, mask=mask).weights())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("form", ["tensor", "callable"])
def test_a_bias_of_a_call_is_added_to_that_of_the_layer(score, form):
    slopes, given = Alibi(4), torch.randn(2, 4, 5, 5, dtype=torch.float64)
    layer, tokens = layer_and_tokens(score, position_bias=slopes)
    positions = torch.arange(5)
    whole = given + slopes(positions, positions)
    bias = given if form == "tensor" else lambda i, j: given[:, :, i][..., j]
    layer.position_bias = None
    wanted = layer(tokens, bias=whole)
    layer.position_bias = slopes
    assert_same(layer(tokens, bias=bias), wanted)
    plain = Attention("scaled_dot", bias=whole)
    query = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    assert_same(plain(query, query, query, bias=bias), regard.attend(query, query, query, bias=whole + given))
    assert_same(plain.inspect(query, query, query, bias=bias).output, plain(query, query, query, bias=bias))


@pytest.mark.parametrize("with_alibi", [False, True])
def test_a_bias_of_a_recall_has_a_row_for_each_recalled_query(with_alibi):
    layer, tokens = layer_and_tokens(position_bias=Alibi(4) if with_alibi else None)
    bias = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    whole = layer(tokens, mask=Mask.causal(), bias=bias)
    memory, last = layer.remember(tokens, mask=Mask.causal()), bias[..., 3:, :]
    assert_same(layer.recall(tokens[:, 3:], memory, bias=last), whole[:, 3:])
    assert_same(layer.recall_inspect(tokens[:, 3:], memory, bias=last).output, whole[:, 3:])
    output, weights = layer.recall_with_weights(tokens[:, 3:], memory, bias=last)
    assert_same(output, whole[:, 3:])
    assert_same(weights, layer.inspect(tokens, mask=Mask.causal(), bias=bias).weights()[..., 3:, :])
    single = Attention()
    query = torch.randn(2, 5, 3, dtype=torch.float64)
    wanted = single(query, query, query, bias=bias[:, 0])
    assert_same(single.recall(query, single.remember(query, query), bias=bias[:, 0]), wanted)


@pytest.mark.parametrize("layer_bias", [None, "alibi"])
def test_a_bias_of_a_call_gets_its_gradient(layer_bias):
    layer, tokens = layer_and_tokens("gaussian", position_bias=None if layer_bias is None else Alibi(4))
    bias = torch.randn(1, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    layer.requires_grad_(False)
    assert torch.autograd.gradcheck(lambda b: layer(tokens, bias=b), bias)


def test_bias_whose_first_axis_may_be_examples_or_heads_is_refused():
    layer, tokens = layer_and_tokens()
    with refuses("bias", "examples of the batch or heads", "b[:, None]"):
        layer(tokens, bias=torch.zeros(4, 5, 5))
    with refuses("bias", "boolean"):
        layer(tokens, bias=torch.zeros(5, 5, dtype=torch.bool))
    with refuses("bias", "broadcasts to"):
        layer(tokens, bias=torch.zeros(5, 4))


def test_a_callable_bias_with_one_axis_is_refused():
    """`b[i, j]` is the diagonal of b, where the tile is `b[i[:, None], j]`."""
    layer, tokens = layer_and_tokens()
    b = torch.randn(5, 5, dtype=torch.float64)
    with refuses("bias", "(5,)", "queries[:, None]"):
        layer(tokens, bias=lambda i, j: b[i, j])
    assert_same(layer(tokens, bias=lambda i, j: b[i[:, None], j]), layer(tokens, bias=b))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch.func.jvp itself calls it
@pytest.mark.parametrize("score", SCORES)
def test_a_layer_on_the_reference_has_second_and_forward_mode_derivatives(score):
    layer, tokens = layer_and_tokens(score, tokens=3, backend="reference")
    tokens.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer(x), tokens)
    output, tangent = torch.func.jvp(lambda x: layer(x), (tokens.detach(),), (torch.ones_like(tokens),))
    step = 1e-6
    slope = (layer(tokens + step) - layer(tokens - step)).detach() / (2 * step)
    torch.testing.assert_close(tangent, slope, rtol=1e-6, atol=1e-8)
    assert_same(output, layer(tokens))


@pytest.mark.parametrize("make", [lambda **x: Attention("gaussian", **x), lambda **x: MultiHeadAttention(4, 2, **x)])
def test_the_backend_of_a_layer_runs_its_calls_or_refuses_them(make):
    query = torch.randn(2, 5, 4)
    reference, tiles, triton = (make(backend=name) for name in ("reference", "blocked", "triton"))
    tiles.load_state_dict(reference.state_dict())
    for layer in (reference, tiles):
        memory = layer.remember(query, query)
        layer.eval()
        with dispatch_log() as ran:
            outputs = [layer(query, query, query), layer.inspect(query, query, query).output]
            outputs += [layer.recall(query, memory), layer.recall_inspect(query, memory).output]
        assert ran == [layer.backend] * 4
        outputs += [layer.recall_with_weights(query, memory)[0]]
        for output in outputs:
            assert_same(output, reference(query, query, query))
    assert "backend='blocked'" in repr(tiles)
    with refuses("backend", "triton refuses"):
        triton.double()(*[query.double()] * 3)


@pytest.mark.parametrize("layer", [Attention, lambda **x: MultiHeadAttention(8, 2, **x)])
def test_a_backend_that_does_not_exist_is_refused_when_the_layer_is_made(layer):
    with refuses("backend", "'flash'", "blocked"):
        layer(backend="flash")


def test_a_named_backend_is_not_replaced_by_the_operator_of_torch():
    """In evaluation plain self-attention takes torch's own operator, which has no second derivative."""
    layer, tokens = layer_and_tokens(tokens=4, backend="triton")
    layer.eval()
    with torch.no_grad(), refuses("backend", "triton"):
        layer(tokens)


# --- the floating-point masks of nn.MultiheadAttention -----------------------------------------------------------

SIZE = 5  # batch and tokens alike, so that a mask of one axis could be taken for another


@pytest.fixture
def theirs_and_ours():
    theirs = nn.MultiheadAttention(12, 4, batch_first=True, dtype=torch.float64).eval()
    return theirs, MultiHeadAttention.from_torch(theirs).eval()


def repair_of(argument, mask):
    """What is advised for a mask that is refused."""
    with refuses(argument, "boolean") as caught:
        Mask.from_multihead(**{argument: mask})
    return caught.value.repair


@pytest.mark.parametrize("argument", ["attn_mask", "key_padding_mask"])
@pytest.mark.parametrize("kind", ["0 and -inf", "finite"])
def test_the_advice_for_a_float_mask_gives_what_torch_gives(argument, kind, theirs_and_ours):
    theirs, ours = theirs_and_ours
    tokens, m = torch.randn(SIZE, SIZE, 12, dtype=torch.float64), torch.randn(SIZE, SIZE, dtype=torch.float64)
    if kind == "0 and -inf":
        m = torch.where(m > 0.5, -torch.inf, 0.0).double()
        m[:, 0] = 0
    wanted, _ = theirs(tokens, tokens, tokens, **{argument: m})
    repair = repair_of(argument, m)
    if kind == "0 and -inf":
        assert f"pass {argument}=m != 0" in repair
        found = ours(tokens, mask=Mask.from_multihead(**{argument: m != 0}))
    else:
        bias = "m" if argument == "attn_mask" else "m[:, None, None]"
        assert repair.endswith(f"pass bias={bias} to the layer.")
        found = ours(tokens, bias=eval(bias))
    assert_same(found, wanted)


def test_a_float_mask_of_heads_is_a_bias_of_heads(theirs_and_ours):
    theirs, ours = theirs_and_ours
    tokens, m = torch.randn(SIZE, SIZE, 12, dtype=torch.float64), torch.randn(SIZE * 4, SIZE, SIZE, dtype=torch.float64)
    wanted, weights = theirs(tokens, tokens, tokens, attn_mask=m, average_attn_weights=False)
    assert repair_of("attn_mask", m).endswith("bias=m.unflatten(0, (-1, heads)) to the layer.")
    bias = m.unflatten(0, (-1, 4))
    assert_same(ours(tokens, bias=bias), wanted)
    assert_same(ours.inspect(tokens, bias=bias).weights(), weights)


def test_the_causal_mask_that_torch_generates_is_a_bias(theirs_and_ours):
    theirs, ours = theirs_and_ours
    tokens = torch.randn(SIZE, SIZE, 12, dtype=torch.float64)
    m = nn.Transformer.generate_square_subsequent_mask(SIZE, dtype=torch.float64)
    wanted, _ = theirs(tokens, tokens, tokens, attn_mask=m, need_weights=False)
    assert_same(ours(tokens, bias=m), wanted)
    assert_same(ours(tokens, mask=Mask.causal()), wanted)
