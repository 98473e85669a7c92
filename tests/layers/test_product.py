"""Products by oneDNN: the same numbers within rounding, and only where nobody learns, watches or listens."""

import pytest
import torch
from tests.bounds import assert_as_good
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from regard import MultiHeadAttention
from regard.layers import product as module
from regard.layers.product import product, product_of

DIM = 24
pytestmark = pytest.mark.skipif(
    module.ONEDNN is None or not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)


@pytest.fixture(autouse=True)
def _everything_is_much(monkeypatch):
    monkeypatch.setattr(module, "MUCH_WORK", 0)
    monkeypatch.setattr(module, "is_amd", lambda: True)


@pytest.fixture
def calls(monkeypatch):
    """Every use of the operator, by the shapes of its tokens and weights."""
    seen = []

    def counted(tokens, weight, *rest):
        seen.append((tuple(tokens.shape), tuple(weight.shape)))
        return operator(tokens, weight, *rest)

    operator = module.ONEDNN
    monkeypatch.setattr(module, "ONEDNN", counted)
    return seen


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [(1, DIM), (5, 7, DIM), (2, 3, 5, DIM), (DIM,)], ids=str)
def test_the_product_is_as_good_as_torchs_own(calls, tokens, has_bias):
    tokens, weight, bias = torch.randn(tokens), torch.randn(11, DIM), torch.randn(11) if has_bias else None
    found, own = product(tokens, weight, bias), functional.linear(tokens, weight, bias)
    assert len(calls) == 1
    wide = [None if x is None else x.double() for x in (tokens, weight, bias)]
    assert_as_good(found, own, functional.linear(*wide))
    assert found.stride() == own.stride()


def test_tokens_and_weights_may_lie_anyhow(calls):
    tokens, weight = torch.randn(DIM, 5, 7).permute(2, 1, 0), torch.randn(DIM, 22).t()[::2]
    for bias in (None, torch.randn(30)[7:18]):
        wide = functional.linear(tokens.double(), weight.double(), None if bias is None else bias.double())
        assert_as_good(product(tokens, weight, bias), functional.linear(tokens, weight, bias), wide)
    assert len(calls) == 2


def test_a_layer_in_evaluation_takes_it_for_all_its_products(calls):
    layer, tokens = MultiHeadAttention(DIM, 3).eval(), torch.randn(2, 5, DIM)
    with torch.no_grad():
        found = layer(tokens)
        assert calls == [((2, 5, DIM), (3 * DIM, DIM)), ((2, 5, DIM), (DIM, DIM))]
        layer.recall(tokens[:, :1], layer.remember(tokens))
    assert calls[2:] == [((2, 5, DIM), (2 * DIM, DIM)), ((2, 1, DIM), (DIM, DIM)), ((2, 1, DIM), (DIM, DIM))]
    calls.clear()
    learning = layer(tokens)
    assert calls == []
    torch.testing.assert_close(found, learning)
    learning.sum().backward()
    layer.requires_grad_(False)(tokens)
    assert len(calls) == 2


def test_small_products_are_torchs(monkeypatch, calls):
    tokens, weight = torch.randn(5, DIM), torch.randn(11, DIM)
    for name, size in (("MUCH_WORK", 5 * DIM * 11), ("MANY_WEIGHTS", DIM * 11)):
        monkeypatch.setattr(module, "MUCH_WORK", 2**60)
        monkeypatch.setattr(module, "MANY_WEIGHTS", 2**60)
        for limit, count in ((size + 1, 0), (size, 1)):
            monkeypatch.setattr(module, name, limit)
            product(tokens, weight, None)
            assert len(calls) == count
        calls.clear()


def test_intels_processors_keep_mkl(monkeypatch, calls):
    monkeypatch.setattr(module, "is_amd", lambda: False)
    tokens, weight = torch.randn(5, DIM), torch.randn(11, DIM)
    assert torch.equal(product(tokens, weight, None), functional.linear(tokens, weight))
    assert calls == []


class Marked(torch.Tensor):
    """A subclass, which watches what becomes of it."""


REFUSED = {
    "float64": lambda x, w, b: (x.double(), w.double(), b.double()),
    "half precision": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
    "no tokens": lambda x, w, b: (x[:0], w, b),
    "tokens that learn": lambda x, w, b: (x.requires_grad_(), w, b),
    "weights that learn": lambda x, w, b: (x, w.requires_grad_(), b),
    "a bias that learns": lambda x, w, b: (x, w, b.requires_grad_()),
    "a subclass": lambda x, w, b: (x.as_subclass(Marked), w, b),
    "a subclass of weights": lambda x, w, b: (x, w.as_subclass(Marked), b),
    "a strided bias": lambda x, w, b: (x, w, torch.randn(11, 2)[:, 1]),
    "a shared bias": lambda x, w, b: (x, w, b[:1].expand(11)),
    "a bias for all": lambda x, w, b: (x, w, b[:1]),
    "a bias with an axis more": lambda x, w, b: (x, w, b[None]),
}
WRONG = {
    "tokens": lambda x, w, b: (x[:, 1:], w, b),
    "a bias of another size": lambda x, w, b: (x, w, b[1:]),
    "a bias of another dtype": lambda x, w, b: (x, w, b.double()),
    "weights of another dtype": lambda x, w, b: (x, w.double(), b),
}


@pytest.mark.parametrize("change", REFUSED)
def test_other_products_are_torchs(calls, change):
    tokens = REFUSED[change](torch.randn(5, DIM), torch.randn(11, DIM), torch.randn(11))
    assert torch.equal(product(*tokens), functional.linear(*tokens))
    assert calls == []


@pytest.mark.parametrize("change", WRONG)
def test_what_does_not_fit_gets_torchs_own_words(calls, change):
    inputs = WRONG[change](torch.randn(5, DIM), torch.randn(11, DIM), torch.randn(11))
    with pytest.raises(RuntimeError) as theirs:
        functional.linear(*inputs)
    with pytest.raises(RuntimeError) as ours:
        product(*inputs)
    assert str(ours.value) == str(theirs.value)
    assert calls == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by which torch finds its rules for it
def test_derivatives_of_forward_mode_are_not_lost(calls):
    tokens, weight = torch.randn(5, DIM), torch.randn(11, DIM)
    with forward_ad.dual_level():
        output = product(forward_ad.make_dual(tokens, torch.ones_like(tokens)), weight, None)
        tangent = forward_ad.unpack_dual(output).tangent
    torch.testing.assert_close(tangent, functional.linear(torch.ones_like(tokens), weight))
    assert calls == []


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # torch on its own flags
def test_autocast_watchers_and_flags_are_obeyed(calls):
    tokens, weight, bias = torch.randn(2, 5, DIM), torch.randn(11, DIM), torch.randn(11)
    expected = functional.linear(tokens, weight, bias)
    with torch.autocast("cpu"):
        assert product(tokens, weight, bias).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(product(tokens, weight, bias), expected)
    with FlopCounterMode(display=False) as counted:
        product(tokens, weight, bias)
    assert counted.get_total_flops() > 0
    mapped = torch.vmap(lambda x: product(x, weight, bias))(tokens)
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")(tokens, weight, bias)
    torch.testing.assert_close(mapped, expected)
    torch.testing.assert_close(compiled, expected)
    assert calls == []


def hooked(linear):
    linear.register_forward_hook(lambda module, inputs, output: output + 1)


def pre_hooked(linear):
    linear.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


def patched(linear):
    linear.forward = lambda tokens: tokens[..., :11] + 1


def pruned(linear):
    prune.l1_unstructured(linear, "weight", 0.5)


def normed(linear):
    parametrizations.weight_norm(linear)


@pytest.mark.parametrize("change", [hooked, pre_hooked, patched, pruned, normed])
def test_a_changed_module_is_called(calls, change):
    linear, tokens = nn.Linear(DIM, 11), torch.randn(5, DIM)
    with torch.no_grad():
        product_of(linear, tokens)
        assert len(calls) == 1
        change(linear)
        assert torch.equal(product_of(linear, tokens), linear(tokens))
        assert torch.equal(product_of(nn.Sequential(linear), tokens), linear(tokens))
    assert len(calls) == 1


def test_who_listens_to_all_modules_hears_of_it(calls):
    linear, heard = nn.Linear(DIM, 11), []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(module))
    try:
        with torch.no_grad():
            product_of(linear, torch.randn(5, DIM))
    finally:
        hook.remove()
    assert heard == [linear]
    assert calls == []
