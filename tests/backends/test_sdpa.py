"""The torch backend: the results and gradients of scaled_dot_product_attention, or a refusal with its reason."""

import math
import os

import pytest
import torch
from tests import bounds
from tests.refuses import refuses
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import Mask
from regard.backends import sdpa
from regard.checks import FLOATS
from regard.masks import bound
from regard.testing import dispatch_log

QUERIES, KEYS, DIM, VALUE = 5, 7, 3, 11


def tokens(count, dim, *batch, dtype=torch.float64):
    return torch.randn(*batch, count, dim, dtype=dtype).requires_grad_()


def drawn(*batch, queries=QUERIES, keys=KEYS):
    return tokens(queries, DIM, *batch), tokens(keys, DIM, *batch), tokens(keys, VALUE, *batch)


def assert_equal_with_gradients(ours, theirs, leaves, *, keys=None):
    """keys: where they are many, as many roundings of values of size 1 may add up."""
    assert ours.shape == theirs.shape
    if keys is None:
        bounds.assert_same(ours, theirs)
    else:
        bounds.assert_close(ours, theirs, bounds.roundings(theirs, math.isqrt(keys)))
    cotangent = torch.randn_like(ours)
    found = torch.autograd.grad(ours, leaves, cotangent)
    expected = torch.autograd.grad(theirs, leaves, cotangent)
    for left, right in zip(found, expected, strict=True):
        bounds.assert_close(left, right, bounds.roundings(right, 64))


SCORED = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean mask": {"attn_mask": torch.rand(QUERIES, KEYS) < 0.7},
    "mask per head": {"attn_mask": torch.rand(2, 3, QUERIES, KEYS) < 0.7},
    "float bias": {"attn_mask": torch.randn(QUERIES, KEYS, dtype=torch.float64)},
}


def in_our_words(settings):
    mask = settings.get("attn_mask")
    if settings.get("is_causal"):
        return {"mask": Mask.causal(align="top_left")}
    if mask is None:
        return {}
    return {"mask": Mask.from_sdpa(mask)} if mask.dtype == torch.bool else {"bias": mask}


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference", "auto"])
@pytest.mark.parametrize("name", SCORED)
def test_every_backend_equals_scaled_dot_product_attention(name, backend):
    settings = SCORED[name]
    if (mask := settings.get("attn_mask")) is not None and mask.dtype == torch.bool:
        mask[..., 0] = True  # what torch does with a row without keys is not ours to copy
    leaves = drawn(2, 3)
    ours = regard.attend(*leaves, backend=backend, **in_our_words(settings))
    assert_equal_with_gradients(ours, scaled_dot_product_attention(*leaves, **settings), leaves)


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference"])
def test_any_positive_scale_is_passed_on(backend):
    leaves = drawn(2, 3)
    ours = regard.attend(*leaves, regard.scores.ScaledDot(0.3), backend=backend)
    assert_equal_with_gradients(ours, scaled_dot_product_attention(*leaves, scale=0.3), leaves)


@pytest.mark.parametrize("backend", ["torch", "blocked", "reference"])
def test_grouped_heads_are_a_shared_axis(backend):
    """Six query heads over two heads of keys: (batch, kv_heads, group, ...) here, enable_gqa there."""
    query = tokens(QUERIES, DIM, 2, 2, 3)
    key, value = tokens(KEYS, DIM, 2, 2, 1), tokens(KEYS, VALUE, 2, 2, 1)
    mask = torch.rand(2, 2, 3, QUERIES, KEYS) < 0.8
    mask[..., 0] = True
    ours = regard.attend(query, key, value, mask=Mask.keep(mask), backend=backend)
    theirs = scaled_dot_product_attention(
        query.flatten(1, 2), key.squeeze(2), value.squeeze(2), attn_mask=mask.flatten(1, 2), enable_gqa=True
    )
    assert_equal_with_gradients(ours, theirs.unflatten(1, (2, 3)), (query, key, value))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 3, 2), (2, 1, 3, 2)], ids=len)
@pytest.mark.parametrize("masked", [False, True])
def test_any_number_of_batch_axes(batch, masked):
    leaves = drawn(*batch)
    mask = Mask.keep(torch.rand(*batch, QUERIES, KEYS) < 0.5) if masked else None
    with dispatch_log() as ran:
        ours = regard.attend(*leaves, mask=mask, backend="torch")
    assert ran == ["torch"]
    assert_equal_with_gradients(ours, regard.attend(*leaves, mask=mask, backend="reference"), leaves)


@pytest.mark.parametrize(
    "batches",
    [((2, 3), (2, 1), (2, 1)), ((2, 1), (1, 3), (2, 3)), ((1, 1), (1, 1), (2, 3)), ((1,), (2,), (2,))],
    ids=str,
)
def test_shared_axes_of_up_to_two_batch_axes(batches):
    sizes = ((QUERIES, DIM), (KEYS, DIM), (KEYS, VALUE))
    leaves = [tokens(*size, *batch) for size, batch in zip(sizes, batches, strict=True)]
    ours = regard.attend(*leaves, backend="torch")
    assert_equal_with_gradients(ours, regard.attend(*leaves, backend="reference"), leaves)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"score": "laplacian"}, "it computes dot products and Gaussian scores only"),
        ({"score": regard.scores.ScaledDot(softcap=3.0)}, "it has no softcap"),
        ({"score": regard.scores.ScaledDot(sink=3)}, "it does not return log_mass"),
        ({"bias": lambda i, j: -(i[:, None] - j).double()}, "it does not support a callable bias"),
        (
            {"bias": torch.zeros(KEYS, dtype=torch.float64, requires_grad=True)},
            "the gradient of the bias would materialise the weights",
        ),
    ],
    ids=["distance", "softcap", "sink", "callable bias", "bias gradient"],
)
def test_scores_and_biases_that_torch_does_not_take_are_refused(settings, reason):
    with refuses("backend", reason):
        regard.attend(*drawn(2, 3), backend="torch", **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bias_that_would_be_rounded_is_refused(dtype):
    tokens = [x.detach().to(dtype) for x in drawn(2, 3)]
    finer = torch.float64 if dtype == torch.float32 else torch.float32
    with refuses("backend", f"round the bias to {dtype}"):
        regard.attend(*tokens, bias=torch.zeros(KEYS, dtype=finer), backend="torch")
    assert regard.attend(*tokens, bias=torch.zeros(KEYS, dtype=dtype), backend="torch").dtype == dtype


def test_mask_above_the_limit_is_refused(set_limits):
    set_limits(mask_entries=QUERIES * KEYS - 1)
    window = Mask.window(1, 1, align="top_left")
    with refuses("backend", f"{QUERIES * KEYS} entries"):
        regard.attend(*drawn(2, 3), mask=window, backend="torch")
    assert regard.why(*drawn(2, 3), mask=Mask.causal(align="top_left")).backend == "torch"


@pytest.mark.parametrize("mask", [Mask.causal(), Mask.keep(torch.ones(6, 6, dtype=torch.bool))], ids=str)
def test_entries_of_a_mask_count_the_batch_axes_of_its_bias(set_limits, mask):
    query, bias = tokens(6, DIM, 2, 3), torch.zeros(3, 1, 6, dtype=torch.float64)
    set_limits(mask_entries=3 * 36)
    assert regard.why(query, query, query, mask=mask, bias=bias).backend == "torch"
    set_limits(mask_entries=3 * 36 - 1)
    with refuses("backend", "108"):
        regard.attend(query, query, query, mask=mask, bias=bias, backend="torch")


def test_padding_with_a_bias_per_query_counts_as_a_matrix(set_limits):
    query, mask = tokens(6, DIM, 2), Mask.lengths(torch.tensor([4, 6]))
    set_limits(mask_entries=2 * 36 - 1)
    assert regard.why(query, query, query, mask=mask, bias=torch.zeros(1, 6).double()).backend == "torch"
    with refuses("backend", "72"):
        regard.attend(query, query, query, mask=mask, bias=torch.zeros(6, 1).double(), backend="torch")


FLASH = 1  # torch.nn.attention.SDPBackend: the kernel without a matrix of weights


@pytest.mark.parametrize("value_dim", [1, DIM, VALUE])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("groups", [None, 2])
def test_cpu_calls_use_the_kernel_that_holds_no_matrix_of_weights(monkeypatch, value_dim, strided, groups):
    chosen = []

    def spy(query, key, value, mask, dropout, causal, **how):
        chosen.append(torch._fused_sdp_choice(query, key, value, mask, dropout, causal, **how))
        return scaled_dot_product_attention(query, key, value, mask, dropout, causal, **how)

    monkeypatch.setattr(sdpa.functional, "scaled_dot_product_attention", spy)
    shared = (2, 3) if groups is None else (2, 3, 1)
    leaves = [tokens(n, dim, *batch) for n, dim, batch in (
        (QUERIES, DIM, (*shared[:2], *([] if groups is None else [groups]))),
        (KEYS, DIM, shared),
        (KEYS, value_dim, shared),
    )]  # fmt: skip
    given = [x.mT.contiguous().mT if strided else x for x in leaves]
    ours = regard.attend(*given, backend="torch")
    assert chosen == [FLASH]
    assert_equal_with_gradients(ours, regard.attend(*given, backend="reference"), leaves)


def test_dropout_of_many_weights_on_a_cpu_is_refused(set_limits):
    query = tokens(6, DIM, 2)
    set_limits(mask_entries=2 * 36)
    assert regard.why(query, query, query, dropout=0.1).backend == "torch"
    set_limits(mask_entries=2 * 36 - 1)
    assert regard.why(query, query, query).backend == "torch"
    with refuses("backend", "72"):
        regard.attend(query, query, query, dropout=0.1, backend="torch")


def test_shared_batch_axis_that_would_be_copied_is_refused():
    query, key, value = tokens(QUERIES, DIM, 2, 3, 2), tokens(KEYS, DIM, 2, 1, 2), tokens(KEYS, VALUE, 2, 1, 2)
    with refuses("backend", "copied", "shared", "batch"):
        regard.attend(query, key, value, backend="torch")


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_empty_inputs_are_refused(empty):
    leaves = [x[..., :0, :] if at == empty or (at and empty) else x for at, x in enumerate(drawn(2, 3))]
    with refuses("backend", "empty", "input"):
        regard.attend(*leaves, backend="torch")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("said", ["mask", "bias", "both"])
def test_row_without_keys_is_0_with_gradient_0(said, dtype, dropout):
    leaves = [x.detach().to(dtype).requires_grad_() for x in drawn(2, 3)]
    seen = torch.rand(QUERIES, KEYS) < 0.5
    seen[1] = False
    settings = {"mask": Mask.keep(seen)} if said != "bias" else {}
    if said != "mask":
        settings["bias"] = torch.zeros(QUERIES, KEYS, dtype=dtype).masked_fill(~seen, -torch.inf)
    output = regard.attend(*leaves, dropout=dropout, backend="torch", **settings)
    assert (output[..., 1, :] == 0).all()
    assert output.isfinite().all()
    to_query, to_key, to_value = torch.autograd.grad(output.sum(), leaves)
    assert (to_query[..., 1, :] == 0).all()
    assert all(gradient.isfinite().all() for gradient in (to_query, to_key, to_value))
    if dropout == 0:
        exact = regard.attend(*(x.double() for x in leaves), mask=Mask.keep(seen), backend="reference")
        reference = regard.attend(*leaves, mask=Mask.keep(seen), backend="reference")
        bounds.assert_as_good(output, reference, exact)


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("mask", [regard.Mask.causal(), regard.Mask.lengths(torch.tensor([2, 3])), None])
@pytest.mark.parametrize("learns", [False, True])
def test_zero_and_negative_scales_agree_with_the_reference(scale, mask, learns):
    """Torch's causal kernels multiply minus infinity by it."""
    tokens = [torch.randn(2, 2, 3, 4, requires_grad=learns) for _ in range(3)]
    found, right = (
        regard.attend(*tokens, regard.scores.ScaledDot(scale), mask, backend=backend)
        for backend in ("auto", "reference")
    )
    torch.testing.assert_close(found, right)
    if learns:
        found, right = (torch.autograd.grad(x.sin().sum(), tokens) for x in (found, right))
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [1, 7, 15, 16, 40])
@pytest.mark.parametrize("batch", [(2,), (2, 3)], ids=["three axes", "four axes"])
def test_nan_query_gives_nan(batch, count, causal, dtype):
    """torch's own kernel gives 0 if there are fewer than 16 keys."""
    inputs = [torch.randn(*batch, count, 4).to(dtype) for _ in range(3)]
    clean = regard.attend(*inputs, mask=Mask.causal() if causal else None)
    inputs[0][0, ..., 0, 0] = torch.nan
    output = regard.attend(*inputs, mask=Mask.causal() if causal else None)
    assert output[0, ..., 0, :].isnan().all()
    assert torch.equal(output[1:], clean[1:])
    assert torch.equal(output[0, ..., 1:, :], clean[0, ..., 1:, :])


@pytest.mark.parametrize(("queries", "keys"), [(40, 7), (7, 40), (15, 3), (16, 15)])
def test_nan_query_gives_nan_with_a_causal_mask_and_other_sizes(queries, keys):
    query, key = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4)
    query[0, :, 2, 0] = torch.nan
    output = regard.attend(query, key, key, mask=Mask.causal(align="top_left"), backend="torch")
    assert output[0, :, 2].isnan().all()
    output[0, :, 2] = 0
    assert output.isfinite().all()


@pytest.mark.parametrize("mask", [None, Mask.causal()], ids=["all", "causal"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_short_call_under_a_fake_tensor_mode_leaves_later_calls_alone(backend, mask):
    inputs = [torch.randn(2, 3, 7, 4) for _ in range(3)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        regard.attend(*inputs, mask=mask, backend=backend)
    output = regard.attend(*inputs, mask=mask, backend=backend)
    assert type(output) is torch.Tensor
    torch.testing.assert_close(output, regard.attend(*inputs, mask=mask, backend="reference"))


def test_short_call_under_inference_mode_leaves_later_calls_alone():
    inputs = [torch.randn(2, 3, 7, 4) for _ in range(3)]
    with torch.inference_mode():
        expected = regard.attend(*inputs, mask=Mask.causal())
    learning = [x.requires_grad_() for x in inputs]
    output = regard.attend(*learning, mask=Mask.causal())
    torch.autograd.grad(output.sum(), learning)
    assert torch.equal(output, expected)


def test_changes_to_a_matrix_of_the_caller_are_seen():
    tokens, allowed = [torch.randn(2, 3, 17, 4) for _ in range(3)], torch.ones(2, 1, 1, 17, dtype=torch.bool)
    mask = Mask.keep(allowed)
    for keys in (17, 4):
        allowed[..., keys:] = False
        found, right = (regard.attend(*tokens, mask=mask, backend=backend) for backend in ("torch", "reference"))
        torch.testing.assert_close(found, right)


# --- Rows that a GPU's kernels cannot load -------------------------------------------------------------------------


def strided(strides, offset=0, **options):
    """Tokens (2, 3, 11, 8) with these strides of batch, heads and tokens."""
    size = 1 + offset + sum(step * (count - 1) for step, count in zip(strides, (2, 3, 11), strict=True)) + 7
    return torch.randn(size, **options).as_strided((2, 3, 11, 8), (*strides, 1), offset)


UNALIGNED = {
    "parts of wider rows": lambda **options: strided((297, 99, 9), **options),
    "heads apart by 89": lambda **options: strided((267, 89, 8), **options),
    "examples apart by 265": lambda **options: strided((265, 88, 8), **options),
    "from the second number": lambda **options: strided((264, 88, 8), offset=1, **options),
}
ALIGNED = {
    "contiguous": lambda **options: strided((264, 88, 8), **options),
    "heads adjacent": lambda **options: strided((264, 8, 24), **options),
    "parts of wider rows": lambda **options: strided((528, 176, 16), offset=8, **options),
    "shared by heads": lambda **options: strided((88, 0, 8), **options),
}
HALF_AND_SINGLE = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def received(monkeypatch):
    """What scaled_dot_product_attention gets. On the meta device it computes the shape of its output."""
    inputs = []
    monkeypatch.setattr(
        sdpa.functional,
        "scaled_dot_product_attention",
        lambda *given, **options: inputs.extend(given[:3]) or scaled_dot_product_attention(*given, **options),
    )
    return inputs


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("layout", UNALIGNED)
def test_kernels_of_a_gpu_get_aligned_rows(layout, dtype, received):
    tokens = [UNALIGNED[layout](dtype=dtype, device="meta") for _ in range(3)]
    regard.attend(*tokens, backend="torch")
    assert [x.stride() for x in received] == [(264, 88, 8, 1)] * 3
    assert [x.storage_offset() for x in received] == [0] * 3


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("layout", ALIGNED)
def test_aligned_rows_are_not_copied(layout, dtype, received):
    tokens = [ALIGNED[layout](dtype=dtype, device="meta") for _ in range(3)]
    regard.attend(*tokens, backend="torch")
    assert all(found is given for found, given in zip(received, tokens, strict=True))


def test_stride_of_an_axis_of_size_1_is_aligned_for_a_gpu(received):
    tokens = [torch.randn(2, 11, 8, device="meta").as_strided((2, 1, 11, 8), (88, 99, 8, 1)) for _ in range(3)]
    regard.attend(*tokens, backend="torch")
    assert [x.stride() for x in received] == [(88, 88, 8, 1)] * 3


def test_rows_of_a_size_that_is_not_aligned_are_not_copied(received):
    tokens = [torch.randn(2, 3, 11, 6, device="meta") for _ in range(3)]
    regard.attend(*tokens, backend="torch")
    assert all(found is given for found, given in zip(received, tokens, strict=True))


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("layout", UNALIGNED)
@pytest.mark.parametrize("mask", [None, Mask.causal(), Mask.lengths(torch.tensor([4, 11]))], ids=str)
def test_unaligned_tokens_agree_with_the_reference(mask, layout, dtype):
    tokens = [UNALIGNED[layout](dtype=dtype).requires_grad_() for _ in range(3)]
    wide = [x.detach().double().requires_grad_() for x in tokens]
    found = with_gradients(regard.attend(*tokens, mask=mask, backend="torch"), tokens)
    own = with_gradients(regard.attend(*tokens, mask=mask, backend="reference"), tokens)
    exact = with_gradients(regard.attend(*wide, mask=mask, backend="reference"), wide)
    for what, *results in zip(("output", "query", "key", "value"), found, own, exact, strict=True):
        bounds.assert_as_good(*results, what)


# --- Padding -----------------------------------------------------------------------------------------------------

ON_GPU = os.environ.get("REGARD_TEST_DEVICE") == "cuda"
PADDED = {
    "lengths": lambda: Mask.lengths(torch.tensor([3, 19])),
    "row without keys": lambda: Mask.lengths(torch.tensor([-1, 25])),
    "no keys": lambda: Mask.lengths(torch.tensor([0])),
    "one length": lambda: Mask.lengths(torch.tensor([4])),
    "scalar length": lambda: Mask.lengths(torch.tensor(4)),
    "uint8 lengths": lambda: Mask.lengths(torch.tensor([200, 5], dtype=torch.uint8)),
    "lengths per head": lambda: Mask.lengths(torch.tensor([[3, 7, 2], [1, 0, 19]])),
    "keys": lambda: Mask.keys(torch.arange(38).view(2, 19) % 3 > 0),
    "keys of all examples": lambda: Mask.keys(torch.arange(19) > 2),
}


def padded_tokens(dtype=torch.float32, *, heads_adjacent=False):
    tokens = [torch.randn(2, 19, 3, 8).to(dtype).transpose(1, 2) for _ in range(3)]
    return [(x if heads_adjacent else x.contiguous()).requires_grad_() for x in tokens]


def with_gradients(output, tokens):
    grad = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad(output, tokens, grad)]


@pytest.mark.parametrize("mask", PADDED)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads_adjacent", [False, True])
def test_padded_calls_agree_with_the_reference(mask, dtype, heads_adjacent):
    tokens, mask = padded_tokens(dtype, heads_adjacent=heads_adjacent), PADDED[mask]()
    wide = [x.detach().double().requires_grad_() for x in tokens]
    with dispatch_log() as ran:
        output = regard.attend(*tokens, mask=mask)
    assert ran == ["torch"]
    found = with_gradients(output, tokens)
    own = with_gradients(regard.attend(*tokens, mask=mask, backend="reference"), tokens)
    exact = with_gradients(regard.attend(*wide, mask=mask, backend="reference"), wide)
    for what, *results in zip(("output", "query", "key", "value"), found, own, exact, strict=True):
        bounds.assert_as_good(*results, what)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_padding_may_hold_any_finite_number(needs_grad, dtype, sign):
    clean, mask = padded_tokens(dtype), Mask.lengths(torch.tensor([3, 0]))
    dirty = [x.detach().clone().requires_grad_() for x in clean]
    with torch.no_grad():
        for x in dirty[1:]:
            x[0, :, 3:] = x[1] = sign * torch.finfo(dtype).max
    results = []
    with torch.set_grad_enabled(needs_grad):
        for tokens in (clean, dirty):
            output = regard.attend(*tokens, mask=mask, backend="torch")
            results.append(with_gradients(output, tokens) if needs_grad else [output])
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
        assert not right[1].any()


@pytest.fixture
def new_biases(monkeypatch):
    """The dtype of every bias that is computed for padding."""
    computed, compute = [], bound.Padding._new_bias
    monkeypatch.setattr(
        bound.Padding, "_new_bias", lambda padding, dtype: computed.append(dtype) or compute(padding, dtype)
    )
    return computed


@pytest.mark.parametrize("mask", ["lengths", "keys"])
def test_padding_is_computed_once_for_a_mask_and_its_sizes(mask, new_biases):
    mask, tokens = PADDED[mask](), padded_tokens()
    first, second = (regard.attend(*tokens, mask=mask, backend="torch") for _ in range(2))
    assert torch.equal(first, second)
    assert len(new_biases) == 1
    regard.attend(*padded_tokens(torch.float64), mask=mask, backend="torch")
    assert len(new_biases) == 2
    regard.attend(*(x[:, :, :12] for x in tokens), mask=PADDED["lengths"](), backend="torch")
    assert len(new_biases) == 3


def test_padding_computed_in_inference_mode_serves_a_later_backward_pass(new_biases):
    mask, tokens = PADDED["lengths"](), padded_tokens()
    with torch.inference_mode():
        regard.attend(*tokens, mask=mask, backend="torch")
    found = with_gradients(regard.attend(*tokens, mask=mask, backend="torch"), tokens)
    assert len(new_biases) == 1
    right = with_gradients(regard.attend(*tokens, mask=mask, backend="reference"), tokens)
    for one, other in zip(found, right, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_padding_computed_in_a_transform_is_not_cached():
    mask, tokens = PADDED["lengths per head"](), [x.detach() for x in padded_tokens()]
    inside = torch.func.functionalize(lambda *tokens: regard.attend(*tokens, mask=mask))(*tokens)
    after = regard.attend(*tokens, mask=mask)
    assert not torch._is_functional_tensor(after)
    assert torch.allclose(after, inside, atol=1e-6)


@pytest.mark.parametrize("keys", [1, 8, 19])
def test_rows_of_the_padding_bias_are_aligned(keys):
    lengths = Mask.lengths(torch.tensor([0, 5])).place(batch=(2, 3), queries=4, keys=keys, device=torch.ones(1).device)
    bias = lengths.padding(keys, torch.ones(1).device).bias(torch.float32)
    assert bias.shape == (2, 1, 1, keys)
    assert bias.stride(-1) == 1
    assert not any(step % bound.BIAS_ALIGNMENT for step in bias.stride()[:-1])


def test_one_input_alone_may_need_a_gradient():
    mask = Mask.lengths(torch.tensor([3, 0]))
    for wanted in range(3):
        tokens = [x.detach().requires_grad_(place == wanted) for place, x in enumerate(padded_tokens())]
        found, right = (
            torch.autograd.grad(regard.attend(*tokens, mask=mask, backend=backend).square().sum(), tokens[wanted])[0]
            for backend in ("torch", "reference")
        )
        assert torch.allclose(found, right, atol=1e-5)


@pytest.mark.skipif(ON_GPU, reason="torch's own kernels give NaN there")
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_real_tokens_beside_padding_may_be_infinite(number, which, needs_grad):
    query, key, value = (x.detach() for x in padded_tokens())
    query.abs_()
    (key if which == "key" else value)[0, 0, 1] = number
    tokens = [x.requires_grad_(needs_grad) for x in (query, key, value)]
    mask = Mask.lengths(torch.tensor([5, 2]))
    found, right = (regard.attend(*tokens, mask=mask, backend=backend) for backend in ("torch", "reference"))
    assert torch.allclose(found, right, atol=1e-5, equal_nan=True)


# --- Gaussian scores -------------------------------------------------------------------------------------------


def gaussian_tokens(extent=1.0, dtype=torch.float32):
    return [extent * torch.randn(2, n, 8, dtype=dtype, device="cpu") for n in (20, 30)] + [
        torch.randn(2, 30, 5).to(dtype)
    ]


@pytest.mark.cpu
@pytest.mark.parametrize("extent", [0.5, 3.0])
def test_gaussian_score_is_a_dot_product_unless_the_tokens_extend_too_far(extent):
    tokens = gaussian_tokens(extent)
    with dispatch_log() as ran:
        found = regard.attend(*tokens, "gaussian")
    exact = regard.attend(*(x.double() for x in tokens), "gaussian", backend="reference")
    reference = regard.attend(*tokens, "gaussian", backend="reference")
    bounds.assert_as_good(found, reference, exact)
    assert ran == (["torch"] if extent < 1 else ["reference"])


@pytest.mark.cpu
def test_why_names_the_reason_and_the_error_of_a_gaussian_score():
    near, far = (regard.why(*gaussian_tokens(extent), "gaussian") for extent in (0.5, 30.0))
    assert near.backend == "torch"
    assert near.bound.startswith("a few roundings of float32 of the largest term of the dot product, ")
    assert "would be rounded too much" in far.refusals["torch"]


@pytest.mark.cpu
@pytest.mark.parametrize(
    "mask", [None, Mask.causal(align="top_left"), Mask.lengths(torch.tensor([30, 7], device="cpu"))]
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("score", [regard.scores.Gaussian(1.3), regard.scores.Gaussian(1.3, learnable=True)])
def test_gradients_of_a_gaussian_score_are_those_of_the_reference(score, bias, mask):
    tokens = [x.requires_grad_() for x in gaussian_tokens(0.5, torch.float64)]
    given = torch.randn(2, 1, 30, dtype=torch.float64, device="cpu") if bias else None
    leaves = [*tokens, *score.double().parameters()]

    def gradients(backend):
        output = regard.attend(*tokens, score, mask, bias=given, backend=backend)
        return [output, *torch.autograd.grad(output.sin().sum(), leaves)]

    for found, exact in zip(gradients("torch"), gradients("reference"), strict=True):
        torch.testing.assert_close(found, exact)


def test_gaussian_score_is_refused_where_the_norms_of_tokens_cannot_be_read():
    tokens = [torch.empty(2, n, 8, device="meta") for n in (20, 30, 30)]
    with refuses("backend", "torch refuses", "norms of tokens"):
        regard.attend(*tokens, "gaussian", backend="torch")


@pytest.mark.cpu
def test_padding_does_not_count_for_the_extent_of_a_gaussian_score():
    query, key, value = gaussian_tokens(0.5)
    key[1, 7:] = 1e30
    mask = Mask.lengths(torch.tensor([30, 7], device="cpu"))
    assert regard.why(query, key, value, "gaussian", mask).backend == "torch"
    assert regard.attend(query, key, value, "gaussian", mask).isfinite().all()


@pytest.mark.cpu
def test_nan_and_infinity_do_not_become_dot_products():
    for wild in (torch.nan, torch.inf, 1e30):
        query, key, value = gaussian_tokens(0.5)
        query[0, 0, 0] = wild
        assert regard.why(query, key, value, "gaussian").backend != "torch"
