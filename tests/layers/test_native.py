"""torch's operator for a whole layer gives what `attend` gives, and is not called where the layer differs."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard import Mask, MultiHeadAttention, scores
from regard.layers import native
from regard.scores.positions import Alibi

DIM, HEADS = 12, 2


@pytest.fixture
def calls(monkeypatch):
    """The shape of the query of each call of torch's operator, which these tests allow on a CPU."""
    operator, seen = torch._native_multi_head_attention, []
    monkeypatch.setattr(native, "DEVICE", "cpu")

    def counted(query, *rest, **options):
        seen.append(tuple(query.shape))
        return operator(query, *rest, **options)

    monkeypatch.setattr(torch, "_native_multi_head_attention", counted)
    return seen


def layer_and_tokens(dtype=torch.float32, **options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, options.pop("heads", HEADS), **options).to(dtype).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer, torch.randn(3, 5, DIM, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operator_gives_what_attend_gives(calls, dtype):
    layer, tokens = layer_and_tokens(dtype)
    with torch.no_grad():
        once = layer(tokens)
        same = layer(tokens, tokens, tokens)
        by_attend = layer(tokens, mask=Mask.lengths(torch.full((3,), 5)))
    assert calls == [(3, 5, DIM)] * 2
    assert torch.equal(once, same)
    torch.testing.assert_close(once, by_attend, rtol=0, atol=50 * torch.finfo(dtype).eps)


class OnlyLinear(torch.Tensor):
    """A weight that can do no more than a linear layer asks of it, as weights of quantised layers."""

    @staticmethod
    def __new__(cls, plain):
        return torch.Tensor._make_wrapper_subclass(cls, plain.shape, dtype=plain.dtype, device=plain.device)

    def __init__(self, plain):
        self.plain = plain

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if function in (aten.t.default, aten.detach.default):
            return cls(function(args[0].plain))
        if function in (aten.addmm.default, aten.mm.default, aten.linear.default):
            return function(*(x.plain if isinstance(x, cls) else x for x in args))
        raise NotImplementedError(f"no rule for {function}")


@pytest.mark.parametrize("tokens", [1, 5, 40, 100])
@pytest.mark.parametrize("replaced", [("output",), ("input",), ("input", "output")])
def test_weights_that_are_tensor_subclasses_give_what_plain_ones_give(calls, replaced, tokens):
    layer, _ = layer_and_tokens()
    inputs = torch.randn(3, tokens, DIM)
    with torch.no_grad():
        expected = layer(inputs)
        calls.clear()
        for name in replaced:
            projection = getattr(layer, name)
            weight = OnlyLinear(projection.weight.detach())
            projection.weight = nn.Parameter(weight, requires_grad=False)
        torch.testing.assert_close(layer(inputs), expected)
    assert calls == []


def refusing_hook(layer):
    layer.output.register_forward_hook(lambda *_: None)


def replaced_output(layer):
    layer.output = nn.Sequential(layer.output)


def patched_output(layer):
    layer.output.forward = layer.output.forward


class Joining(MultiHeadAttention):
    """A layer that joins heads differently."""

    def join(self, heads):
        return -super().join(heads)


def test_operator_is_not_called_for_a_subclass_with_its_own_join(calls):
    layer, tokens = Joining(DIM, HEADS).eval(), torch.randn(3, 5, DIM)
    with torch.no_grad():
        without = layer(tokens)
    assert calls == []
    torch.testing.assert_close(without, layer(tokens))


CHANGES = {
    "a head is off": lambda layer: layer.switch_off(0),
    "training": lambda layer: layer.train(),
    "a hook": refusing_hook,
    "another output": replaced_output,
    "another forward": patched_output,
    "half precision": lambda layer: layer.bfloat16(),
    "another score": lambda layer: setattr(layer, "score", scores.Cosine()),
    "another scale": lambda layer: setattr(layer, "score", scores.ScaledDot(1.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_operator_is_not_called_for_a_changed_layer(calls, change):
    layer, tokens = layer_and_tokens()
    CHANGES[change](layer)
    with torch.no_grad():
        layer(tokens.to(layer.input.weight.dtype))
    assert calls == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_calls_need_a_fused_kernel(calls, dtype):
    """The other kernels hold all weights in memory, and no fused kernel exists for this size of a head or float64."""
    layer, _ = layer_and_tokens(dtype)
    with torch.no_grad():
        layer(torch.randn(1, native.MAX_TOKENS + 1, DIM, dtype=dtype))
    assert calls == []
    wide = MultiHeadAttention(16, 2).eval()
    tokens = torch.randn(1, native.MAX_TOKENS + 1, 16)
    with torch.no_grad():
        once = wide(tokens)
        assert len(calls) == 1
        torch.testing.assert_close(once, wide(tokens, mask=Mask.causal() | ~Mask.causal()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 3},
        {"heads": 4, "kv_heads": 2},
        {"bias": False},
        {"output_dim": 7},
        {"head_dim": 5},
        {"value_head_dim": 5},
        {"position_bias": Alibi(HEADS)},
        {"score": "gaussian"},
    ],
    ids=str,
)
def test_operator_is_not_called_for_a_layer_it_cannot_compute(calls, options):
    layer, tokens = layer_and_tokens(**options)
    with torch.no_grad():
        layer(tokens)
    assert calls == []


def test_operator_is_not_called_for_gradients_or_other_inputs(calls):
    layer, tokens = layer_and_tokens()
    layer(tokens).sum().backward()
    with torch.no_grad():
        layer(tokens, tokens.clone())
        layer(tokens[0])
        layer(tokens[None])
        layer(tokens[:0])
        with torch.autocast("cpu"):
            layer(tokens)
    assert calls == []


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch on vmap of its own attention
def test_operator_is_not_called_under_transforms(calls):
    layer, tokens = layer_and_tokens()
    with torch.no_grad():
        mapped = torch.vmap(layer)(tokens[None].expand(2, -1, -1, -1))
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(tokens)
        assert calls == []
        expected = layer(tokens)
    assert calls == [(3, 5, DIM)]
    torch.testing.assert_close(mapped[1], expected)
    torch.testing.assert_close(compiled, expected)


def test_wrong_tokens_get_the_error_of_the_layer():
    layer, _ = layer_and_tokens()
    with torch.no_grad(), pytest.raises(ValueError, match="the size for which this layer was built"):
        layer(torch.randn(3, 5, DIM + 1))


def test_operator_is_not_called_with_global_hooks_or_a_dispatch_mode(calls):
    layer, tokens = layer_and_tokens()
    heard = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(type(module)))
    try:
        with torch.no_grad():
            layer(tokens)
    finally:
        hook.remove()
    assert nn.Linear in heard
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        layer(tokens)
    assert counted.get_total_flops() > 0
    assert calls == []
