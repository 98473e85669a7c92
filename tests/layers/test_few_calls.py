"""The layer in the fewest calls: the same numbers, and no such calls where the layer does something else."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard import Mask, MultiHeadAttention, scores
from regard.layers import few_calls as module
from regard.layers.positions import Alibi
from regard.shapes import FLOATS

DIM, HEADS = 12, 2


@pytest.fixture
def calls(monkeypatch):
    """Every use of torch's operator, by the shape of its query."""
    operator, seen = torch._native_multi_head_attention, []

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
def test_one_call_gives_what_attend_gives(calls, dtype):
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
def test_weights_that_are_tensor_subclasses_give_what_plain_ones_give(replaced, tokens):
    layer, _ = layer_and_tokens()
    inputs = torch.randn(3, tokens, DIM)
    with torch.no_grad():
        expected = layer(inputs)
        for name in replaced:
            projection = getattr(layer, name)
            weight = OnlyLinear(projection.weight.detach())
            projection.weight = nn.Parameter(weight, requires_grad=False)
        torch.testing.assert_close(layer(inputs), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_long_inputs_are_three_calls_that_give_what_attend_gives(calls, monkeypatch, dtype):
    layer, _ = layer_and_tokens(dtype)
    tokens = torch.randn(2, module.MOST_TOKENS["cpu"] + 1, DIM).to(dtype)
    with torch.no_grad():
        by_attend = layer(tokens, mask=Mask.lengths(torch.full((2,), tokens.shape[1])))
        monkeypatch.setattr(module, "product", counted := Counted(module.product))
        found = layer(tokens)
    assert calls == []
    assert counted.calls == 2
    torch.testing.assert_close(found, by_attend, rtol=0, atol=50 * torch.finfo(dtype).eps)
    assert_nan_is_answered_by_nan(layer, tokens)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def assert_nan_is_answered_by_nan(layer, tokens):
    tokens = tokens.clone()
    tokens[0] = torch.nan
    with torch.no_grad():
        output = layer(tokens)
    assert output[0].isnan().all()
    assert output[1].isfinite().all()


def test_a_large_batch_of_few_tokens_is_for_attend(calls, monkeypatch):
    """Three calls would answer NaN by 0 there."""
    layer, _ = layer_and_tokens()
    monkeypatch.setattr(module, "MUCH_WORK", 0)
    monkeypatch.setattr(module, "product", None)
    assert_nan_is_answered_by_nan(layer, torch.randn(2, 15, DIM))
    assert calls == []


def refusing_hook(layer):
    layer.output.register_forward_hook(lambda *_: None)


def replaced_output(layer):
    layer.output = nn.Sequential(layer.output)


def patched_output(layer):
    layer.output.forward = layer.output.forward


class Joining(MultiHeadAttention):
    """Joins heads in its own way."""

    def join(self, heads):
        return -super().join(heads)


def test_a_layer_that_joins_heads_otherwise_does_so_without_gradients_too(calls):
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
@pytest.mark.parametrize("count", [5, module.MOST_TOKENS["cpu"] + 1], ids=["short", "long"])
def test_a_changed_layer_attends(calls, monkeypatch, change, count):
    layer, _ = layer_and_tokens()
    CHANGES[change](layer)
    if change != "half precision":  # of which three calls take care
        monkeypatch.setattr(module, "product", None)
    with torch.no_grad():
        layer(torch.randn(3, count, DIM).to(layer.input.weight.dtype))
    assert calls == []


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
def test_a_layer_that_the_operator_does_not_know_attends(calls, options):
    layer, tokens = layer_and_tokens(**options)
    with torch.no_grad():
        layer(tokens)
    assert calls == []


def test_gradients_and_other_keys_attend(calls):
    layer, tokens = layer_and_tokens()
    layer(tokens).sum().backward()
    with torch.no_grad():
        layer(tokens, tokens.clone())
        layer(tokens[0])
        layer(tokens[None])
        layer(tokens[:0])
        layer(torch.randn(1, module.MOST_TOKENS["cpu"] + 1, DIM))
        layer(torch.randn(module.MUCH_WORK // (8 * DIM**2) + 1, 8, DIM))
        with torch.autocast("cpu"):
            layer(tokens)
    assert calls == []


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch on vmap of its own attention
def test_transforms_see_attend(calls):
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
    with torch.no_grad(), pytest.raises(ValueError, match="as this layer was built"):
        layer(torch.randn(3, 5, DIM + 1))


def test_those_who_listen_to_all_modules_or_count_all_operations_see_attend(calls):
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
