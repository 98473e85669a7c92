"""Padding of a short call in numbers: right, blank whatever it holds, made once (REGARD_TEST_DEVICE=cuda: on a GPU)."""

import os

import pytest
import torch
from tests.bounds import assert_as_good

import regard
from regard import Mask
from regard.backends import ragged
from regard.masks import tensors
from regard.pooling import everyday, padding

ON_GPU = os.environ.get("REGARD_TEST_DEVICE") == "cuda"
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MASKS = {
    "lengths": lambda: Mask.lengths(torch.tensor([3, 19])),
    "a row without keys": lambda: Mask.lengths(torch.tensor([-1, 25])),
    "nothing": lambda: Mask.lengths(torch.tensor([0])),
    "one length": lambda: Mask.lengths(torch.tensor([4])),
    "one for all": lambda: Mask.lengths(torch.tensor(4)),
    "short numbers": lambda: Mask.lengths(torch.tensor([200, 5], dtype=torch.uint8)),
    "lengths of heads": lambda: Mask.lengths(torch.tensor([[3, 7, 2], [1, 0, 19]])),
    "keys": lambda: Mask.keys(torch.arange(38).view(2, 19) % 3 > 0),
    "keys for all": lambda: Mask.keys(torch.arange(19) > 2),
}


@pytest.fixture(params=["as it is", "as a GPU"])
def _device(request, monkeypatch):
    """On a CPU, tokens are blanked in the way of a GPU, too."""
    if request.param == "as a GPU" and not ON_GPU:
        monkeypatch.setattr(ragged, "DEVICE", "cpu")


def drawn(dtype=torch.float32, together=False):
    tokens = [torch.randn(2, 19, 3, 8).to(dtype).transpose(1, 2) for _ in range(3)]
    return [(x if together else x.contiguous()).requires_grad_() for x in tokens]


def with_gradients(output, tokens):
    along = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad(output, tokens, along)]


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("together", [False, True])
def test_numbers_and_gradients_are_those_of_the_reference(mask, dtype, together):
    tokens, said = drawn(dtype, together), MASKS[mask]()
    wide = [x.detach().double().requires_grad_() for x in tokens]
    found = everyday.pool(*tokens, "scaled_dot", said)
    assert found is not None
    ways = ((found, tokens), (regard.attend(*tokens, mask=said, backend="reference"), tokens))
    exact = with_gradients(regard.attend(*wide, mask=said, backend="reference"), wide)
    for what, *results in zip(
        ("output", "query", "key", "value"), *(with_gradients(*way) for way in ways), exact, strict=True
    ):
        assert_as_good(*results, what)


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_padding_may_hold_any_finite_garbage(learns, dtype, sign):
    clean, said = drawn(dtype), Mask.lengths(torch.tensor([3, 0]))
    dirty = [x.detach().clone().requires_grad_() for x in clean]
    with torch.no_grad():
        for x in dirty[1:]:
            x[0, :, 3:] = x[1] = sign * torch.finfo(dtype).max
    results = []
    with torch.set_grad_enabled(learns):
        for tokens in (clean, dirty):
            output = everyday.pool(*tokens, "scaled_dot", said)
            results.append(with_gradients(output, tokens) if learns else [output])
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
        assert not right[1].any()


def test_it_is_made_once_for_a_mask_a_shape_and_a_dtype(monkeypatch):
    made, make = [], padding._made
    monkeypatch.setattr(tensors, "SHORT", {})
    monkeypatch.setattr(padding, "_made", lambda *parts: made.append(parts) or make(*parts))
    for said in (Mask.lengths(torch.tensor([3, 7])), Mask.keys(torch.arange(38).view(2, 19) > 3)):
        made.clear()
        tokens = drawn()
        first, second = (everyday.pool(*tokens, "scaled_dot", said) for _ in range(2))
        assert torch.equal(first, second)
        assert len(made) == 1
        everyday.pool(*drawn(torch.float64), "scaled_dot", said)
        assert len(made) == 2
        everyday.pool(*(x[:, :1] for x in tokens), "scaled_dot", said)
        assert len(made) == 3
        everyday.pool(*(x.detach() for x in tokens), "scaled_dot", said)
        assert len(made) == 3


@pytest.mark.skipif(ON_GPU, reason="the values of lengths are read on a CPU only")
def test_the_same_lengths_in_another_mask_are_found_again(monkeypatch):
    made, make = [], padding._made
    monkeypatch.setattr(tensors, "SHORT", {})
    monkeypatch.setattr(padding, "_made", lambda *parts: made.append(parts) or make(*parts))
    for _ in range(3):
        everyday.pool(*drawn(), "scaled_dot", Mask.lengths(torch.tensor([3, 7])))
    assert len(made) == 1


def test_made_in_inference_mode_it_serves_a_training(monkeypatch):
    monkeypatch.setattr(tensors, "SHORT", {})
    said, tokens = Mask.lengths(torch.tensor([3, 7])), drawn()
    with torch.inference_mode():
        everyday.pool(*tokens, "scaled_dot", said)
    monkeypatch.setattr(padding, "_made", None)
    found = with_gradients(everyday.pool(*tokens, "scaled_dot", said), tokens)
    right = with_gradients(regard.attend(*tokens, mask=said, backend="reference"), tokens)
    for one, other in zip(found, right, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_transform_leaves_nothing_behind():
    said = Mask.lengths(torch.tensor([[3, 7, 2], [1, 0, 19]]))  # not found by their values, even on a CPU
    tokens = [x.detach() for x in drawn()]
    padding.COLUMNS.clear()
    inside = torch.func.functionalize(lambda *tokens: regard.attend(*tokens, mask=said))(*tokens)
    after = regard.attend(*tokens, mask=said)
    assert not torch._is_functional_tensor(after)
    assert torch.allclose(after, inside, atol=1e-6)


@pytest.mark.parametrize("keys", [1, 8, 19])
def test_what_is_added_lies_as_a_kernel_reads_it(keys):
    said = Mask.lengths(torch.tensor([0, 5]))
    bias = padding.padding_of(said, torch.randn(2, 3, keys, 8)).bias
    assert bias.shape == (2, 1, 1, keys)
    assert bias.stride(-1) == 1
    assert not any(step % 8 for step in bias.stride()[:-1])


def test_blanking_has_nothing_to_do_backward_in_a_training_on_a_gpu(monkeypatch):
    tokens = drawn()
    monkeypatch.setattr(ragged, "DEVICE", tokens[0].device.type)
    output = everyday.pool(*tokens, "scaled_dot", Mask.lengths(torch.tensor([3, 7])))
    pooling = output.grad_fn.next_functions[0][0]  # behind the zeros of rows without keys
    _, key, value = (node for node, _ in pooling.next_functions[:3])
    for blanked in (key, value):
        assert [node is not None for node, _ in blanked.next_functions] == [True, False, False]


@pytest.mark.usefixtures("_device")
def test_gradients_of_one_of_the_tokens_alone():
    said = Mask.lengths(torch.tensor([3, 0]))
    for wanted in range(3):
        tokens = [x.detach().requires_grad_(place == wanted) for place, x in enumerate(drawn())]
        found = everyday.pool(*tokens, "scaled_dot", said).square().sum()
        right = regard.attend(*tokens, mask=said, backend="reference").square().sum()
        (one,), (other,) = (torch.autograd.grad(loss, tokens[wanted]) for loss in (found, right))
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.skipif(ON_GPU, reason="torch's own kernels make NaN of it there")
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_real_tokens_may_be_infinite(number, which, learns):
    """As anywhere: a key that is minus infinite has no weight."""
    query, key, value = (x.detach() for x in drawn())
    query.abs_()
    (key if which == "key" else value)[0, 0, 1] = number
    tokens, said = [x.requires_grad_(learns) for x in (query, key, value)], Mask.lengths(torch.tensor([5, 2]))
    found, right = (regard.attend(*tokens, mask=said, backend=way) for way in ("auto", "reference"))
    assert torch.allclose(found, right, atol=1e-5, equal_nan=True)
