"""A memory is what the layer would have computed from all its keys at once, however it came about."""

import dataclasses

import pytest
import torch
from tests.bounds import assert_same
from tests.refuses import refuses

from regard import Attention, Mask, MultiHeadAttention
from regard.layers import Alibi
from regard.scores import Additive, Rotary, ScaledDot

BATCH, TOKENS, DIM, HEADS = 3, 7, 12, 6


def decoders():
    yield "dot", MultiHeadAttention(DIM, HEADS)
    yield "additive", MultiHeadAttention(DIM, HEADS, "additive")
    yield "gaussian", MultiHeadAttention(DIM, HEADS, "gaussian")
    yield "callable", MultiHeadAttention(DIM, HEADS, lambda q, k: (q @ k.mT).tanh())
    yield "rotary", MultiHeadAttention(DIM, HEADS, Rotary("scaled_dot"))
    yield "rotary additive", MultiHeadAttention(DIM, 3, Rotary(Additive.of_projected(4, 3)))
    yield "alibi", MultiHeadAttention(DIM, HEADS, position_bias=Alibi(HEADS))
    yield "grouped", MultiHeadAttention(DIM, HEADS, kv_heads=2)
    yield "grouped additive", MultiHeadAttention(DIM, HEADS, "additive", kv_heads=3)
    yield (
        "grouped rotary alibi",
        MultiHeadAttention(DIM, HEADS, Rotary("scaled_dot"), kv_heads=1, position_bias=Alibi(HEADS)),
    )


@pytest.fixture(params=[name for name, _ in decoders()])
def decoder(request):
    return dict(decoders())[request.param].double()


@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 3], [2, 5], [0, 7]], ids=str)
def test_decoding_step_by_step_is_the_full_pass(decoder, chunks):
    tokens = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    whole = decoder(tokens, mask=Mask.causal())
    memory = decoder.remember(tokens[:, :0], mask=Mask.causal())
    steps = []
    for chunk in tokens.split(chunks, dim=1):
        memory = memory.append(chunk)
        steps.append(decoder.recall(chunk, memory))
    assert len(memory) == memory.keys == TOKENS
    assert_same(torch.cat(steps, 1), whole)


def test_gradients_flow_through_a_memory_that_grew(decoder):
    tokens = torch.randn(2, 5, DIM, dtype=torch.float64, requires_grad=True)
    decoder(tokens, mask=Mask.causal()).square().sum().backward()
    wanted = [tokens.grad, *(p.grad for p in decoder.parameters())]
    tokens.grad = None
    decoder.zero_grad()
    memory = decoder.remember(tokens[:, :2], mask=Mask.causal())
    loss = decoder.recall(tokens[:, :2], memory).square().sum()
    loss = loss + decoder.recall(tokens[:, 2:], memory.append(tokens[:, 2:])).square().sum()
    loss.backward()
    for found, exact in zip([tokens.grad, *(p.grad for p in decoder.parameters())], wanted, strict=True):
        assert_same(found / exact.abs().max(), exact / exact.abs().max())


def test_a_window_and_padding_follow_the_memory():
    layer = MultiHeadAttention(DIM, 3).double()
    tokens = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    real = torch.tensor([[True] * 4, [False, True, True, True], [False, False, True, True]])
    memory = layer.remember(tokens[:, :4], mask=Mask.window(2, 0) & Mask.keys(real))
    steps = [layer.recall(tokens[:, :4], memory)]
    for token in tokens[:, 4:].split(1, 1):
        memory = memory.append(token)
        steps.append(layer.recall(token, memory))
    seen = torch.cat([real, torch.ones(BATCH, 3, dtype=torch.bool)], 1)
    assert_same(torch.cat(steps, 1), layer(tokens, mask=Mask.window(2, 0) & Mask.keys(seen)))


@pytest.mark.parametrize(
    "layer", [MultiHeadAttention(DIM, 3), MultiHeadAttention(DIM, 4, kv_heads=2)], ids=["own", "grouped"]
)
def test_select_gives_beams_their_memory(layer):
    states = torch.randn(BATCH, TOKENS, DIM)
    query = torch.randn(5, 2, DIM)
    rows = torch.tensor([2, 0, 0, 1, 2])
    lengths = torch.tensor([7, 3, 5])
    keep = torch.rand(BATCH, 1, 2, TOKENS) > 0.3
    memory = layer.remember(states, mask=Mask.lengths(lengths) & Mask.keep(keep)).select(rows)
    wanted = layer(query, states[rows], mask=Mask.lengths(lengths[rows]) & Mask.keep(keep[rows]))
    assert_same(layer.recall(query, memory), wanted)
    assert memory.select([1, 1]).key.shape[0] == 2


def test_select_opens_one_sentence_into_many_beams():
    layer = Attention()
    memory = layer.remember(torch.randn(1, TOKENS, 5), torch.randn(1, TOKENS, 2)).select([0, 0, 0])
    assert memory.key.shape == (3, TOKENS, 5)
    shared = layer.remember(torch.randn(3, TOKENS, 5), torch.randn(1, TOKENS, 2)).select([2, 1])
    assert (shared.key.shape, shared.value.shape) == ((2, TOKENS, 5), (1, TOKENS, 2))


def test_a_memory_never_prepares_a_key_twice():
    seen = []

    class Counting(Additive):
        def prepare_key(self, key, first=0):
            seen.append((key.shape[-2], first))
            return super().prepare_key(key, first)

    layer = Attention(Counting(3, 5, 7))
    memory = layer.remember(torch.randn(2, 4, 5), torch.randn(2, 4, 1))
    for _ in range(3):
        layer.recall(torch.randn(2, 1, 3), memory)
    memory.append(torch.randn(2, 1, 5), torch.randn(2, 1, 1))
    assert seen == [(4, 0), (1, 4)]


def test_a_memory_cannot_be_changed():
    memory = Attention().remember(torch.randn(2, 3), torch.randn(2, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        memory.key = None
    memory.append(torch.randn(1, 3), torch.randn(1, 3))
    assert memory.keys == 2
    assert repr(memory) == "Memory(keys=2, key=float32 (2, 3) on cpu, value=float32 (2, 3) on cpu, mask=None)"


def test_errors_say_what_to_do():
    layer = MultiHeadAttention(DIM, 3)
    memory = layer.remember(torch.randn(2, 4, DIM))
    with refuses("key", "(1, 3, 1, 4)", "memory.select(rows)"):
        memory.append(torch.randn(1, 1, DIM))
    with refuses("rows", "positions of examples"):
        memory.select(torch.tensor([0.5]))
    with refuses("rows", "remember", "without", "batch"):
        layer.remember(torch.randn(4, DIM)).select([0])
    with refuses("memory", "remember", "Memory"):
        MultiHeadAttention(DIM, 6).recall(torch.randn(2, 1, DIM), memory)
    with refuses("key", "batch", "axes"):
        layer.recall(torch.randn(3, 1, DIM), memory)
    with refuses("Mask.keep", "1 keys appended", "to 4"):
        layer.remember(torch.randn(2, 4, DIM), mask=Mask.keep(torch.ones(4, 4) > 0)).append(torch.randn(2, 1, DIM))
    with refuses("mask", "bool"):
        layer.remember(torch.randn(2, 4, DIM), mask=torch.ones(2, 4) > 0)


@pytest.mark.parametrize("rows", [[0, 5], [-1]])
def test_rows_outside_the_memory_are_refused(rows):
    memory = Attention().remember(torch.randn(3, 5, 4), torch.randn(3, 5, 4))
    with refuses("rows", "from 0", "to 2"):
        memory.select(rows)
    assert memory.select([]).key.shape == (0, 5, 4)


@torch.no_grad()
def test_rows_are_selected_under_a_compiler_and_a_map():
    layer = MultiHeadAttention(8, 2)
    memory, rows = layer.remember(torch.randn(3, 4, 8)), torch.tensor([2, 0])
    compiled = torch.compile(lambda memory, rows: memory.select(rows).key, fullgraph=True, backend="aot_eager")
    assert_same(compiled(memory, rows), memory.key[rows])
    both = torch.stack([rows, rows + 0])
    assert_same(torch.vmap(lambda rows: memory.select(rows).key)(both), memory.key[both])


def layers_with_weights():
    yield "additive", Attention(Additive(DIM, DIM, 5))
    yield "gaussian", Attention("gaussian")
    yield "sink", MultiHeadAttention(DIM, HEADS, ScaledDot(sink=HEADS))
    yield from ((name, layer) for name, layer in decoders() if name not in {"alibi", "grouped rotary alibi"})


@pytest.mark.parametrize("layer", [pytest.param(layer, id=name) for name, layer in layers_with_weights()])
def test_output_and_weights_of_one_pass_are_those_of_the_record(layer):
    layer = layer.double()
    tokens = torch.randn(BATCH, TOKENS, DIM, dtype=torch.float64)
    memory = layer.remember(tokens, tokens, Mask.lengths(torch.tensor([7, 2, 4])))
    record = layer.recall_inspect(tokens[:, :2], memory)
    output, weights = layer.recall_with_weights(tokens[:, :2], memory)
    torch.testing.assert_close(output, record.output)
    torch.testing.assert_close(weights, record.weights())


@pytest.mark.parametrize("mask", ["lengths", "keys"])
def test_memory_sets_its_padding_to_zero_once(mask):
    layer = MultiHeadAttention(DIM, HEADS, "additive")
    tokens, lengths = torch.randn(BATCH, TOKENS, DIM), torch.tensor([7, 2, 4])
    real = torch.arange(TOKENS) < lengths[:, None]
    said = Mask.lengths(lengths) if mask == "lengths" else Mask.keys(real)
    garbage = tokens.masked_fill(~real[..., None], 1e30)
    memory = layer.remember(garbage, mask=said)
    assert memory.padding_is_zero
    assert not memory.key.movedim(-3, 1).transpose(1, 2)[~real].any()
    assert not memory.value.movedim(-3, 1).transpose(1, 2)[~real].any()
    assert_same(layer.recall(tokens[:, :2], memory), layer(tokens[:, :2], tokens, tokens, said))


def test_callable_score_gets_the_keys_unchanged():
    seen = []

    def score(query, key):
        seen.append(key)
        return query @ key.mT

    layer = Attention(score)
    tokens = torch.randn(BATCH, TOKENS, DIM)
    layer.recall(tokens[:, :1], layer.remember(tokens, tokens, Mask.lengths(torch.tensor([7, 2, 4]))))
    assert torch.equal(seen[0], tokens)


def test_memory_whose_mask_is_more_than_padding_does_not_set_it_to_zero():
    layer = Attention()
    tokens = torch.randn(BATCH, TOKENS, DIM)
    for mask in (Mask.causal(), Mask.causal() & Mask.lengths(torch.tensor([7, 2, 4])), Mask.lengths(torch.tensor(4))):
        assert not layer.remember(tokens, tokens, mask).padding_is_zero


@pytest.mark.parametrize("make", [lambda: MultiHeadAttention(DIM, HEADS), lambda: Attention(Additive(DIM, DIM, 4))])
def test_memory_of_another_layer_is_refused(make):
    one, other, tokens = make(), make(), torch.randn(BATCH, TOKENS, DIM)
    memory = one.remember(tokens, tokens).append(tokens[:, :1], tokens[:, :1])
    assert one.recall(tokens[:, :1], memory).isfinite().all()
    for asked in (other.recall, other.recall_inspect, other.recall_with_weights):
        with refuses("memory", "remember", "another", "Memory"):
            asked(tokens[:, :1], memory)
