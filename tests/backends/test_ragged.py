"""Padded batches by torch's kernels for sequences of different lengths: right, padding unread, or not at all.

The kernels run on a GPU alone (REGARD_TEST_DEVICE=cuda). Elsewhere stand-ins do what they promise, and no more: what a
kernel leaves unwritten, they leave NaN.
"""

import math
import os
from unittest import mock

import pytest
import torch
from tests.bounds import assert_close, band, error

import regard
from regard import Mask
from regard.backends import ragged
from regard.backends.choice import BACKENDS
from regard.backends.problem import Problem
from regard.masks import tensors
from regard.masks.placed import Band, Both, Dense, Either, Lengths
from regard.pooling import padding
from regard.scores.forms import DotForm

ON_GPU = os.environ.get("REGARD_TEST_DEVICE") == "cuda"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="no GPU: torch's own kernels were NOT tried")


def efficient(query, key, value, bias, starts, edges, queries, keys, dropout, causal, learns, *, scale, seqlen_k):
    """Pieces of a line, (1, tokens, heads, dim): those of queries against those of keys, or against some of their keys.

    No gradient is written for queries without keys, nor for keys that no piece holds.
    """
    assert bias is None
    assert dropout == 0
    assert learns == any(x.requires_grad and torch.is_grad_enabled() for x in (query, key, value))
    assert seqlen_k is None or not learns  # the backward pass would not know of it
    assert starts.dtype == edges.dtype == torch.int32
    query, key, value = (x.view_as(x) for x in (query, key, value))  # a kernel's gradients come before any hook's
    output = torch.full_like(query, math.nan)
    no_query, no_key = (torch.ones(x.shape[1], dtype=torch.bool, device=x.device) for x in (query, key))
    for piece, (first, last) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        begin, end = int(edges[piece]), int(edges[piece + 1])
        assert 0 <= last - first <= queries
        assert 0 <= end - begin <= keys
        end = end if seqlen_k is None else begin + int(seqlen_k[piece])
        no_query[first:last] = begin == end
        no_key[begin:end] = False
        q, k, v = (x[0, slice(*ends)].transpose(0, 1) for x, *ends in (
            (query, first, last), (key, begin, end), (value, begin, end)
        ))  # fmt: skip
        scores = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], device=q.device).triu(1).bool(), -math.inf)
        output[0, first:last] = (scores.softmax(-1) @ v).transpose(0, 1)
    for tensor, unwritten in ((query, no_query), (key, no_key), (value, no_key)):
        if learns and tensor.requires_grad:
            tensor.register_hook(lambda grad, where=unwritten: grad.masked_fill(where[:, None, None], math.nan))
    return output, None, None, None, queries, keys


def flash(query, key, value, starts, edges, queries, keys, dropout, causal, debug, *, scale, seqused_k):
    """The same over (tokens, heads, dim), which writes every gradient of queries."""
    assert not causal  # it would count from the last key
    assert not debug
    tokens = [x[None] for x in (query, key, value)]
    learns = any(x.requires_grad and torch.is_grad_enabled() for x in tokens)
    output = efficient(
        *tokens, None, starts, edges, queries, keys, dropout, 0, learns, scale=scale, seqlen_k=seqused_k
    )[0]
    if learns and tokens[0].requires_grad:
        tokens[0].register_hook(lambda grad: grad.nan_to_num(0.0))
    return output[0], None


@pytest.fixture(autouse=True)
def kernels(monkeypatch, set_limits):
    """The names of the kernels that ran: the real ones on a GPU, and else the stand-ins."""
    ran = []

    def watched(name, kernel):
        return lambda *inputs, **how: ran.append(name) or kernel(*inputs, **how)

    ours = {"EFFICIENT": efficient, "FLASH": flash}
    for name in ours:
        monkeypatch.setattr(ragged, name, watched(name, getattr(ragged, name) if ON_GPU else ours[name]))
    set_limits(varlen_pairs=0)
    if not ON_GPU:
        monkeypatch.setattr(ragged, "DEVICE", "cpu")
        monkeypatch.setattr(ragged, "_has_kernels", lambda device: True)
    return ran


def heads_apart(batch, heads, tokens, dim):
    return torch.randn(batch, heads, tokens, dim)


def heads_together(batch, heads, tokens, dim):
    return torch.randn(batch, tokens, heads, dim).transpose(1, 2)


def packed(batch, heads, tokens, dim):
    return torch.randn(batch, tokens, 3, heads, dim)[:, :, 1].transpose(1, 2)


LAYOUTS = [heads_apart, heads_together, packed]
LENGTHS = {"some": [3, 11, 7], "none": [0, 11, 0], "beyond": [-5, 2**62, 5], "one for all": [6], "nothing": [0]}
SCALE = 0.4


def drawn(make=heads_apart, queries=11, keys=11, dtype=torch.float32, dim=8, batch=3):
    tokens = [make(batch, 2, count, dim).to(dtype) for count in (queries, keys, keys)]
    return [x.requires_grad_() for x in tokens]


def mask_of(lengths, causal=False):
    mask = Lengths(torch.tensor(lengths).view(-1, 1, 1, 1))
    return Both(Band(None, 0), mask) if causal else mask


def pooled(tokens, mask):
    """By the kernels, which must take it."""
    line = ragged.line_of(*tokens, mask, SCALE)
    assert line is not None
    return line.pool()


def reference(tokens, mask):
    query, key, value = tokens
    return BACKENDS["reference"].run(Problem(DotForm(query, key, SCALE), value, mask))[0]


def masked(tokens, mask):
    """By torch's call with a mask, over blank padding."""
    query, key, value = tokens
    with mock.patch.object(ragged, "DEVICE", "nowhere"):
        return BACKENDS["torch"].run(Problem(DotForm(query, key, SCALE), value, mask))[0]


def assert_as_good(found, judges, exact, what="result"):
    """Within the band of the backends, the reference's error or that of torch's own call with a mask being its own."""
    own = max(error(judge, exact) for judge in judges)
    assert_close(found, exact, band(exact, own, found.dtype), what)


def with_gradients(output, tokens):
    along = torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype)
    return [output, *torch.autograd.grad(output, tokens, along)]


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [11, 5, 13])
@pytest.mark.parametrize("dtype", ragged.DTYPES)
def test_numbers_and_gradients_are_those_of_the_reference(make, lengths, causal, queries, dtype, kernels):
    tokens, mask = drawn(make, queries, 11, dtype), mask_of(LENGTHS[lengths], causal)
    wide = [x.detach().double().requires_grad_() for x in tokens]
    found = with_gradients(pooled(tokens, mask), tokens)
    assert kernels == ["FLASH" if dtype in ragged.HALVES and not causal else "EFFICIENT"]
    exact = with_gradients(reference(wide, mask), wide)
    judges = zip(*(with_gradients(way(tokens, mask), tokens) for way in (reference, masked)), strict=True)
    for what, *results in zip(("output", "query", "key", "value"), found, judges, exact, strict=True):
        assert_as_good(*results, what)


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ragged.DTYPES)
def test_without_gradients_numbers_are_the_same(make, causal, dtype):
    for lengths in LENGTHS.values():
        tokens, mask = drawn(make, dtype=dtype), mask_of(lengths, causal)
        wide = [x.detach().double() for x in tokens]
        with torch.no_grad():
            judges = [way(tokens, mask) for way in (reference, masked)]
            assert_as_good(pooled(tokens, mask), judges, reference(wide, mask))


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_tokens_are_not_copied(make, batch, monkeypatch):
    tokens = [x.detach() for x in drawn(make, batch=batch)]
    line = ragged.line_of(*tokens, mask_of([7]), SCALE)
    taken = []
    monkeypatch.setattr(ragged, "EFFICIENT", lambda *inputs, **how: taken.extend(inputs[:3]) or inputs[:1])
    line.pool()
    assert [x.data_ptr() for x in taken] == [x.data_ptr() for x in tokens]
    assert line.rows_each == (2 if make is heads_apart and batch > 1 else 1)


@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ragged.DTYPES)
@pytest.mark.parametrize("learns", [False, True])
def test_padding_is_not_read(make, causal, dtype, learns):
    """Where others may hold finite garbage, here it may be NaN; an example without keys gives 0 all the same."""
    lengths = [4, 11, 0]
    real = torch.arange(11) < torch.tensor(lengths)[:, None]
    clean = drawn(make, dtype=dtype)
    query, *rest = (x.detach().clone(memory_format=torch.preserve_format) for x in clean)
    rest = [x.masked_fill_(~real[:, None, :, None], math.nan) for x in rest]
    dirty = [x.requires_grad_() for x in (query, *rest)]
    with torch.set_grad_enabled(learns):
        outputs = [pooled(tokens, mask_of(lengths, causal)) for tokens in (clean, dirty)]
    if learns:
        outputs = [with_gradients(*pair) for pair in zip(outputs, (clean, dirty), strict=True)]
        assert all((grad.mT[2] == 0).all() for grad in outputs[1])
    else:
        outputs = [[output] for output in outputs]
    for found, right in zip(outputs[1], outputs[0], strict=True):
        assert torch.equal(found, right)


def test_lengths_may_change_between_the_directions():
    """What the backward pass needs of them was read forward."""
    tokens, lengths = drawn(), torch.tensor([0, 4, 11])
    output = pooled(tokens, Lengths(lengths.view(-1, 1, 1, 1)))
    right = with_gradients(pooled(tokens, mask_of([0, 4, 11])), tokens)
    lengths.fill_(3)
    for found, same in zip(with_gradients(output, tokens), right, strict=True):
        assert torch.equal(found, same)


@pytest.mark.parametrize("learns", [False, True])
def test_a_mask_is_cut_once_for_each_size(learns):
    tokens, mask = drawn(), mask_of([1, 4, 11])
    with torch.set_grad_enabled(learns):
        lines = [ragged.line_of(*x, mask, SCALE) for x in (tokens, tokens, drawn(queries=5))]
        cuts = [line._cut() for line in lines]
    assert cuts[0].keys is cuts[1].keys
    assert cuts[0].used is cuts[1].used
    assert cuts[2].keys is not cuts[0].keys
    assert len(mask.kept) == 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_lengths_of_every_dtype(dtype):
    tokens = drawn(keys=300)
    mask = Lengths(torch.tensor([100, 1, 0], dtype=dtype).view(-1, 1, 1, 1))
    for learns in (False, True):
        with torch.set_grad_enabled(learns):
            assert torch.equal(pooled(tokens, mask), pooled(tokens, mask_of([100, 1, 0])))


def test_what_is_kept_belongs_to_no_mode():
    """Made where nothing is recorded, it is saved for a backward pass later."""
    tokens, mask = drawn(), mask_of([3, 11, 7])
    with torch.inference_mode():
        line = ragged.line_of(*tokens, mask, SCALE)
        line._replace(learns=True)._cut()
    with_gradients(pooled(tokens, mask), tokens)
    assert len(mask.kept) == 1


@pytest.fixture
def words(monkeypatch):
    """Masks in words; on a CPU the mask of few lengths would be a matrix."""
    monkeypatch.setattr(tensors, "MOST_ENTRIES", 0)
    lengths = Mask.lengths(torch.tensor([3, 11, 0]))
    return {"lengths": lengths, "causal": lengths & Mask.causal(), "causal first": Mask.causal() & lengths}


@pytest.mark.parametrize("mask", ["lengths", "causal", "causal first"])
@pytest.mark.parametrize("score", ["scaled_dot", regard.scores.ScaledDot(0.3), "cosine"])
def test_the_operator_takes_it(mask, score, words, kernels, set_limits):
    set_limits(mask_entries=0)  # a mask over queries and keys is not made
    tokens = drawn()
    wide = [x.detach().double().requires_grad_() for x in tokens]
    ways = ((tokens, "auto"), (tokens, "reference"), (wide, "reference"))
    results = [with_gradients(regard.attend(*x, score, words[mask], backend=way), x) for x, way in ways]
    assert kernels == ["EFFICIENT"]
    assert regard.why(*tokens, score, words[mask]).backend == "torch"
    for found, right, exact in zip(*results, strict=True):
        assert_as_good(found, [right], exact)


@pytest.mark.parametrize("mask", ["lengths", "causal"])
def test_a_layer_takes_it(mask, words, kernels):
    layer, tokens = regard.MultiHeadAttention(16, 2), torch.randn(3, 11, 16)
    found = with_gradients(layer(tokens, mask=words[mask]), list(layer.parameters()))
    assert kernels == ["EFFICIENT"]
    matrix = Mask.keep(words[mask].to_sdpa((3, 2), 11, 11))
    for ours, right in zip(found, with_gradients(layer(tokens, mask=matrix), list(layer.parameters())), strict=True):
        torch.testing.assert_close(ours, right)
    assert kernels == ["EFFICIENT"]


@pytest.mark.parametrize("settings", [{"dropout": 0.1}, {"bias": torch.zeros(11)}, {"score": regard.scores.Dot()}])
def test_what_else_is_asked_for_decides(settings, words, kernels):
    regard.attend(*drawn(), mask=words["lengths"], **settings)
    assert kernels == (["EFFICIENT"] if "score" in settings else [])
    record = regard.inspect(*drawn(), mask=words["lengths"])
    assert record.weights().shape == (3, 2, 11, 11)
    assert len(kernels) == ("score" in settings)


@needs_gpu
@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("dtype", ragged.HALVES)
def test_weights_are_dropped_alike_in_both_directions(make, dtype):
    """The output is linear in the values, weights being what they are; and in the mean nothing is dropped."""
    query, key, value = drawn(make, 64, 64, dtype)
    mask = mask_of([40, 0, 64])
    line = ragged.line_of(query, key, value, mask, SCALE, dropout=0.25)
    draws = [line.pool() for _ in range(400)]
    assert not torch.equal(draws[0], draws[1])
    for output in draws[:3]:
        along = torch.randn_like(output)
        (to_value,) = torch.autograd.grad(output, value, along)
        pulled, pushed = (output * along).double().sum(), (value * to_value).double().sum()
        assert abs(pulled - pushed) <= 30 * torch.finfo(dtype).eps * (output * along).double().norm()
    whole = pooled((query, key, value), mask).double()
    spread = torch.stack(draws).double()
    error = (spread.mean(0) - whole) / (spread.std(0) / math.sqrt(len(draws)) + 8 * torch.finfo(dtype).eps)
    assert error.abs().max() < 6


FITTING = {"tokens": drawn, "mask": lambda: mask_of([3, 11, 7])}
OTHERS = {
    "float64": {"tokens": lambda: drawn(dtype=torch.float64)},
    "narrow heads": {"tokens": lambda: drawn(dim=6)},
    "narrow heads in half": {"tokens": lambda: drawn(dim=4, dtype=torch.float16)},
    "heads cut narrow": {"tokens": lambda: [torch.randn(3, 11, 2, 8)[..., :6].transpose(1, 2) for _ in range(3)]},
    "heads cut narrow in half": {"tokens": lambda: [x[..., :12] for x in drawn(dim=16, dtype=torch.bfloat16)]},
    "wide heads that learn in half": {"tokens": lambda: drawn(dim=200, dtype=torch.float16)},
    "wide heads": {"tokens": lambda: drawn(dim=ragged.WIDEST + 4)},
    "three axes": {"tokens": lambda: [x[0] for x in drawn()]},
    "other values": {"tokens": lambda: [*drawn()[:2], drawn(dim=4)[2]]},
    "shared keys": {"tokens": lambda: [x if at == 0 else x[:, :1] for at, x in enumerate(drawn())]},
    "no keys": {"tokens": lambda: drawn(keys=0)},
    "no queries": {"tokens": lambda: drawn(queries=0)},
    "strides": {"tokens": lambda: [torch.randn(3, 2, 8, 11).mT for _ in range(3)]},
    "gaps": {"tokens": lambda: [torch.randn(3, 3, 11, 8)[:, :2] for _ in range(3)]},
    "misaligned": {"tokens": lambda: [torch.randn(3 * 2 * 11 * 8 + 1)[1:].view(3, 2, 11, 8) for _ in range(3)]},
    "lengths of heads": {"mask": lambda: Lengths(torch.ones(3, 2, 1, 1, dtype=torch.int64))},
    "lengths of queries": {"mask": lambda: Lengths(torch.ones(3, 1, 11, 1, dtype=torch.int64))},
    "a matrix": {"mask": lambda: Dense(torch.ones(3, 1, 1, 11, dtype=torch.bool))},
    "a window": {"mask": lambda: Both(Band(-2, 0), mask_of([3, 11, 7]))},
    "either": {"mask": lambda: Either(Band(None, 0), mask_of([3, 11, 7]))},
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_the_kernels_do_not_take(other):
    assert ragged.line_of(*drawn(), mask_of([3, 11, 7]), SCALE) is not None
    how = {**FITTING, **OTHERS[other]}
    assert ragged.line_of(*how["tokens"](), how["mask"](), SCALE) is None


def test_who_watches_gets_another_way():
    tokens, mask = drawn(), mask_of([3, 11, 7])
    found = []
    torch.func.grad(lambda query: found.append(ragged.line_of(query, *tokens[1:], mask, SCALE)) or query.sum())(
        tokens[0]
    )
    assert found == [None]

    class Other(torch.Tensor):
        pass

    assert ragged.line_of(tokens[0].as_subclass(Other), *tokens[1:], mask, SCALE) is None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert ragged.line_of(*tokens, mask, SCALE) is None
    assert ragged.line_of(*tokens, mask, SCALE) is not None


def test_lines_that_are_too_long_are_left_to_others(monkeypatch):
    tokens, mask = drawn(), mask_of([3, 11, 7])
    for limit, most in (("MOST_TOKENS", 3 * 2 * 11), ("MOST_PIECES", 2 * 3 * 3)):
        for allowed in (most - 1, most):
            monkeypatch.setattr(ragged, limit, allowed)
            ragged._rows_each.cache_clear()
            assert (ragged.line_of(*tokens, mask, SCALE) is not None) == (allowed == most)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("few", [(0, 2**30), (2**30, 0)], ids=["a training is short", "the rest is short"])
def test_where_the_host_decides_padding_is_blanked(learns, few, words, kernels, monkeypatch):
    monkeypatch.setattr(ragged, "FEW_PAIRS", dict.fromkeys(ragged.DTYPES, few))
    tokens = [x.detach().requires_grad_(learns) for x in drawn()]
    for backend in ("auto", "torch"):
        regard.attend(*tokens, mask=words["lengths"], backend=backend)
        assert bool(kernels) == (few[learns] == 0)
    kernels.clear()
    regard.attend(*tokens, mask=words["causal"])  # whose mask would have an entry for each pair
    assert kernels


SIGNATURES = {
    "_efficient_attention_forward": "query key value bias cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k "
    "dropout_p custom_mask_type compute_log_sumexp scale seqlen_k",
    "_flash_attention_forward": "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal "
    "return_debug_mask scale window_size_left window_size_right seqused_k",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_kernels_of_this_torch_are_called_as_they_want(name):
    """The stand-ins above could not tell."""
    names = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    expected = SIGNATURES[name].split()
    assert names[: len(expected)] == expected


@needs_gpu
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("few", [0, 2**30], ids=["kernels", "a matrix"])
@pytest.mark.parametrize("made", ["before", "and used before", "inside"])
def test_a_recorded_graph_outlives_its_mask(learns, few, made, set_limits):
    """It holds what it reads; a mask that is made inside of it is made anew, of the lengths of each replay."""
    set_limits(varlen_pairs=few)
    tokens, lengths = drawn(), torch.tensor([1, 4, 11])
    before = Mask.lengths(lengths)

    def call(before=None):
        # A gradient of leaves that were used before the recording would go back to the stream of that time.
        inputs = [x.detach().requires_grad_(learns) for x in tokens]
        output = regard.attend(*inputs, mask=Mask.lengths(lengths) if before is None else before)
        return with_gradients(output, inputs) if learns else [output]

    with torch.set_grad_enabled(learns):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call(before if made == "and used before" else None)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = call(None if made == "inside" else before)
        del before
        ragged.PIECES.clear()
        padding.COLUMNS.clear()
        torch.cuda.synchronize()
        junk = [torch.full((size,), 2**30, dtype=torch.int32) for size in range(1, 200) for _ in range(4)]
        lengths.copy_(torch.tensor([11, 0, 3] if made == "inside" else [1, 4, 11]))
        graph.replay()
        torch.cuda.synchronize()
        for found, right in zip(recorded, call(), strict=True):
            assert torch.equal(found, right)
        assert junk
