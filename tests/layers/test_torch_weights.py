"""Weights of nn.MultiheadAttention compute the same here, outputs and all gradients, and go back."""

import pytest
import torch
from tests.bounds import assert_same, assert_same_sums
from tests.layers.sizes import BATCH, KEYS, QUERIES, inputs
from tests.refuses import refuses
from torch import nn

from regard import Mask, MultiHeadAttention
from regard.layers import Alibi
from regard.scores import ScaledDot


def torch_twins(bias=True, **options):
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True, dtype=torch.float64, **options)
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    return theirs, MultiHeadAttention.from_torch(theirs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 7, "vdim": 5}, {"vdim": 5}], ids=str)
def test_outputs_and_gradients_of_nn_multihead_attention(bias, options):
    theirs, ours = torch_twins(bias, **options)
    tensors = [x.requires_grad_() for x in inputs(ours, BATCH)]
    attn, padding = torch.rand(QUERIES, KEYS) > 0.7, torch.arange(KEYS) >= torch.tensor([[7], [4], [6]])
    attn[:, 0] = False
    wanted, weights = theirs(*tensors, attn_mask=attn, key_padding_mask=padding, average_attn_weights=False)
    mask = Mask.from_multihead(attn, padding)
    found = ours(*tensors, mask)
    assert_same(found, wanted)
    assert_same(ours.inspect(*tensors, mask).weights(), weights)
    direction = torch.randn_like(wanted)
    theirs_grads = torch.autograd.grad(wanted, [*tensors, *theirs.parameters()], direction)
    found.backward(direction)
    packed = ours.input.matrices() if not ours.input.packed else (ours.input.weight,)
    parameters = [*packed, *([ours.input.bias] if bias else []), *ours.output.parameters()]
    assert len(theirs_grads) == 3 + len(parameters)
    for name, left, right in zip(
        ("query", "key", "value", *(n for n, _ in theirs.named_parameters())),
        [x.grad for x in (*tensors, *parameters)],
        theirs_grads,
        strict=True,
    ):
        assert_same_sums(left, right, name)


@pytest.mark.parametrize("options", [{}, {"kdim": 7, "vdim": 5}], ids=str)
def test_weights_go_to_torch_and_back(options):
    theirs, ours = torch_twins(**options, dropout=0.25)
    theirs.eval()
    back = MultiHeadAttention.from_torch(theirs).to_torch()
    assert (back.training, back.dropout, back.batch_first) == (False, 0.25, True)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
    assert ours.training
    assert ours.output.weight.dtype == torch.float64


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_refuses_invented_keys(option):
    with refuses("module", f"{option}=True", "one more key"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(4, 2, **{option: True}))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"score": "additive"}, "score Additive"),
        ({"score": ScaledDot(softcap=3.0)}, "score ScaledDot"),
        ({"kv_heads": 2}, "kv_heads=2 for 4 heads"),
        ({"head_dim": 5}, "sizes other than"),
        ({"output_dim": 5}, "sizes other than"),
        ({"position_bias": Alibi(4)}, "a position_bias"),
    ],
)
def test_to_torch_refuses_what_torch_cannot_do(options, reason):
    with refuses("to_torch", reason):
        MultiHeadAttention(8, 4, **options).to_torch()


def test_a_bias_in_only_one_projection_is_refused():
    module = nn.MultiheadAttention(8, 4, bias=False)
    module.out_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(8, 8)
    with refuses("module", "a bias in only one of in_proj and out_proj"):
        MultiHeadAttention.from_torch(module)
    for bias in (True, False):
        layer = MultiHeadAttention(8, 4, bias=bias)
        layer.output = nn.Linear(8, 8, bias=not bias)
        with refuses("to_torch", "a bias in only one of the input and output projections"):
            layer.to_torch()


def test_to_torch_refuses_silent_heads_and_from_torch_other_modules():
    layer = MultiHeadAttention(8, 4)
    layer.switch_off(1)
    with refuses("to_torch", "switched", "heads"):
        layer.to_torch()
    with refuses("module", "Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))


class Adapted(nn.Linear):
    def forward(self, tokens):
        return 2 * super().forward(tokens)


class Wrapped(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, tokens):
        return self.linear(tokens)


@pytest.mark.parametrize("output", [Adapted(8, 8), Wrapped(nn.Linear(8, 8))], ids=["adapted", "wrapped"])
def test_what_took_the_place_of_the_output_has_no_copy(output):
    layer, tokens = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    layer.output = output
    with refuses("to_torch", "adapter", "weights", "first"):
        layer.to_torch()
    layer.switch_off([0, 1])
    silent = layer(tokens)
    assert_same(silent, output(torch.zeros(2, 5, 8)))


def test_a_replaced_input_projection_is_refused():
    layer = MultiHeadAttention(8, 2)
    layer.input = Wrapped(layer.input)
    with refuses("to_torch", "adapter"):
        layer.to_torch()


def test_a_parametrised_output_has_one():
    layer, tokens = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    nn.utils.parametrizations.weight_norm(layer.output)
    assert_same(layer.to_torch()(tokens, tokens, tokens, need_weights=False)[0], layer(tokens))


@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 7}], ids=["packed", "apart"])
@pytest.mark.parametrize("frozen", ["all", "input", "out_proj", "bias"])
def test_what_is_frozen_stays_frozen_in_both_directions(options, frozen):
    theirs = nn.MultiheadAttention(12, 3, **options)
    for name, parameter in theirs.named_parameters():
        is_input = name.startswith(("in_proj", "q_", "k_", "v_"))
        wanted = {"all": True, "input": is_input, "out_proj": not is_input, "bias": "bias" in name}[frozen]
        parameter.requires_grad_(not wanted)
    ours = MultiHeadAttention.from_torch(theirs)
    assert ours.output.weight.requires_grad == theirs.out_proj.weight.requires_grad
    assert ours.input.bias.requires_grad == theirs.in_proj_bias.requires_grad
    back = ours.to_torch()
    asked = ({name: x.requires_grad for name, x in module.named_parameters()} for module in (theirs, back))
    assert next(asked) == next(asked)
