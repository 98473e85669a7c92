"""Padding: its content changes no result, it is zeroed once for each call, and it is computed once for each mask.

With REGARD_TEST_DEVICE=cuda the same tests run on a GPU.
"""

import os
from collections import Counter

import pytest
import torch
from tests import modes
from tests.bounds import assert_as_good, assert_close, roundings
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard import Mask
from regard.attention.prepare import Options, prepare
from regard.backends import dispatch, sdpa
from regard.masks import bound
from regard.masks.bound import BIAS_ALIGNMENT, BoundMask, Padding

ON_GPU = os.environ.get("REGARD_TEST_DEVICE") == "cuda"
BATCH, HEADS, TOKENS, DIM = 2, 3, 19, 8
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MASKS = {
    "lengths": lambda: Mask.lengths(torch.tensor([3, 19])),
    "an example without keys": lambda: Mask.lengths(torch.tensor([-1, 25])),
    "one length": lambda: Mask.lengths(torch.tensor([4])),
    "one length without batch axis": lambda: Mask.lengths(torch.tensor(4)),
    "uint8 lengths": lambda: Mask.lengths(torch.tensor([200, 5], dtype=torch.uint8)),
    "lengths per head": lambda: Mask.lengths(torch.tensor([[3, 7, 2], [1, 0, 19]])),
    "keys": lambda: Mask.keys(torch.arange(38).view(2, 19) % 3 > 0),
    "keys of one example": lambda: Mask.keys(torch.arange(19) > 2),
    "lengths and causal": lambda: Mask.lengths(torch.tensor([3, 0])) & Mask.causal(),
    "lengths and keys": lambda: Mask.lengths(torch.tensor([3, 12])) & Mask.keys(torch.arange(19) > 2),
    "lengths or keys": lambda: Mask.lengths(torch.tensor([3, 12])) | Mask.keys(torch.arange(19) > 14),
}


@pytest.fixture(params=["zeroed", "unread"])
def _padding(request, set_limits):
    """Padding is zeroed and then read, or for masks of lengths it is not read at all."""
    limit = 2**62 if request.param == "zeroed" else 0
    set_limits(varlen_pairs=limit, example_pairs=limit)


def drawn(dtype=torch.float32, layout="heads apart"):
    tokens = [torch.randn(BATCH, TOKENS, HEADS, DIM).to(dtype).transpose(1, 2) for _ in range(3)]
    return [(x.contiguous() if layout == "heads apart" else x).requires_grad_() for x in tokens]


def with_gradients(output, tokens):
    cotangent = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad(output, tokens, cotangent)]


def assert_equal_numbers(found, reference, exact, what="output"):
    if found.dtype == torch.float64:  # in which the reference has no error of its own
        assert_close(found, exact, roundings(exact, TOKENS), what)
    else:
        assert_as_good(found, reference, exact, what)


def placed(mask, keys=TOKENS):
    sizes = {"batch": (BATCH, HEADS), "queries": TOKENS, "keys": keys}
    return mask.place(**sizes, device=torch.get_default_device())


# --- Results ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["heads apart", "heads together"])
def test_output_and_gradients_equal_the_reference(mask, dtype, layout):
    tokens, mask = drawn(dtype, layout), MASKS[mask]()
    wide = [x.detach().double().requires_grad_() for x in tokens]
    ways = (("auto", tokens), ("reference", tokens), ("reference", wide))
    results = [with_gradients(regard.attend(*x, mask=mask, backend=backend), x) for backend, x in ways]
    for what, *numbers in zip(("output", "query", "key", "value"), *results, strict=True):
        assert_equal_numbers(*numbers, what)


@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_output_without_gradients_equals_the_reference(mask, dtype, mode):
    with mode():
        tokens, mask = [x.detach() for x in drawn(dtype)], MASKS[mask]()
        exact = regard.attend(*(x.double() for x in tokens), mask=mask, backend="reference")
        found, reference = (regard.attend(*tokens, mask=mask, backend=backend) for backend in ("auto", "reference"))
    assert_equal_numbers(found, reference, exact)


@pytest.mark.parametrize("limit", [pytest.param(2**62, id="zeroed"), pytest.param(0, id="unread")])
@pytest.mark.parametrize("lengths", [[0], [0, -3]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_gradients_are_zero_if_no_example_has_keys(limit, lengths, dtype, set_limits):
    set_limits(varlen_pairs=limit, example_pairs=limit)
    tokens = drawn(dtype)
    for found in with_gradients(regard.attend(*tokens, mask=Mask.lengths(torch.tensor(lengths))), tokens):
        assert not found.any()


@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_padding_may_hold_any_finite_garbage(backend, needs_grad, dtype, sign):
    clean, mask = drawn(dtype), Mask.lengths(torch.tensor([3, 0]))
    dirty = [x.detach().clone().requires_grad_() for x in clean]
    with torch.no_grad():
        for x in dirty[1:]:
            x[0, :, 3:] = x[1] = sign * torch.finfo(dtype).max
    results = []
    with torch.set_grad_enabled(needs_grad):
        for tokens in (clean, dirty):
            output = regard.attend(*tokens, mask=mask, backend=backend)
            results.append(with_gradients(output, tokens) if needs_grad else [output])
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
        assert not right[1].any()


@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_padding_may_become_infinite_by_a_projection(backend):
    layer = regard.MultiHeadAttention(DIM, 2, backend=backend)
    tokens, mask, results = torch.randn(BATCH, TOKENS, DIM), Mask.lengths(torch.tensor([3, 0])), []
    for garbage in (0.0, torch.finfo(torch.float32).max):
        key = tokens.clone()
        key[0, 3:] = key[1] = garbage
        assert not garbage or layer.input(tokens, key, key)[1].isinf().any()
        results.append(with_gradients(layer(tokens, key, key, mask), list(layer.parameters())))
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)


@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("wanted", range(3), ids=["query", "key", "value"])
def test_gradient_of_one_input_alone_equals_the_reference(wanted):
    mask = Mask.lengths(torch.tensor([3, 0]))
    tokens = [x.detach().requires_grad_(place == wanted) for place, x in enumerate(drawn())]
    losses = [regard.attend(*tokens, mask=mask, backend=name).square().sum() for name in ("auto", "reference")]
    (found,), (right,) = (torch.autograd.grad(loss, tokens[wanted]) for loss in losses)
    torch.testing.assert_close(found, right)


@pytest.mark.skipif(ON_GPU, reason="the kernels of torch return NaN there")
@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_real_tokens_may_be_infinite(number, which, needs_grad):
    """A key that is minus infinite has no weight."""
    query, key, value = (x.detach() for x in drawn())
    query.abs_()
    (key if which == "key" else value)[0, 0, 1] = number
    tokens, mask = [x.requires_grad_(needs_grad) for x in (query, key, value)], Mask.lengths(torch.tensor([5, 2]))
    found, right = (regard.attend(*tokens, mask=mask, backend=backend) for backend in ("auto", "reference"))
    torch.testing.assert_close(found, right, equal_nan=True)


# --- What is computed once -------------------------------------------------------------------------------------------


@pytest.fixture
def computed(monkeypatch):
    """How often masks computed which keys are real, and a bias."""
    counts = Counter()

    def counted(owner, name):
        compute = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: counts.update([name]) or compute(*given))

    counted(BoundMask, "_padding")
    counted(Padding, "_new_bias")
    return counts


CACHED = {name: MASKS[name] for name in ("lengths", "one length", "lengths per head", "keys", "keys of one example")}


@pytest.mark.parametrize("mask", CACHED)
def test_padding_is_computed_once_for_a_mask_a_shape_and_a_dtype(mask, computed, set_limits):
    set_limits(varlen_pairs=2**62, example_pairs=2**62)
    mask, tokens = CACHED[mask](), drawn()
    first, second = (regard.attend(*tokens, mask=mask) for _ in range(2))
    assert torch.equal(first, second)
    assert computed == {"_padding": 1, "_new_bias": 1}
    regard.attend(*(x.detach() for x in tokens), mask=mask)
    assert computed == {"_padding": 1, "_new_bias": 1}
    regard.attend(*drawn(torch.float64), mask=mask)
    assert computed == {"_padding": 1, "_new_bias": 2}
    regard.attend(tokens[0][..., :5, :], *tokens[1:], mask=mask)
    assert computed == {"_padding": 2, "_new_bias": 3}


def test_layers_share_the_padding_of_one_mask(computed, set_limits):
    set_limits(varlen_pairs=2**62, example_pairs=2**62)
    mask, tokens = Mask.lengths(torch.tensor([3, 7])), torch.randn(BATCH, TOKENS, DIM)
    for _ in range(3):
        tokens = regard.MultiHeadAttention(DIM, 2)(tokens, mask=mask)
    assert computed == {"_padding": 1, "_new_bias": 1}


@pytest.mark.parametrize("mask", CACHED)
def test_every_stream_has_a_padding_of_its_own(mask, monkeypatch):
    mask, found = CACHED[mask](), []
    monkeypatch.setattr(bound, "DEVICE_WITH_STREAMS", torch.get_default_device().type)
    for stream in (1, 2, 1):
        monkeypatch.setattr(bound, "current_stream", lambda device, stream=stream: stream)
        found.append(placed(mask).padding(TOKENS, torch.get_default_device()))
    assert found[0] is found[2]
    assert found[0] is not found[1]


@pytest.mark.parametrize("mask", CACHED)
def test_nothing_is_cached_while_a_graph_is_captured(mask, monkeypatch):
    """A captured graph computes the padding again at each replay."""
    mask = CACHED[mask]()
    monkeypatch.setattr(bound, "DEVICE_WITH_STREAMS", torch.get_default_device().type)
    monkeypatch.setattr(bound, "current_stream", lambda device: None)
    first, second = (placed(mask).padding(TOKENS, torch.get_default_device()) for _ in range(2))
    assert first is not second
    assert mask._bound == {}


@pytest.mark.skipif(not ON_GPU, reason="needs CUDA streams")
def test_cuda_streams_share_no_padding():
    mask, device = Mask.lengths(torch.tensor([3, 7])), torch.get_default_device()
    torch.cuda.synchronize()
    first = placed(mask).padding(TOKENS, device)
    with torch.cuda.stream(torch.cuda.Stream()):
        other = placed(mask).padding(TOKENS, device)
    torch.cuda.synchronize()
    assert placed(mask).padding(TOKENS, device) is first
    assert other is not first


@pytest.mark.usefixtures("_padding")
@pytest.mark.parametrize("mask", CACHED)
def test_padding_from_inference_mode_serves_a_training(mask, computed):
    tokens = drawn()
    with torch.inference_mode():
        mask = CACHED[mask]()
        regard.attend(*tokens, mask=mask)
    before = computed.copy()
    found = with_gradients(regard.attend(*tokens, mask=mask), tokens)
    assert computed == before
    right = with_gradients(regard.attend(*tokens, mask=mask, backend="reference"), tokens)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)


def under_function_mode(function, *tokens):
    with modes.Relabelling():
        return function(*tokens)


def under_fake_tensors(function, *tokens):
    """Inputs are converted, because the mode refuses others; the tensor of the mask is converted by the mode."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        function(*(mode.from_tensor(x) for x in tokens))


TRANSFORMS = {
    "functionalize": lambda function, *tokens: torch.func.functionalize(function)(*tokens),
    "fake tensors": under_fake_tensors,
    "vmap": lambda function, *tokens: torch.vmap(function)(*(x[None] for x in tokens))[0],
    "grad": lambda function, *tokens: torch.func.vjp(function, *tokens)[0],
    "function mode": under_function_mode,
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's own, of vmap
@pytest.mark.parametrize("mask", CACHED)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("used_before", [False, True])
def test_transform_leaves_nothing_in_a_cache(transform, mask, used_before):
    """The next call returns the numbers of a mask that no transform has seen, and what is cached is plain tensors."""
    mask, fresh, tokens = CACHED[mask](), CACHED[mask](), [x.detach() for x in drawn()]
    right = regard.attend(*tokens, mask=fresh)
    if used_before:
        regard.attend(*(x.double() for x in tokens), mask=mask)
    inside = TRANSFORMS[transform](lambda *tokens: regard.attend(*tokens, mask=mask), *tokens)
    after = regard.attend(*tokens, mask=mask)
    assert type(after) is torch.Tensor
    assert not torch._is_functional_tensor(after)
    assert torch.equal(after, right)
    if inside is not None:
        torch.testing.assert_close(inside.as_subclass(torch.Tensor), after)
    padding = placed(mask).padding(TOKENS, torch.get_default_device())
    found = (padding.real, padding.bias(torch.float32), padding.empty_examples())
    for cached in filter(lambda x: x is not None, found):
        assert type(cached) is torch.Tensor
        assert not torch._is_functional_tensor(cached)
        assert not torch._C._functorch.is_functorch_wrapped_tensor(cached)


# --- The bias of the kernels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [1, 8, 19])
def test_rows_of_the_bias_are_aligned(keys, dtype):
    padding = placed(Mask.lengths(torch.tensor([0, 5])), keys).padding(keys, torch.get_default_device())
    bias = padding.bias(dtype)
    assert bias.shape == (BATCH, 1, 1, keys)
    assert bias.dtype == dtype
    assert bias.stride(-1) == 1
    assert not any(step % BIAS_ALIGNMENT for step in bias.stride()[:-1])
    assert not any(bias[row].data_ptr() % (BIAS_ALIGNMENT * bias.element_size()) for row in range(BATCH))


def test_kernel_gets_the_aligned_bias_itself(monkeypatch, set_limits):
    set_limits(varlen_pairs=2**62, example_pairs=2**62)
    given, kernel = [], sdpa.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        sdpa.functional,
        "scaled_dot_product_attention",
        lambda *inputs, **settings: given.append(inputs[3]) or kernel(*inputs, **settings),
    )
    mask = Mask.lengths(torch.tensor([0, 5]))
    regard.attend(*drawn(), mask=mask)
    assert given[0] is placed(mask).padding(TOKENS, torch.get_default_device()).bias(torch.float32)


# --- Padding is zeroed once ------------------------------------------------------------------------------------------


@pytest.fixture
def zeroed(monkeypatch):
    """The tokens that were zeroed so far."""
    tokens, zero = [], Padding.zero
    monkeypatch.setattr(Padding, "zero", lambda self, given: tokens.append(given) or zero(self, given))
    return tokens


LOOKS = {
    "attend": lambda *tokens, **settings: regard.attend(*tokens, **settings),
    "inspect": lambda *tokens, **settings: regard.inspect(*tokens, **settings),
    "weights": lambda *tokens, **settings: regard.inspect(*tokens, **settings).weights(),
    "entropy": lambda *tokens, **settings: regard.inspect(*tokens, **settings).entropy(),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("score", ["scaled_dot", "laplacian", regard.scores.Additive.of_projected(DIM)])
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_call_zeroes_keys_and_values_once(look, score, backend, zeroed, set_limits):
    set_limits(varlen_pairs=2**62, example_pairs=2**62)
    tokens = drawn()
    LOOKS[look](*tokens, score=score, mask=Mask.lengths(torch.tensor([3, 7])), backend=backend)
    key, value = zeroed
    assert torch.equal(key, tokens[1])
    assert value is tokens[2]


def test_plan_that_reads_no_padding_zeroes_nothing(zeroed, set_limits):
    set_limits(varlen_pairs=0, example_pairs=0)
    regard.attend(*drawn(), mask=Mask.lengths(torch.tensor([3, 7])))
    assert zeroed == []


RECALLS = {
    "recall": lambda layer, query, memory: layer.recall(query, memory),
    "recall_inspect": lambda layer, query, memory: layer.recall_inspect(query, memory),
    "recall_with_weights": lambda layer, query, memory: layer.recall_with_weights(query, memory),
}


@pytest.mark.parametrize("recall", RECALLS)
@pytest.mark.parametrize("make", [
    lambda: regard.MultiHeadAttention(DIM, 2),
    lambda: regard.MultiHeadAttention(DIM, 4, "additive", kv_heads=2),
    lambda: regard.Attention("gaussian"),
], ids=["heads", "groups of heads", "one head"])  # fmt: skip
def test_memory_is_zeroed_once_for_all_recalls(make, recall, zeroed):
    layer, tokens = make(), torch.randn(BATCH, TOKENS, DIM)
    memory = layer.remember(tokens, tokens, mask=Mask.lengths(torch.tensor([3, 7])))
    assert memory.padding_is_zero
    assert len(zeroed) == 2
    for _ in range(2):
        RECALLS[recall](layer, tokens[:, :1], memory)
        memory = memory.append(tokens[:, :1], tokens[:, :1])
    RECALLS[recall](layer, tokens[:, :1], memory.select([1, 0]))
    assert len(zeroed) == 2


def test_problem_whose_padding_is_zero_stays_the_same():
    tokens, mask = drawn(), Mask.lengths(torch.tensor([3, 7]))
    problem = prepare(*tokens, "scaled_dot", Options(mask, padding_is_zero=True))
    assert dispatch.zero_padding(problem) is problem
    clean = dispatch.zero_padding(problem._replace(padding_is_zero=False))
    assert clean is not problem
    assert dispatch.zero_padding(clean) is clean


# --- Callable scores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_callable_score_gets_the_keys_as_they_were_given(look, backend, zeroed):
    """Values become 0, keys stay: 0 might not be in the domain of the function."""
    query, key, value = (x.detach().abs() + 1 for x in drawn())
    given = []

    def score(query, key):
        given.append(key)
        return query.log() @ key.log().mT

    LOOKS[look](query, key, value, score=score, mask=Mask.lengths(torch.tensor([3, 0])), backend=backend)
    assert all((tile > 0).all() for tile in given)
    assert torch.equal(given[0], key)
    assert len(zeroed) == 1
    assert zeroed[0] is value


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_gradients_of_a_callable_score_are_finite_where_0_has_none(backend):
    tokens = [(x.detach().abs() + 1).requires_grad_() for x in drawn()]
    mask = Mask.lengths(torch.tensor([3, 0]))
    output = regard.attend(*tokens, lambda q, k: q.log() @ k.log().mT, mask=mask, backend=backend)
    for found in with_gradients(output, tokens):
        assert found.isfinite().all()
        assert not found[1].any()
