"""Multi-head attention over any score equals eq. 14, and nn.MultiheadAttention where that has an answer."""

import copy

import numpy as np
import pytest
import torch
from tests.bounds import assert_same, assert_same_sums
from tests.layers.sizes import BATCH, KEYS, QUERIES, free_sizes, inputs
from tests.refuses import refuses
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

import regard
from regard import Mask, MultiHeadAttention
from regard.layers import Alibi
from regard.scores import Gaussian, Rotary, ScaledDot
from regard.scores.names import NAMED_SCORES, SIZED_SCORES

NAMES = sorted([*SIZED_SCORES, *NAMED_SCORES])


def sum_of_heads(layer, query, key, value, mask=None):
    """Eq. 14 read aloud: each head by itself through `attend`, each through its own columns of Wo."""
    weights = layer.input.matrices()
    biases = layer.input.bias.split(layer.input.outputs)
    projected = [functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
    output = layer.output.bias
    for head in range(layer.heads):
        q, k, v = (
            x.unflatten(-1, (heads, -1))[..., head * heads // layer.heads, :]
            for x, heads in zip(projected, (layer.heads, layer.kv_heads, layer.kv_heads), strict=True)
        )
        score = of_one_head(layer.score, head)
        columns = slice(head * layer.value_head_dim, (head + 1) * layer.value_head_dim)
        output = output + regard.attend(q, k, v, score, mask) @ layer.output.weight[:, columns].mT
    return output


def of_one_head(score, head):
    """The score with the parameters of one head."""
    alone = copy.deepcopy(score)
    for name, parameter in [*alone.named_parameters(), *alone.named_buffers()]:
        if parameter.ndim > 1:
            path, _, last = name.rpartition(".")
            setattr(alone.get_submodule(path), last, nn.Parameter(parameter.detach()[head]))
    return alone


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("score", NAMES)
def test_the_layer_is_the_sum_of_its_projected_heads(score, kv_heads):
    layer = free_sizes(score, kv_heads=kv_heads)
    nn.init.normal_(layer.input.bias)
    query, key, value = inputs(layer, BATCH)
    mask = Mask.lengths(torch.tensor([7, 3, 5]))
    assert_same(layer(query, key, value, mask), sum_of_heads(layer, query, key, value, mask))


@pytest.mark.parametrize("kv_heads", [6, 3])
@pytest.mark.parametrize("score", NAMES)
def test_every_score_has_gradients_to_all_parameters(score, kv_heads):
    layer = free_sizes(score, kv_heads=kv_heads)
    nn.init.normal_(layer.input.bias)
    layer(*inputs(layer, BATCH)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        if score == "boxcar" and name in {"input.query_weight", "input.key_weight"}:
            assert parameter.grad is None or not parameter.grad.any(), "a boxcar is flat"
        else:
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


def test_gradients_of_the_layer_are_those_of_its_heads():
    layer = free_sizes("additive", kv_heads=2)
    tensors = [x.requires_grad_() for x in inputs(layer, BATCH)]
    layer(*tensors).square().sum().backward()
    found = [x.grad for x in (*tensors, *layer.input.parameters(), *layer.output.parameters())]
    for tensor in (*tensors, *layer.parameters()):
        tensor.grad = None
    sum_of_heads(layer, *tensors).square().sum().backward()
    wanted = [x.grad for x in (*tensors, *layer.input.parameters(), *layer.output.parameters())]
    for left, right in zip(found, wanted, strict=True):
        assert_same_sums(left, right)


# nn.MultiheadAttention


# Shapes, masks, groups


@pytest.mark.parametrize("batch", [(), (3,), (3, 2), (0,)], ids=str)
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_any_number_of_batch_axes(batch, kv_heads):
    layer = free_sizes(kv_heads=kv_heads)
    query, key, value = inputs(layer, *batch)
    found = layer(query, key, value)
    assert found.shape == (*batch, QUERIES, 19)
    record = layer.inspect(query, key, value)
    assert record.weights().shape == (*batch, 6, QUERIES, KEYS)
    assert record.log_mass.shape == (*batch, 6, QUERIES)
    assert record.heads.output.shape == (*batch, 6, QUERIES, 3)
    assert_same(record.output, found)
    assert_same(layer.recall(query, layer.remember(key, value)), found)
    if batch == (3, 2):
        assert_same(found.flatten(0, 1), layer(*(x.flatten(0, 1) for x in (query, key, value))))


def test_keys_are_shared_over_a_batch_axis_of_size_1():
    layer = free_sizes(kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    wanted = layer(query, key[:1].expand_as(key), value[:1].expand_as(value))
    assert_same(layer(query, key[:1], value[:1]), wanted)


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "tricube"])
def test_a_query_that_sees_nothing_gets_the_output_bias_and_no_gradient(score, kv_heads):
    layer = free_sizes(score, kv_heads=kv_heads)
    nn.init.normal_(layer.output.bias)
    query, key, value = (x.requires_grad_() for x in inputs(layer, BATCH))
    mask = Mask.lengths(torch.tensor([7, 0, 2]))
    record = layer.inspect(query, key, value, mask)
    assert torch.equal(record.log_mass[1], torch.full((6, QUERIES), -torch.inf, dtype=torch.float64))
    assert torch.equal(record.weights()[1], torch.zeros(6, QUERIES, KEYS, dtype=torch.float64))
    for output in (record.output, layer(query, key, value, mask)):
        assert_same(output[1], layer.output.bias.expand(QUERIES, -1))
        grads = torch.autograd.grad(output.square().sum(), [query, key, value, *layer.parameters()], retain_graph=True)
        assert all(grad.isfinite().all() for grad in grads)
        assert all(not grad[1].any() for grad in grads[:3])


# Positions


@pytest.mark.parametrize("kv_heads", [6, 2])
def test_alibi_is_a_bias_of_each_head(kv_heads):
    layer = free_sizes(position_bias=Alibi(6), kv_heads=kv_heads)
    query, key, value = inputs(layer, BATCH)
    plain = copy.deepcopy(layer)
    plain.position_bias = None
    bias = Alibi(6)(torch.arange(QUERIES), torch.arange(KEYS))
    found = layer.inspect(query, key, value).scores() - plain.inspect(query, key, value).scores()
    assert_same(found, bias.double().expand_as(found), torch.float32)
    assert_same(layer(query, key, value), layer.inspect(query, key, value).output)


def test_a_learnable_position_bias_learns():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(6, 16, dtype=torch.float64))

        def forward(self, queries, keys):
            return self.table[:, (queries[:, None] - keys).clamp(-8, 7) + 8]

    layer = free_sizes(position_bias=Table(), kv_heads=2)
    layer(*inputs(layer, BATCH)).square().sum().backward()
    assert layer.position_bias.table.grad.abs().sum() > 0


# Heads that are switched off


def test_a_silent_head_is_worth_its_term_of_the_sum():
    layer = free_sizes(kv_heads=2)
    tensors = inputs(layer, BATCH)
    whole, heads = layer(*tensors), layer.inspect(*tensors).heads.output
    layer.switch_off(4)
    term = heads[:, 4] @ layer.output.weight[:, 12:15].mT
    assert_same(layer(*tensors), whole - term)
    assert_same(layer.inspect(*tensors).output, whole - term)
    layer.switch_off([0, 1])
    assert layer.head_gate.tolist() == [0, 0, 1, 1, 0, 1]
    layer.switch_on([0, 4])
    assert layer.head_gate.tolist() == [1, 0, 1, 1, 1, 1]
    assert "head_gate" not in layer.state_dict()
    layer.switch_on(1)
    assert layer.head_gate is None
    layer.switch_off([2, -1])
    layer.switch_on()
    layer.switch_on()
    assert layer.head_gate is None
    assert torch.equal(layer(*tensors), whole)
    with refuses("heads", "from 0", "to 5"):
        layer.switch_off([6])


def test_a_gate_with_a_gradient_tells_the_worth_of_heads():
    layer = free_sizes()
    tensors = inputs(layer, BATCH)
    layer.head_gate = torch.ones(6, dtype=torch.float64, requires_grad=True)
    layer(*tensors).square().sum().backward()
    assert layer.head_gate.grad.abs().min() > 0


# The record


# Under torch's own machinery


@pytest.mark.parametrize(
    "options",
    [{}, {"score": "additive"}, {"kv_heads": 2}, {"score": Rotary("scaled_dot")}, {"position_bias": Alibi(4)}],
    ids=["plain", "additive", "grouped", "rotary", "alibi"],
)
def test_compiles_to_one_graph(options):
    layer = MultiHeadAttention(16, 4, **options)
    tokens, lengths = torch.randn(2, 5, 16), torch.tensor([5, 3])
    wanted = layer(tokens, mask=Mask.causal() & Mask.lengths(lengths))

    def step(tokens, lengths):
        return layer(tokens, mask=Mask.causal() & Mask.lengths(lengths))

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    found = compiled(tokens, lengths)
    assert_same(found, wanted)
    found.square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@torch.no_grad()
def test_a_decoding_step_compiles_to_one_graph():
    layer = MultiHeadAttention(16, 4, kv_heads=2).eval()

    def step(token, memory):
        memory = memory.append(token)
        return layer.recall(token, memory), memory

    memory, token = layer.remember(torch.randn(2, 5, 16), mask=Mask.causal()), torch.randn(2, 1, 16)
    output, grown = torch.compile(step, fullgraph=True, backend="aot_eager")(token, memory)
    assert_same(output, step(token, memory)[0])
    assert grown.keys == 6


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2}, {"score": Rotary()}], ids=["plain", "grouped", "rotary"])
def test_many_decoding_steps_compile_to_graphs_whose_sizes_are_symbols(options):
    layer, tokens = MultiHeadAttention(16, 4, **options).eval(), torch.randn(2, 9, 16)
    whole = layer(tokens, mask=Mask.causal())

    def step(token, memory):
        memory = memory.append(token)
        return layer.recall(token, memory), memory

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    memory = layer.remember(tokens[:, :1], mask=Mask.causal())
    for at in range(1, 9):
        output, memory = compiled(tokens[:, at : at + 1], memory)
        assert_same(output, whole[:, at : at + 1])


def test_a_mask_that_may_mean_rows_or_heads_is_refused():
    layer, tokens, allowed = MultiHeadAttention(8, 4), torch.randn(4, 3, 8), torch.rand(4, 3, 3) < 0.6
    with refuses("Mask.keep", "batch", "None", "mask"):
        layer(tokens, mask=Mask.causal() & Mask.keep(allowed))
    by_row = torch.stack([layer(one, mask=Mask.keep(mask)) for one, mask in zip(tokens, allowed, strict=True)])
    assert_same(layer(tokens, mask=Mask.keep(allowed[:, None])), by_row)
    by_head = layer(tokens, mask=Mask.keep(allowed[None]))
    assert_same(by_head[1], layer(tokens[1], mask=Mask.keep(allowed)))


def test_a_gate_that_learns_is_switched_in_place():
    layer, tokens = MultiHeadAttention(8, 2).eval(), torch.randn(1, 3, 8)
    with torch.no_grad():
        whole = layer(tokens)
    gate = layer.head_gate = nn.Parameter(torch.ones(2))
    with torch.no_grad():
        assert_same(layer(tokens), whole)
    layer.switch_off(1)
    assert layer.head_gate is gate
    assert gate.tolist() == [1, 0]
    layer(tokens).sum().backward()
    assert gate.grad is not None
    layer.switch_on()
    assert gate.tolist() == [1, 1]
    layer.head_gate = None
    layer.switch_off(0)
    assert layer.head_gate.tolist() == [0, 1]
    assert not isinstance(layer.head_gate, nn.Parameter)


@pytest.mark.parametrize("heads", [{0, 1}, np.array([0, 1]), range(2), (np.int64(0), 1)], ids=str)
def test_heads_are_switched_by_any_numbers(heads):
    layer = MultiHeadAttention(9, 3)
    layer.switch_off(heads)
    assert layer.head_gate.tolist() == [0, 0, 1]


@pytest.mark.parametrize("heads", [1.5, None, torch.tensor(0), True, "0"], ids=str)
def test_what_is_no_number_of_a_head_is_refused(heads):
    with refuses("heads"):
        MultiHeadAttention(8, 2).switch_off(heads)


@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "boxcar", "additive"])
def test_a_layer_on_the_meta_device_has_shapes_and_no_numbers(score):
    with torch.device("meta"):
        layer = MultiHeadAttention(8, 2, score)
        assert layer(torch.empty(2, 5, 8)).shape == (2, 5, 8)
    assert ("bandwidth=float32 (2, 1) on meta" in repr(layer)) == (score in ("gaussian", "boxcar")), repr(layer)
    assert layer.to_empty(device="cpu").output.weight.device.type == "cpu"


def test_a_memory_is_expected():
    layer, tokens = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with refuses("memory"):
        layer.recall(tokens, tokens)


def test_exports():
    layer = MultiHeadAttention(16, 4, kv_heads=2).eval()
    tokens = torch.randn(2, 5, 16)
    exported = torch.export.export(layer, (tokens,), dynamic_shapes={"query": {1: torch.export.Dim("tokens")}})
    longer = torch.randn(2, 11, 16)
    assert_same(exported.module()(longer), layer(longer))


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [{"score": "gaussian"}, {"score": "additive"}, {"score": ScaledDot(sink=4)}, {"position_bias": Alibi(4)}],
    ids=["gaussian", "additive", "sink", "alibi"],
)
def test_exports_one_program_for_every_length(options):
    layer = MultiHeadAttention(16, 4, **options).eval()
    tokens = {"query": {1: torch.export.Dim("tokens", min=2, max=4096)}}
    program = torch.export.export(layer, (torch.randn(2, 16, 16),), dynamic_shapes=tokens).module()
    for count in (2, 7, 90, 300):
        tokens = torch.randn(2, count, 16)
        assert_same(program(tokens), layer(tokens))


@torch.no_grad()
def test_code_compiles_to_few_graphs_for_many_lengths():
    layer = MultiHeadAttention(16, 4, position_bias=Alibi(4)).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for count in range(20, 220, 20):  # the limit is 8 graphs
        tokens = torch.randn(2, count, 16)
        assert_same(compiled(tokens), layer(tokens))


@pytest.mark.parametrize("options", [{}, {"key_dim": 7}, {"score": "additive", "kv_heads": 2}], ids=str)
def test_state_dict_round_trip(options):
    layer, other = (MultiHeadAttention(16, 4, **options) for _ in range(2))
    other.load_state_dict(layer.state_dict())
    tensors = inputs(layer, 2, dtype=torch.float32)
    assert torch.equal(layer(*tensors), other(*tensors))


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "gaussian", "cosine"])
def test_autocast(score):
    layer = MultiHeadAttention(16, 4, score, kv_heads=2)
    tokens = torch.randn(2, 5, 16)
    wanted, before = layer(tokens), layer.remember(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(tokens)
        recalled = layer.recall(tokens, layer.remember(tokens))
        mixed = layer(tokens, tokens.bfloat16())  # of a norm, and of a linear layer
        late = layer.recall(tokens, before)  # remembered outside
        assert before.append(tokens).key.dtype == torch.float32
    assert found.dtype == mixed.dtype == late.dtype == torch.bfloat16
    for other in (mixed, late):
        assert float((other.float() - wanted).detach().abs().max()) < 0.05
    assert_same(recalled, found)
    assert float((found.float() - wanted).detach().abs().max()) < 0.05
    found.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    layer = MultiHeadAttention(16, 4, "additive").to(dtype)
    tokens = torch.randn(2, 5, 16, dtype=dtype)
    assert layer(tokens).dtype == dtype


def test_dropout_in_training_only():
    layer = MultiHeadAttention(16, 4, dropout=0.5)
    tokens = torch.randn(2, 31, 16)
    assert not torch.equal(layer(tokens), layer(tokens))
    assert torch.equal(layer.eval()(tokens), layer(tokens))


# Errors


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "word"),
    [
        ((10, 3), {}, "heads", "3 for dim 10"),
        ((12, 4), {"kv_heads": 3}, "kv_heads", "3 for 4 heads"),
        ((12, 0), {}, "heads", "0"),
        ((12, 4), {"value_dim": 1.5}, "value_dim", "1.5"),
        ((12, 4), {"dropout": -0.1}, "dropout", "-0.1"),
        ((12, 4, "nonsense"), {}, "score", "'nonsense'"),
        ((12, 4, 3.0), {}, "score", "3.0"),
        ((12, 4, ScaledDot(sink=3)), {}, "score", "a sink of shape (3,)"),
        ((12, 4, Gaussian(torch.ones(4, 3))), {"kv_heads": 2}, "score", "a bandwidth of shape (4, 3)"),
        ((12, 4), {"position_bias": Alibi(3)}, "position_bias", "Alibi(3) for 4 heads"),
        ((12, 4), {"position_bias": torch.ones(3)}, "position_bias", "tensor"),
    ],
)
def test_bad_layers_are_refused(arguments, options, argument, word):
    with refuses(argument, word):
        MultiHeadAttention(*arguments, **options)


def test_bad_calls_are_refused():
    layer = MultiHeadAttention(12, 4)
    tokens = torch.randn(2, 5, 12)
    for arguments, argument, word in (
        ((tokens[..., :7],), "query", "(*batch, tokens, 12)"),
        ((tokens, tokens[..., :7]), "key", "float32 (2, 5, 7)"),
        ((tokens, tokens, tokens[:, :3]), "value", "3 rows for 5 keys"),
        ((tokens, tokens[0]), "key", "equal rank"),
        ((tokens, tokens[:1].expand(3, 5, 12)), "key", "batch axes"),
        ((tokens.double(),), "query", "float32, the dtype of the layer"),
        ((tokens.to("meta"),), "query", "on meta"),
        (([1.0],), "query", "list"),
        ((tokens, None, None, torch.ones(5, 5).bool()), "mask", "Mask.keep"),
        ((tokens, tokens[:, :3], None, Mask.causal()), "Mask.causal()", "queries and"),
    ):
        with refuses(argument, word):
            layer(*arguments)


def test_an_order_needs_the_ranks_that_hold_tokens_in_it():
    layer, tokens = MultiHeadAttention(12, 4), torch.randn(2, 5, 12)
    for training in (True, False):
        with refuses("order", "'balanced' without a group"):
            layer.train(training)(tokens, order="balanced")
    assert torch.equal(layer(tokens, order="contiguous"), layer(tokens))


def test_the_layer_describes_itself():
    shown = repr(MultiHeadAttention(12, 4, "additive", kv_heads=2))
    assert "heads=4, kv_heads=2, dropout=0.0" in shown
    assert "inputs=(12, 12, 12), heads=(4, 2, 2), head_dims=(3, 3, 3), bias=True" in shown


@pytest.mark.parametrize("shape", [(2, 1), (1,), (3,)])
def test_a_gate_has_a_factor_for_each_head(shape):
    layer = MultiHeadAttention(12, 4)
    layer.head_gate = torch.ones(shape)
    with refuses("head_gate", "(4,)"):
        layer(torch.randn(2, 5, 12))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.parametrize("mask", [None, Mask.causal()], ids=str)
def test_grouped_heads_compile_for_batches_of_any_size(mask):
    layer = MultiHeadAttention(16, 4, kv_heads=2)
    torch._dynamo.reset()
    compiled = torch.compile(lambda tokens: layer(tokens, mask=mask), backend="aot_eager", fullgraph=True)
    for batch in (2, 3, 5):
        tokens = torch.randn(batch, 5, 16)
        assert_same(compiled(tokens), layer(tokens, mask=mask))


def test_hooks_of_the_projections_see_what_is_remembered_and_recalled():
    """torch.nn.utils.prune makes the weights anew in a hook of every call."""
    layer, tokens = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    prune.l1_unstructured(layer.input, "weight", 0.5)
    for _ in range(2):
        recalled = layer.recall(tokens, layer.remember(tokens))
        assert_same(recalled, layer(tokens))
        recalled.sum().backward()
        with torch.no_grad():
            layer.input.weight_orig.mul_(2)


def test_a_module_as_a_score_runs_under_autocast():
    class Learnt(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, query, key):
            return self.linear(query) @ key.mT

    score, tokens = Learnt(), torch.randn(2, 5, 4)
    layers = [regard.Attention(score), MultiHeadAttention(4, 1, score=score)]
    with torch.autocast("cpu", torch.bfloat16):
        record = regard.inspect(tokens, tokens, tokens, score)
        outputs = [record.output, *(layer(tokens, tokens, tokens) for layer in layers)]
    assert [output.dtype for output in outputs] == [torch.bfloat16] * 3
    exact = regard.inspect(tokens, tokens, tokens, score)
    assert (record.weights() - exact.weights()).abs().max() < 0.05, "also when it is looked at later"
    assert (record.output - exact.output).abs().max() < 0.05


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "gaussian"])
@pytest.mark.parametrize("garbage", [3e38, -3e38])
@pytest.mark.parametrize("remembered", [False, True])
def test_padding_whose_projection_overflows_does_not_matter(score, garbage, remembered):
    layer = MultiHeadAttention(8, 2, score)
    query, mask = torch.randn(2, 5, 8), regard.Mask.lengths(torch.tensor([3, 5]))
    results = []
    for value in (0.0, garbage):
        key = torch.linspace(-1, 1, 80).view(2, 5, 8).clone()
        key[0, 3:] = value
        key.requires_grad_()
        output = layer.recall(query, layer.remember(key, mask=mask)) if remembered else layer(query, key, mask=mask)
        results.append([output, *torch.autograd.grad(output.sum(), [key, *layer.parameters()], materialize_grads=True)])
    for found, right in zip(*results, strict=True):
        assert bool(found.isfinite().all())
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("make", [lambda x: None, lambda x: x.to_sparse()], ids=["nothing", "sparse"])
def test_what_are_no_tokens_is_refused(make):
    layer, tokens = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    memory = layer.remember(tokens)
    for call in (layer, layer.inspect, lambda query: layer.recall(query, memory)):
        with refuses("query", "torch"):
            call(make(tokens))


def test_heads_of_records_merge_over_sets_of_keys():
    layer = free_sizes("additive", kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    parts = [layer.inspect(query, key[:, at], value[:, at]) for at in (slice(0, 3), slice(3, None))]
    merged = regard.merge([part.heads for part in parts])
    assert_same(layer.join(merged.output), layer(query, key, value))
    assert_same(merged.weights(), layer.inspect(query, key, value).weights())
    with refuses("parts", "r.heads"):
        regard.merge(parts)
    assert repr(parts[0]) == "MultiHeadAttended(output=(3, 5, 19), heads=(3, 6, 5, 3))"


def test_one_head_of_a_single_query_can_be_looked_at():
    layer = free_sizes(kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    record = layer.recall_inspect(query[:, :1], layer.remember(key, value))
    for method in (record.weights, record.scores):
        assert_same(method(batch=(0, 5)), method()[0, 5])
        assert_same(method(batch=(slice(None), 3)), method()[:, 3])


def test_recalls_can_be_looked_at():
    layer = free_sizes(kv_heads=2)
    query, key, value = inputs(layer, BATCH)
    record = layer.recall_inspect(query, layer.remember(key, value, Mask.causal()))
    assert torch.equal(record.weights() > 0, torch.ones(QUERIES, KEYS).tril(KEYS - QUERIES).bool().expand(3, 6, 5, 7))
    assert record.entropy().shape == (BATCH, 6, QUERIES)
    assert record.top(2).keys.shape == (BATCH, 6, QUERIES, 2)
