"""Padded batches whose padding is not read: by variable-length kernels on a GPU, example by example on a CPU.

The kernels run on a GPU only (REGARD_TEST_DEVICE=cuda). Elsewhere stand-ins compute what the kernels promise and no
more: they return NaN where a kernel writes nothing.
"""

import gc
import inspect
import math
import os
from itertools import pairwise
from unittest import mock

import pytest
import torch
from tests import bounds
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

import regard
from regard import Mask
from regard.backends import sdpa, varlen
from regard.backends.base import Problem
from regard.backends.dispatch import BACKENDS
from regard.checks import FLOATS, needs_grad
from regard.masks.bound import And, Band, Lengths
from regard.scores.dot import DotPair
from regard.testing import limits

ON_GPU = os.environ.get("REGARD_TEST_DEVICE") == "cuda"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="no GPU: torch's own kernels were NOT tried")
needs_cpu = pytest.mark.skipif(ON_GPU, reason="tensors of this run are on a GPU")

SCORE = regard.scores.ScaledDot(0.4)


def with_gradients(output, tokens):
    cotangent = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad(output, tokens, cotangent)]


def without_gradients(tokens):
    return [x.detach() for x in tokens]


def attend(tokens, mask, backend="torch", score=SCORE, **options):
    return regard.attend(*tokens, score, mask, backend=backend, **options)


def plan(tokens, mask, **options):
    """The plan of the torch backend for a user's mask."""
    query, key, value = tokens
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in tokens))
    bound = mask.place(batch=tuple(batch), queries=query.shape[-2], keys=key.shape[-2], device=query.device)
    return BACKENDS["torch"].plan(Problem(DotPair(query, key, SCORE.scale), value, bound, **options), "output")


def masked(tokens, mask, score=SCORE):
    """By torch's call with a mask, over zeroed padding."""
    with mock.patch.object(varlen, "choose_run", return_value=None):
        return attend(tokens, mask, score=score)


def assert_as_good(found, judges, exact, what):
    """Within the band of the backends around the worst of these errors."""
    own = max(bounds.error(judge, exact) for judge in judges)
    bounds.assert_close(found, exact, bounds.band(exact, own, found.dtype), what)


def assert_like_the_reference(found, tokens, mask):
    """Judge an output, and every gradient if the tokens need one, against the reference in float64."""
    differentiated = needs_grad(*tokens)
    wide = [x.detach().double().requires_grad_(differentiated) for x in tokens]
    results = [found, attend(tokens, mask, "reference"), masked(tokens, mask), attend(wide, mask, "reference")]
    if differentiated:
        leaves = [tokens, tokens, tokens, wide]
        results = [with_gradients(output, given) for output, given in zip(results, leaves, strict=True)]
    else:
        results = [[output] for output in results]
    names = ("output", "query", "key", "value")[: len(results[0])]
    for what, result, *judges, exact in zip(names, *results, strict=True):
        assert_as_good(result, judges, exact, what)


# --- Stand-ins for the kernels -----------------------------------------------------------------------------------


def attention_of_segments(tokens, edges, sizes, used, causal, scale, *, writes_empty_queries):
    """Attention within each segment of a packed sequence (tokens, heads, dim).

    edges: where the segments of queries and of keys begin. sizes: the largest segments. used: how many keys of each
    segment are real, or None for all. The gradient of keys that belong to no segment is not written, nor that of
    queries without keys unless writes_empty_queries.
    """
    query, key, value = (x.view_as(x) for x in tokens)  # the hooks below see gradients where they leave the kernel
    for x in (query, key, value):
        assert x.stride(-1) == 1
        assert x.data_ptr() % 16 == 0
        assert not any(step * x.element_size() % 16 for step in x.stride()[:-1])
    for edge, count, size in zip(edges, (len(query), len(key)), sizes, strict=True):
        assert edge.dtype == torch.int32
        assert edge[0] == 0
        assert edge[-1] == count
        assert edge.diff().min() >= 0
        assert edge.diff().max() <= size
    output = torch.full_like(query, math.nan)
    query_is_empty, key_is_unused = (torch.ones(len(x), dtype=torch.bool, device=x.device) for x in (query, key))
    ends = zip(*(pairwise(edge.tolist()) for edge in edges), strict=True)
    for segment, ((first, last), (begin, end)) in enumerate(ends):
        if used is not None:
            real = int(used[segment])
            assert 0 <= real <= end - begin
            end = begin + real
        query_is_empty[first:last] = begin == end
        key_is_unused[begin:end] = False
        q, k, v = (x.transpose(0, 1).float() for x in (query[first:last], key[begin:end], value[begin:end]))
        scores = scale * (q @ k.mT)
        if causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        output[first:last] = (scores.softmax(-1) @ v).transpose(0, 1).to(output.dtype)
    unwritten = [(key, key_is_unused), (value, key_is_unused)]
    for x, rows in unwritten if writes_empty_queries else [(query, query_is_empty), *unwritten]:
        if needs_grad(x):
            x.register_hook(lambda grad, rows=rows: grad.masked_fill(rows[:, None, None], math.nan))
    return output


def efficient(
    query,
    key,
    value,
    bias,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p,
    custom_mask_type,
    compute_log_sumexp,
    *,
    scale,
    seqlen_k,
):
    """torch.ops.aten._efficient_attention_forward for tokens (1, tokens, heads, dim)."""
    assert bias is None
    assert dropout_p == 0
    assert custom_mask_type in (0, 1)  # none, or causal counted from the first key
    assert compute_log_sumexp == needs_grad(query, key, value)
    assert seqlen_k is None or not compute_log_sumexp  # the backward pass is not given it
    tokens, edges = [x.squeeze(0) for x in (query, key, value)], (cu_seqlens_q, cu_seqlens_k)
    sizes, causal = (max_seqlen_q, max_seqlen_k), bool(custom_mask_type)
    output = attention_of_segments(tokens, edges, sizes, seqlen_k, causal, scale, writes_empty_queries=False)
    return output[None], None, None, None, max_seqlen_q, max_seqlen_k


def varlen_attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale):
    """torch.nn.attention.varlen.varlen_attn for tokens (tokens, heads, dim), which is not causal by default."""
    assert query.dtype in varlen.HALF_DTYPES
    tokens, edges, sizes = (query, key, value), (cu_seq_q, cu_seq_k), (max_q, max_k)
    return attention_of_segments(tokens, edges, sizes, None, False, scale, writes_empty_queries=True)


STAND_INS = {"EFFICIENT_ATTENTION": efficient, "varlen_attn": varlen_attention}


@pytest.fixture
def kernels(monkeypatch, set_limits):
    """The names of the kernels that ran: torch's own on a GPU, the stand-ins elsewhere."""
    ran = []

    def recorded(name, kernel):
        return lambda *inputs, **options: ran.append(name) or kernel(*inputs, **options)

    for name, stand_in in STAND_INS.items():
        monkeypatch.setattr(varlen, name, recorded(name, getattr(varlen, name) if ON_GPU else stand_in))
    set_limits(varlen_pairs=0)
    if not ON_GPU:
        monkeypatch.setattr(varlen, "DEVICE", "cpu")
        monkeypatch.setattr(varlen, "_has_kernels", lambda device: True)
    return ran


def test_stand_in_has_the_parameters_of_varlen_attn():
    real = inspect.signature(varlen_attn).parameters
    for name, parameter in inspect.signature(varlen_attention).parameters.items():
        assert real[name].kind == parameter.kind
    positional = list(inspect.signature(varlen_attention).parameters)[:-1]
    assert positional == list(real)[: len(positional)]
    assert all(parameter.default is not parameter.empty for name, parameter in real.items() if name not in positional)
    assert real["window_size"].default == (-1, -1)


def test_stand_in_has_the_parameters_of_efficient_attention():
    arguments = torch.ops.aten._efficient_attention_forward.default._schema.arguments
    real = {argument.name: argument for argument in arguments}
    ours = inspect.signature(efficient).parameters
    positional = [name for name, parameter in ours.items() if parameter.kind == parameter.POSITIONAL_OR_KEYWORD]
    assert positional == list(real)[: len(positional)]
    for name, parameter in ours.items():
        assert real[name].kwarg_only == (parameter.kind == parameter.KEYWORD_ONLY)


# --- The kernels -------------------------------------------------------------------------------------------------


def separate_heads(batch, heads, tokens, dim):
    return torch.randn(batch, heads, tokens, dim)


def adjacent_heads(batch, heads, tokens, dim):
    return torch.randn(batch, tokens, heads, dim).transpose(1, 2)


def packed_projections(batch, heads, tokens, dim):
    """The second of three projections that one matrix computed."""
    return torch.randn(batch, tokens, 3, heads, dim)[:, :, 1].transpose(1, 2)


LAYOUTS = [separate_heads, adjacent_heads, packed_projections]
LENGTHS = {
    "some": [3, 11, 7],
    "empty examples": [0, 11, 0],
    "beyond the ends": [-5, 2**62, 5],
    "one for all": [6],
    "no keys": [0],
}


def drawn(make=separate_heads, queries=11, keys=11, dtype=torch.float32, dim=8, batch=3):
    tokens = [make(batch, 2, count, dim).to(dtype) for count in (queries, keys, keys)]
    return [x.requires_grad_() for x in tokens]


def mask_of(lengths, causal=False):
    mask = Mask.lengths(torch.tensor(lengths))
    return mask & Mask.causal(align="top_left") if causal else mask


def kernel_for(dtype, causal):
    return "varlen_attn" if dtype in varlen.HALF_DTYPES and not causal else "EFFICIENT_ATTENTION"


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [11, 5, 13])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_output_and_gradients_equal_the_reference(make, lengths, causal, queries, dtype, kernels):
    tokens, mask = drawn(make, queries, dtype=dtype), mask_of(LENGTHS[lengths], causal)
    found = attend(tokens, mask)
    assert kernels == [kernel_for(dtype, causal)]
    assert_like_the_reference(found, tokens, mask)
    assert len(kernels) == 1


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_output_without_gradients_equals_the_reference(make, lengths, causal, dtype, kernels):
    tokens, mask = drawn(make, dtype=dtype), mask_of(LENGTHS[lengths], causal)
    with torch.no_grad():
        assert_like_the_reference(attend(tokens, mask), tokens, mask)
    assert kernels == [kernel_for(dtype, causal)]


@pytest.mark.parametrize("wanted", ["query", "key", "value"])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_one_input_alone_may_need_a_gradient(wanted, dtype, kernels):
    names, mask = ("query", "key", "value"), mask_of([3, 0, 7])
    tokens = drawn(dtype=dtype)
    expected = dict(zip(names, with_gradients(attend(tokens, mask), tokens)[1:], strict=True))
    tokens = [x.detach().requires_grad_(name == wanted) for name, x in zip(names, tokens, strict=True)]
    leaf = tokens[names.index(wanted)]
    assert torch.equal(with_gradients(attend(tokens, mask), [leaf])[1], expected[wanted])
    assert len(kernels) == 2


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_tokens_are_not_copied(make, batch, dtype, kernels, monkeypatch):
    tokens, received = without_gradients(drawn(make, batch=batch, dtype=dtype)), []
    kernel = kernel_for(dtype, causal=False)
    run = getattr(varlen, kernel)
    monkeypatch.setattr(varlen, kernel, lambda *inputs, **how: received.extend(inputs[:6]) or run(*inputs, **how))
    attend(tokens, mask_of([7]))
    assert [x.data_ptr() for x in received[:3]] == [x.data_ptr() for x in tokens]
    assert kernels == [kernel]
    # Heads that are apart in memory are parts of their own; in half precision padding is a segment of its own.
    parts = batch * (2 if make is separate_heads and batch > 1 else 1)
    edges = received[3] if kernel == "varlen_attn" else received[4]
    assert len(edges) == parts * (2 if kernel == "varlen_attn" else 1) + 1


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_kernels_do_not_read_padding(make, causal, dtype, gradient, garbage, kernels):
    lengths = torch.tensor([4, 11, 0])
    padding = (torch.arange(11) >= lengths[:, None])[:, None, :, None]
    clean = drawn(make, dtype=dtype)
    dirty = [x.detach().clone(memory_format=torch.preserve_format) for x in clean]
    for x in dirty[1:]:
        x.masked_fill_(padding, garbage)
    results, mask = [], mask_of([4, 11, 0], causal)
    for tokens in (clean, [x.requires_grad_() for x in dirty]):
        with torch.set_grad_enabled(gradient):
            output = attend(tokens, mask)
        results.append(with_gradients(output, tokens) if gradient else [output])
    assert len(kernels) == 2
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found, expected)
        assert not found[2].any()
    for grad in results[1][2:]:
        assert not grad.masked_select(padding).any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
@pytest.mark.parametrize("gradient", [False, True])
def test_nan_queries_of_an_empty_example_give_0(causal, dtype, gradient, kernels):
    tokens = without_gradients(drawn(dtype=dtype))
    tokens[0][1] = math.nan
    tokens = [x.requires_grad_(gradient) for x in tokens]
    output = attend(tokens, mask_of([4, 0, 11], causal))
    results = with_gradients(output, tokens) if gradient else [output]
    assert len(kernels) == 1
    for result in results:
        assert not result[1].any()
        assert result.isfinite().all()


def test_lengths_may_change_before_the_backward_pass(kernels):
    tokens, lengths = drawn(), torch.tensor([0, 4, 11])
    output = attend(tokens, Mask.lengths(lengths))
    expected = with_gradients(attend(tokens, mask_of([0, 4, 11])), tokens)
    lengths.fill_(3)
    for found, same in zip(with_gradients(output, tokens), expected, strict=True):
        assert torch.equal(found, same)
    assert len(kernels) == 2


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
    ],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_lengths_of_any_integer_dtype(dtype, gradient, kernels):
    """There are more keys than a small dtype can count."""
    tokens, lengths = drawn(keys=300), torch.tensor([100, 1, 0], dtype=dtype)
    with torch.set_grad_enabled(gradient):
        assert torch.equal(attend(tokens, Mask.lengths(lengths)), attend(tokens, Mask.lengths(lengths.long())))
    assert len(kernels) == 2


# --- What is cached ----------------------------------------------------------------------------------------------


@pytest.fixture
def segmentations(monkeypatch):
    """The layout of every computation of segments."""
    computed, compute = [], varlen._segments
    monkeypatch.setattr(
        varlen, "_segments", lambda layout, *inputs: computed.append(layout) or compute(layout, *inputs)
    )
    return computed


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_segments_are_computed_once_for_a_mask_and_its_sizes(gradient, causal, kernels, segmentations):
    mask, tokens, fewer = mask_of([1, 4, 11], causal), drawn(), drawn(queries=5)
    with torch.set_grad_enabled(gradient):
        first, second = attend(tokens, mask), attend(tokens, mask)
        assert torch.equal(first, second)
        assert len(segmentations) == 1
        attend(fewer, mask)
        attend(fewer, mask)
        assert len(segmentations) == 2
        attend(tokens, mask_of([1, 4, 11], causal))
        assert len(segmentations) == 3
    assert len(kernels) == 5


@pytest.mark.usefixtures("kernels")
def test_segments_are_cached_in_the_bound_lengths():
    """Segments for each size, and with a gradient also which examples are empty."""
    lengths = Lengths(torch.tensor([1, 4, 11]).view(-1, 1, 1, 1))
    for tokens, cached in ((drawn(), 2), (drawn(), 2), (drawn(queries=5), 3), (without_gradients(drawn()), 4)):
        query, key, value = tokens
        for mask in (lengths, And(Band(None, 0), lengths)):
            problem = Problem(DotPair(query, key, 0.4), value, mask)
            varlen.choose_run(problem, None)(problem)
            assert len(lengths.cache) == cached


@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_segments_computed_in_inference_mode_serve_a_later_backward_pass(dtype, kernels, segmentations):
    tokens, mask = drawn(dtype=dtype), mask_of([3, 0, 7])
    with torch.inference_mode():
        attend(tokens, mask)
    found = with_gradients(attend(tokens, mask), tokens)
    # In half precision the segments are the same with and without a gradient.
    assert len(segmentations) == (1 if dtype in varlen.HALF_DTYPES else 2)
    for result, expected in zip(found, with_gradients(attend(tokens, mask_of([3, 0, 7])), tokens), strict=True):
        assert torch.equal(result, expected)
    assert len(kernels) == 3


@needs_gpu
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("pairs", [0, 2**30], ids=["kernels", "mask"])
@pytest.mark.parametrize("made", ["before", "before and used", "inside"])
def test_replayed_graph_reads_its_mask(gradient, pairs, made, kernels, set_limits):
    """A mask that is made during the capture is made anew at each replay, from the lengths of that moment.

    A mask that was made before must live as long as the graph, but nothing that was computed from it must.
    """
    set_limits(varlen_pairs=pairs)
    tokens, lengths = drawn(), torch.tensor([1, 4, 11])
    before = Mask.lengths(lengths)

    def call(mask):
        # Gradients of leaves that were used before the capture would go to the stream of that time.
        inputs = [x.detach().requires_grad_(gradient) for x in tokens]
        output = attend(inputs, Mask.lengths(lengths) if mask is None else mask)
        return with_gradients(output, inputs) if gradient else [output]

    with torch.set_grad_enabled(gradient):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call(before if made == "before and used" else None)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call(None if made == "inside" else before)
        assert bool(kernels) == (pairs == 0)
        before._bound.clear()
        gc.collect()
        torch.cuda.synchronize()
        overwritten = [torch.full((size,), 2**30, dtype=torch.int32) for size in range(1, 200) for _ in range(4)]
        lengths.copy_(torch.tensor([11, 0, 3] if made == "inside" else [1, 4, 11]))
        graph.replay()
        torch.cuda.synchronize()
        for found, expected in zip(captured, call(None), strict=True):
            assert torch.equal(found, expected)
        assert overwritten


# --- Which calls reach the kernels -------------------------------------------------------------------------------

PADDED = {
    "lengths": lambda: Mask.lengths(torch.tensor([3, 11, 0])),
    "causal": lambda: Mask.lengths(torch.tensor([3, 11, 0])) & Mask.causal(),
    "causal first": lambda: Mask.causal() & Mask.lengths(torch.tensor([3, 11, 0])),
}


@pytest.mark.parametrize("mask", PADDED)
@pytest.mark.parametrize("score", ["scaled_dot", regard.scores.ScaledDot(0.3), "cosine", regard.scores.Dot()], ids=str)
def test_attend_uses_the_kernels_for_every_dot_product(mask, score, kernels):
    tokens, mask = drawn(), PADDED[mask]()
    wide = [x.detach().double().requires_grad_() for x in tokens]
    with limits(mask_entries=0):  # so that no mask over queries and keys may be made
        found = with_gradients(attend(tokens, mask, "auto", score), tokens)
        assert regard.why(*tokens, score, mask).backend == "torch"
    assert kernels == ["EFFICIENT_ATTENTION"]
    reference = with_gradients(attend(tokens, mask, "reference", score), tokens)
    # torch's own kernels round more than the reference, so its call with a mask is a second judge of them.
    other = with_gradients(masked(tokens, mask, score), tokens) if ON_GPU else reference
    exact = with_gradients(attend(wide, mask, "reference", score), wide)
    names = ("output", "query", "key", "value")
    for what, result, *judges, expected in zip(names, found, reference, other, exact, strict=True):
        assert_as_good(result, judges, expected, what)


@pytest.mark.parametrize("mask", PADDED)
def test_layer_uses_the_kernels(mask, kernels):
    layer, tokens, mask = regard.MultiHeadAttention(16, 2), torch.randn(3, 11, 16), PADDED[mask]()
    found = with_gradients(layer(tokens, mask=mask), list(layer.parameters()))
    assert kernels == ["EFFICIENT_ATTENTION"]
    matrix = Mask.keep(mask.to_sdpa((3, 2), 11, 11))
    expected = with_gradients(layer(tokens, mask=matrix), list(layer.parameters()))
    assert kernels == ["EFFICIENT_ATTENTION"]
    for result, same in zip(found, expected, strict=True):
        torch.testing.assert_close(result, same)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("causal", [False, True])
def test_plan_says_that_padding_is_not_read(causal):
    tokens = drawn()
    found = plan(tokens, mask_of([3, 11, 7], causal))
    assert found.backend == "torch"
    assert not found.reads_padding
    assert plan(tokens, Mask.keys(torch.ones(3, 11, dtype=torch.bool))).reads_padding
    why = regard.why(*tokens, SCORE, mask_of([3, 11, 7], causal))
    assert why.backend == "torch"
    assert set(why.refusals) == {"reference", "blocked", "triton"}


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.1},
        {"bias": torch.zeros(11)},
        {"score": regard.scores.ScaledDot(softcap=3.0)},
        {"score": regard.scores.ScaledDot(sink=2)},
        {"score": regard.scores.ScaledDot(0.0)},
        {"score": regard.scores.ScaledDot(-0.4)},
        {"score": "laplacian"},
        {"mask": None},
        {"mask": Mask.causal()},
    ],
    ids=["dropout", "bias", "softcap", "sink", "scale 0", "negative scale", "distance", "no mask", "causal only"],
)
def test_other_options_do_not_use_the_kernels(options, kernels):
    tokens = drawn()
    options = {"mask": mask_of([3, 11, 7]), **options}
    regard.attend(*tokens, **options)
    assert kernels == []


def test_inspect_does_not_use_the_kernels(kernels):
    assert regard.inspect(*drawn(), mask=mask_of([3, 11, 7])).weights().shape == (3, 2, 11, 11)
    assert kernels == []


def stored(*sizes, count=3):
    return [torch.randn(*sizes) for _ in range(count)]


UNFIT = {
    "float64": lambda: (drawn(dtype=torch.float64), None),
    "rows of 24 bytes": lambda: (drawn(dim=6), None),
    "rows of 8 bytes": lambda: (drawn(dim=4, dtype=torch.float16), None),
    "6 of 8 entries": lambda: ([x[..., :6].transpose(1, 2) for x in stored(3, 11, 2, 8)], None),
    "12 of 16 entries": lambda: ([x[..., :12] for x in drawn(dim=16, dtype=torch.bfloat16)], None),
    "rows apart by 36 bytes": lambda: ([x[..., :8] for x in stored(3, 2, 11, 9)], None),
    "rows apart by 18 bytes": lambda: ([x.half()[..., :8] for x in stored(3, 2, 11, 9)], None),
    "three axes": lambda: ([x[:, 0] for x in drawn()], None),
    "five axes": lambda: ([x[:, :, None] for x in drawn()], None),
    "values of another size": lambda: ([*drawn()[:2], drawn(dim=4)[2]], None),
    "keys shared by heads": lambda: ([x if at == 0 else x[:, :1] for at, x in enumerate(drawn())], None),
    "keys shared by examples": lambda: ([x if at == 0 else x[:1] for at, x in enumerate(drawn())], None),
    "keys expanded over examples": lambda: ([drawn()[0], *(x[:1].expand(3, -1, -1, -1) for x in drawn()[1:])], None),
    "no queries": lambda: (drawn(queries=0), None),
    "no keys": lambda: (drawn(keys=0), None),
    "columns adjacent": lambda: ([x.mT for x in stored(3, 2, 8, 11)], None),
    "gaps between examples": lambda: ([x[:, :2] for x in stored(3, 3, 11, 8)], None),
    "mixed layouts": lambda: ([drawn()[0], *drawn(adjacent_heads)[1:]], None),
    "unaligned": lambda: ([x[1:].view(3, 2, 11, 8) for x in stored(3 * 2 * 11 * 8 + 1)], None),
    "unaligned value": lambda: ([*drawn()[:2], stored(3 * 2 * 11 * 8 + 1)[0][1:].view(3, 2, 11, 8)], None),
    "lengths for each head": lambda: (drawn(), Mask.lengths(torch.tensor([[3, 4], [11, 1], [7, 2]]))),
    "lengths for each query": lambda: (drawn(), Mask.lengths_per_query(torch.arange(33).view(3, 11) % 12)),
    "keys": lambda: (drawn(), Mask.keys(torch.arange(33).view(3, 11) % 3 > 0)),
    "matrix": lambda: (drawn(), Mask.keep(torch.arange(363).view(3, 1, 11, 11) % 5 > 0)),
    "window": lambda: (drawn(), mask_of([3, 11, 7]) & Mask.window(2, 0)),
    "causal from the last key": lambda: (drawn(queries=9), mask_of([3, 11, 7]) & Mask.causal(align="lower_right")),
    "either": lambda: (drawn(), mask_of([3, 11, 7]) | Mask.causal()),
    "negation": lambda: (drawn(), ~mask_of([3, 11, 7])),
    "two lengths": lambda: (drawn(), mask_of([3, 11, 7]) & mask_of([5])),
}


@pytest.mark.parametrize("name", UNFIT)
def test_calls_that_the_kernels_do_not_take_equal_the_reference(name, kernels):
    tokens, mask = UNFIT[name]()
    mask = mask_of([3, 11, 7]) if mask is None else mask
    exact = attend([x.detach().double() for x in tokens], mask, "reference")
    bounds.assert_as_good(attend(tokens, mask, "auto"), attend(tokens, mask, "reference"), exact)
    assert kernels == []


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("dtype", "causal", "gradient", "largest"),
    [
        (torch.float32, False, True, 256),
        (torch.float32, True, False, 256),
        (torch.float16, False, False, 256),
        (torch.float16, False, True, 192),
        (torch.bfloat16, False, True, 192),
        (torch.float16, True, True, 256),
    ],
)
def test_largest_heads(dtype, causal, gradient, largest):
    for dim, fits in ((largest, True), (largest + 8, False)):
        with torch.set_grad_enabled(gradient):
            assert plan(drawn(dim=dim, dtype=dtype), mask_of([3, 11, 7], causal)).reads_padding != fits


@pytest.mark.usefixtures("kernels")
def test_packed_batches_beyond_the_limits_of_the_kernels_use_a_mask(monkeypatch):
    tokens, mask = drawn(queries=7), mask_of([3, 11, 7])
    parts = 3 * 2
    assert not plan(tokens, mask).reads_padding
    for limit, needed in (("MAX_TOKENS", parts * 11), ("MAX_SEGMENTS", 2 * parts + 1)):
        for allowed in (needed - 2, needed):
            with monkeypatch.context() as changed:
                changed.setattr(varlen, limit, allowed)
                assert plan(tokens, mask).reads_padding == (allowed < needed)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_small_calls_use_a_mask(gradient, backend, dtype, kernels, monkeypatch):
    tokens, pairs = [x.detach().requires_grad_(gradient) for x in drawn(queries=7, dtype=dtype)], 3 * 2 * 7 * 11
    for least, taken in ((pairs, True), (pairs + 1, False)):
        threshold = (2**30, least) if gradient else (least, 2**30)
        monkeypatch.setitem(varlen.MIN_PAIRS, dtype, threshold)
        attend(tokens, mask_of([3, 0, 7]), backend)
        assert bool(kernels) == taken
        kernels.clear()
    attend(tokens, mask_of([3, 0, 7], causal=True), backend)  # its mask would have an entry for each pair
    assert kernels == ["EFFICIENT_ATTENTION"]


class Subclass(torch.Tensor):
    """A tensor whose class may intercept operations."""


INTERCEPTED = {
    "vmap": lambda call, tokens: torch.vmap(call)(*(x[None] for x in tokens))[0],
    "functionalize": lambda call, tokens: torch.func.functionalize(call)(*tokens),
    "dispatch mode": lambda call, tokens: make_fx(call)(*tokens)(*tokens),
    "compile": lambda call, tokens: torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)(*tokens),
    "subclass": lambda call, tokens: call(*tokens[:2], tokens[2].as_subclass(Subclass)).as_subclass(torch.Tensor),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch on vmap of its own attention
@pytest.mark.parametrize("how", INTERCEPTED)
@pytest.mark.parametrize("causal", [False, True])
def test_intercepted_calls_do_not_use_the_kernels(how, causal, kernels):
    tokens, mask = without_gradients(drawn()), mask_of([3, 0, 7], causal)
    expected = attend(tokens, mask, "reference")
    found = INTERCEPTED[how](lambda *tokens: attend(tokens, mask, "auto"), tokens)
    torch.testing.assert_close(found, expected)
    assert kernels == []
    torch.testing.assert_close(attend(tokens, mask), expected)
    assert kernels == ["EFFICIENT_ATTENTION"]


def test_gradients_of_torch_func_do_not_use_the_kernels(kernels):
    (query, key, value), mask = without_gradients(drawn()), mask_of([3, 0, 7])
    found, expected = (
        torch.func.grad(lambda query, name=name: attend((query, key, value), mask, name).square().sum())(query)
        for name in ("torch", "reference")
    )
    torch.testing.assert_close(found, expected)
    assert kernels == []


@pytest.mark.parametrize("place", range(3))
def test_subclasses_do_not_use_the_kernels(place, kernels):
    tokens = without_gradients(drawn())
    tokens[place] = tokens[place].as_subclass(Subclass)
    attend(tokens, mask_of([3, 0, 7]))
    assert kernels == []


@pytest.mark.parametrize("allowed", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION])
def test_kernels_that_are_switched_off_are_not_used(allowed, kernels):
    with sdpa_kernel([SDPBackend.MATH, allowed]):
        attend(drawn(), mask_of([3, 11, 7]))
    assert kernels == []
    attend(drawn(), mask_of([3, 11, 7]))
    assert kernels == ["EFFICIENT_ATTENTION"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"capability": (8, 0)}, True),
        ({"capability": (7, 5)}, False),
        ({"built": False}, False),
        ({"hip": "6.4"}, False),
    ],
    ids=str,
)
def test_kernels_need_a_recent_gpu_and_a_build_with_them(changes, expected, monkeypatch):
    found = {"capability": (9, 0), "built": True, "hip": None} | changes
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found["capability"])
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: found["built"])
    monkeypatch.setattr(torch.version, "hip", found["hip"])
    varlen._has_kernels.cache_clear()
    assert varlen._has_kernels(torch.device("cuda")) == expected
    varlen._has_kernels.cache_clear()


@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_without_the_memory_efficient_operator_a_mask_is_made(dtype, kernels, monkeypatch):
    monkeypatch.setattr(varlen, "EFFICIENT_ATTENTION", None)
    with torch.no_grad():
        regard.attend(*drawn(dtype=dtype), SCORE, mask_of([3, 11, 7]), backend="torch")
    assert kernels == []


# --- Example by example on a CPU -----------------------------------------------------------------------------------

TOKENS = 17
REAL = torch.tensor([[True] * 3 + [False] * 14, [True] * TOKENS, [False] * 5 + [True] * 11 + [False]])
# A mask, the number of keys in each call of torch, and whether the calls are causal.
BY_EXAMPLE = {
    "lengths": (Mask.lengths(torch.tensor([3, 17, 11])), [3, 17, 11], False),
    "beyond the end": (Mask.lengths(torch.tensor([3, 2**62, 11])), [3, 17, 11], False),
    "equal": (Mask.lengths(torch.tensor([5, 5, 5])), [5], False),
    "some equal": (Mask.lengths(torch.tensor([5, 5, 9])), [5, 9], False),
    "equal but not adjacent": (Mask.lengths(torch.tensor([5, 9, 5])), [5, 9, 5], False),
    "one for all": (Mask.lengths(torch.tensor(5)), [5], False),
    "one for all with its axis": (Mask.lengths(torch.tensor([5])), [5], False),
    "all keys": (Mask.lengths(torch.tensor([17, 17, 17])), [17], False),
    "empty example": (Mask.lengths(torch.tensor([3, 0, 11])), [3, 11], False),
    "empty first and last": (Mask.lengths(torch.tensor([0, 11, -3])), [11], False),
    "causal": (Mask.lengths(torch.tensor([3, 17, 16])) & Mask.causal(), [3, 17, 16], True),
    "causal first": (Mask.causal() & Mask.lengths(torch.tensor([3, 0, 3])), [3, 3], True),
}
NOT_BY_EXAMPLE = {
    "padding on both sides": Mask.keys(REAL),
    "padding on both sides, causal": Mask.keys(REAL) & Mask.causal(),
    "padding at the end as booleans": Mask.keys(torch.arange(TOKENS) < torch.tensor([[3], [17], [11]])),
    "gaps": Mask.keys(torch.arange(TOKENS).repeat(3, 1) % 3 > 0),
    "lengths for each head": Mask.lengths(torch.tensor([[3, 4], [17, 1], [11, 2]])),
    "lengths for each query": Mask.lengths_per_query(torch.arange(3 * TOKENS).view(3, TOKENS) % 16 + 1),
    "window": Mask.lengths(torch.tensor([3, 17, 11])) & Mask.window(4, 0),
    "either": Mask.lengths(torch.tensor([3, 17, 11])) | Mask.causal(),
}


@pytest.fixture
def calls(monkeypatch, set_limits):
    """The number of keys of each call of torch, whether it has a mask, and whether it is causal."""
    seen, real = [], functional.scaled_dot_product_attention

    def recorded(query, key, value, mask, dropout, causal, **options):
        seen.append((key.shape[-2], mask is not None, causal))
        return real(query, key, value, mask, dropout, causal, **options)

    set_limits(example_pairs=0)
    monkeypatch.setattr(sdpa.functional, "scaled_dot_product_attention", recorded)
    monkeypatch.setattr(sdpa, "MIN_KEYS", 0)  # short calls would get a mask
    return seen


def examples(*batch, dtype=torch.float64, queries=TOKENS):
    counts = (queries, TOKENS, TOKENS)
    return [torch.randn(*batch, count, 4, dtype=dtype).requires_grad_() for count in counts]


def keys_of(calls):
    return [keys for keys, *_ in calls]


@needs_cpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BY_EXAMPLE)
def test_examples_equal_the_reference_with_gradients(name, dtype, calls):
    (mask, keys, causal), tokens = BY_EXAMPLE[name], examples(3, 2, dtype=dtype)
    found = attend(tokens, mask)
    assert calls == [(count, False, causal) for count in keys]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NOT_BY_EXAMPLE)
def test_other_masks_are_one_call_with_a_mask(name, dtype, calls):
    mask, tokens = NOT_BY_EXAMPLE[name], examples(3, 2, dtype=dtype)
    found = attend(tokens, mask)
    assert calls == [(TOKENS, True, False)]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [5, 23])
def test_examples_may_have_more_or_fewer_queries_than_keys(causal, queries, calls):
    tokens, mask = examples(3, 2, queries=queries), mask_of([3, 17, 0], causal)
    found = attend(tokens, mask)
    assert calls == [(3, False, causal), (17, False, causal)]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
@pytest.mark.parametrize("causal", [False, True])
def test_batch_of_empty_examples_has_gradient_0(causal, calls):
    tokens, mask = examples(3, 2), mask_of([0, 0, 0], causal)
    found = attend(tokens, mask)
    assert calls == [(TOKENS, True, False)]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
def test_batch_of_empty_examples_gives_0(calls):
    with torch.no_grad():
        assert not attend(examples(3, 2), mask_of([0, 0, 0])).any()
    assert calls == [(TOKENS, True, False)]


@needs_cpu
@pytest.mark.parametrize("batch", [(3,), (3, 2), (3, 2, 2), (3, 1, 2, 2)], ids=len)
@pytest.mark.parametrize("causal", [False, True])
def test_examples_have_any_number_of_batch_axes(batch, causal, calls):
    tokens, mask = examples(*batch, queries=5), mask_of([3, 0, 11], causal)
    found = attend(tokens, mask)
    assert keys_of(calls) == [3, 11]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("causal", [False, True])
def test_call_without_batch_axes_equals_the_reference(causal):
    tokens, mask = examples(), mask_of(5, causal)
    assert_like_the_reference(attend(tokens, mask), tokens, mask)


@needs_cpu
def test_heads_may_share_keys(calls):
    query, key, value = examples(3, 2, 2)
    tokens, mask = [query, *(x.detach()[:, :, :1].requires_grad_() for x in (key, value))], mask_of([3, 17, 11])
    found = attend(tokens, mask)
    assert keys_of(calls) == [3, 17, 11]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
@pytest.mark.parametrize("causal", [False, True])
def test_examples_that_share_keys_are_one_call_with_a_mask(causal, calls):
    query, key, value = examples(3, 2)
    tokens, mask = [query, *(x.detach()[:1].requires_grad_() for x in (key, value))], mask_of([3, 17, 11], causal)
    found = attend(tokens, mask)
    assert calls == [(TOKENS, True, False)]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
def test_shared_batch_axis_that_would_be_copied_is_refused_with_padding(set_limits):
    set_limits(example_pairs=0)
    query, key, value = examples(3, 2, 2)
    shared = [query, key[:, :1], value[:, :1]]
    assert regard.why(*shared).backend != "torch"
    assert regard.why(*shared, mask=mask_of([3, 17, 11])).backend != "torch"


@needs_cpu
@pytest.mark.parametrize("values", [3, 9])
def test_values_of_examples_may_have_another_size(values, calls):
    query, key, _ = examples(3, 2)
    tokens, mask = [query, key, torch.randn(3, 2, TOKENS, values).double().requires_grad_()], mask_of([3, 17, 0])
    found = attend(tokens, mask)
    assert keys_of(calls) == [3, 17]
    assert_like_the_reference(found, tokens, mask)


@needs_cpu
@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("garbage", [torch.inf, torch.nan, torch.finfo(torch.float32).max])
def test_examples_do_not_read_padding(adjacent, causal, gradient, garbage, calls):
    lengths = torch.tensor([3, 0, 11])
    padding = (torch.arange(TOKENS) >= lengths[:, None])[:, None, :, None]
    clean = examples(3, 2, dtype=torch.float32)
    if adjacent:
        clean = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in clean]
    dirty = [x.detach().clone(memory_format=torch.preserve_format) for x in clean]
    for x in dirty[1:]:
        x.masked_fill_(padding, garbage)
    results, mask = [], mask_of([3, 0, 11], causal)
    for tokens in (clean, [x.requires_grad_() for x in dirty]):
        with torch.set_grad_enabled(gradient):
            output = attend(tokens, mask)
        results.append(with_gradients(output, tokens) if gradient else [output])
    assert keys_of(calls) == [3, 11, 3, 11]
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found, expected)
        assert not found[1].any()
    for grad in results[1][2:]:
        assert not grad.masked_select(padding).any()


@needs_cpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_query_gives_nan_unless_its_example_is_empty(causal, dtype, set_limits):
    """torch's own kernel gives 0 if there are fewer than 16 keys."""
    set_limits(example_pairs=0)
    tokens = without_gradients(examples(3, 2, dtype=dtype))
    tokens[0][:2, :, 4, 0] = torch.nan
    tokens = [x.requires_grad_() for x in tokens]
    output, to_query, *_ = with_gradients(attend(tokens, mask_of([3, 0, 17], causal)), tokens)
    assert output[0, :, 4].isnan().all()
    assert not output[1].any()
    assert not to_query[1].any()
    assert output[0, :, :4].isfinite().all()
    assert output[0, :, 5:].isfinite().all()
    assert output[2].isfinite().all()


@needs_cpu
@pytest.mark.parametrize("lengths", [[3, 17, 11], [3, 0, 11], [5, 5, 5], [0, 0, 5]], ids=str)
@pytest.mark.parametrize("gradient", [False, True])
def test_heads_that_are_adjacent_in_memory_stay_adjacent(lengths, gradient, calls):
    """So that a layer joins them without a copy."""
    tokens = [adjacent_heads(3, 2, TOKENS, 4).requires_grad_(gradient) for _ in range(3)]
    output = attend(tokens, mask_of(lengths))
    assert keys_of(calls) == sorted({length for length in lengths if length}, key=lengths.index)
    assert output.transpose(1, 2).is_contiguous()


@needs_cpu
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_small_examples_are_one_call(gradient, causal, calls):
    tokens, mask, pairs = examples(3, 2, queries=13), mask_of([3, 0, 11], causal), 2 * 13 * TOKENS
    for least, expected in ((pairs, [3, 11]), (pairs + 1, [TOKENS])):
        limits = (2**30, least) if gradient else (least, 2**30)
        # Undone before the fixtures, one of which sets the same constant.
        with torch.set_grad_enabled(gradient), mock.patch.object(sdpa, "MIN_EXAMPLE_PAIRS", limits):
            attend(tokens, mask)
        assert keys_of(calls) == expected
        calls.clear()


@needs_cpu
def test_long_causal_padding_needs_no_matrix(set_limits):
    set_limits(example_pairs=0, mask_entries=3 * TOKENS**2 - 1)
    tokens, mask = examples(3, 2), mask_of([3, 17, 16], causal=True)
    assert regard.why(*tokens, mask=mask).backend == "torch"
    assert regard.why(*tokens, mask=NOT_BY_EXAMPLE["padding on both sides, causal"]).backend != "torch"
    set_limits(example_pairs=2**30)
    assert regard.why(*tokens, mask=mask).backend != "torch"


@needs_cpu
def test_plan_of_examples_says_that_padding_is_not_read(set_limits):
    set_limits(example_pairs=0)
    tokens = examples(3, 2)
    for mask, _, _ in BY_EXAMPLE.values():
        assert not plan(tokens, mask).reads_padding
    for mask in NOT_BY_EXAMPLE.values():
        assert plan(tokens, mask).reads_padding
    set_limits(example_pairs=2**30)
    assert plan(tokens, mask_of([3, 17, 11])).reads_padding


@needs_cpu
@pytest.mark.parametrize("mask", ["lengths", "causal", "empty example"])
@pytest.mark.parametrize("score", ["cosine", regard.scores.ScaledDot(0.3), regard.scores.Dot()], ids=str)
def test_examples_take_every_dot_product(mask, score, calls):
    tokens, (mask, keys, _) = examples(3, 2), BY_EXAMPLE[mask]
    output = regard.attend(*tokens, score, mask)
    assert keys_of(calls) == keys
    bounds.assert_same(output, regard.attend(*tokens, score, mask, backend="reference"))


@needs_cpu
@pytest.mark.parametrize(
    "options",
    [
        {"bias": torch.zeros(TOKENS).double()},
        {"score": regard.scores.ScaledDot(0.0)},
        {"score": regard.scores.ScaledDot(-0.4)},
    ],
    ids=["bias", "scale 0", "negative scale"],
)
def test_other_options_are_one_call_with_a_mask(options, calls):
    tokens, options = examples(3, 2), {"mask": mask_of([3, 0, 11]), **options}
    output = regard.attend(*tokens, **options, backend="torch")
    assert calls == [(TOKENS, True, False)]
    bounds.assert_same(output, regard.attend(*tokens, **options, backend="reference"))


@needs_cpu
def test_weights_of_examples_are_dropped(calls):
    """Each weight is 0 or twice as large, so the mean over many draws is the output without dropout."""
    tokens, mask = without_gradients(examples(3, 2)), mask_of([3, 0, 11])
    draws = torch.stack([attend(tokens, mask, dropout=0.5) for _ in range(400)])
    assert keys_of(calls) == [3, 11] * 400
    expected = attend(tokens, mask, "reference")
    assert not draws[:, 1].any()
    deviation = (draws.mean(0) - expected)[::2] / (draws.std(0)[::2] / math.sqrt(len(draws)))
    assert deviation.abs().max() < 6


@needs_cpu
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_many_weights_is_refused_with_padding(causal, set_limits):
    tokens, mask = examples(3, 2), mask_of([3, 0, 11], causal)
    set_limits(example_pairs=0, mask_entries=3 * 2 * TOKENS**2 - 1)
    assert regard.why(*tokens, dropout=0.1).backend != "torch"
    assert regard.why(*tokens, mask=mask, dropout=0.1).backend != "torch"


@needs_cpu
@pytest.mark.parametrize(
    "dtype",
    [
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
    ],
)
def test_lengths_of_examples_of_any_integer_dtype(dtype, calls):
    tokens, lengths = [torch.randn(3, 2, 300, 4) for _ in range(3)], torch.tensor([100, 1, 0], dtype=dtype)
    found = attend(tokens, Mask.lengths(lengths))
    assert keys_of(calls) == [100, 1]
    assert torch.equal(found, attend(tokens, Mask.lengths(lengths.long())))


@needs_cpu
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch on vmap of its own attention
@pytest.mark.parametrize("how", [name for name in INTERCEPTED if name != "dispatch mode"])
def test_intercepted_calls_are_one_call(how, calls):
    tokens, mask = without_gradients(examples(3, 2)), mask_of([3, 0, 11])
    expected = attend(tokens, mask)
    assert keys_of(calls) == [3, 11]
    calls.clear()
    found = INTERCEPTED[how](lambda *tokens: attend(tokens, mask, "auto"), tokens)
    assert keys_of(calls) == [TOKENS]
    torch.testing.assert_close(found, expected)
