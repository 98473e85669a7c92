"""The model: its architecture, contexts, encoder, decoder and step function."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.translation.examples import make_batch, make_model
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.scores import Score
from regard.translation.model import (
    SCORES,
    Architecture,
    AttentionContext,
    DecoderState,
    Encoder,
    EncoderDecoder,
    FixedContext,
    reverse_order,
)
from regard.translation.vocabulary import PAD


@pytest.mark.parametrize(
    ("choices", "argument", "word"),
    [
        ({"hidden": 0}, "hidden", "a whole number from 1 to 65,536"),
        ({"embedding": 2.5}, "embedding", "a whole number from 1 to 65,536"),
        ({"layers": True}, "layers", "True"),
        ({"attention_dim": -1}, "attention_dim", "a whole number from 1 to 65,536"),
        ({"hidden": 10**9 + 7, "heads": 10**9}, "hidden", "1000000007"),
        ({"layers": 99_999_999}, "layers", "99999999"),
        ({"unit": "rnn"}, "unit", "'rnn'"),
        ({"cell": "luong"}, "cell", "'luong'"),
        ({"attention": "softmax"}, "attention", "'softmax'"),
        ({"attention": ["dot"]}, "attention", "['dot']"),
        ({"state_dropout": 1.0}, "state_dropout", "a probability from 0 up to"),
        ({"word_dropout": -0.1}, "word_dropout", "-0.1"),
        ({"tied": 1}, "tied", "true or false"),
        ({"heads": 3, "hidden": 8}, "heads", "a divisor of hidden=8"),
        ({"heads": 4, "hidden": 15}, "heads", "a divisor of hidden=15"),
        ({"heads": 9, "hidden": 7}, "heads", "a divisor of hidden=7"),
        ({"heads": 2, "attention": "none"}, "heads", '1 where attention is "none"'),
    ],
)
def test_a_wrong_value_is_named(choices, argument, word):
    with refuses(argument, word):
        Architecture(**choices)


def test_the_default_is_equation_13():
    default = Architecture()
    assert (default.cell, default.attention, default.heads) == ("bahdanau", "additive", 1)


ANNOTATIONS = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(3))
REAL = torch.arange(5) < torch.tensor([[5], [1], [3]])


def context_of(name, heads=1):
    kind = FixedContext if name == "none" else AttentionContext
    return kind(Architecture(embedding=3, hidden=8, attention=name, heads=heads))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", [name for name in SCORES if name != "none"])
def test_contexts_are_means_of_real_annotations(name, heads):
    context = context_of(name, heads)
    memory = context.remember(ANNOTATIONS, REAL)
    found, weights = context.read(torch.randn(3, 2, 8), memory)
    assert found.shape == (3, 2, 16)
    assert weights.shape == (3, 2, 5)
    assert not weights.masked_select(~REAL[:, None].expand_as(weights)).any()
    if heads == 1:
        sums = weights.sum(-1)
        assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all())  # a compact kernel may see no word at all
        torch.testing.assert_close(found, weights @ ANNOTATIONS)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", ["additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance"])
def test_without_a_compact_kernel_all_mass_is_spent(name, heads):
    context = context_of(name, heads)
    _, weights = context.read(torch.randn(3, 2, 8), context.remember(ANNOTATIONS, REAL))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2))


def test_the_fixed_vector_is_the_last_state_of_each_direction():
    context = context_of("none")
    found, weights = context.read(torch.randn(3, 2, 8), context.remember(ANNOTATIONS, REAL))
    assert weights is None
    for row, last in enumerate((4, 0, 2)):
        wanted = torch.cat((ANNOTATIONS[row, last, :8], ANNOTATIONS[row, 0, 8:]))
        assert torch.equal(found[row], wanted.expand(2, -1))


@pytest.mark.parametrize("name", ["additive", "none"])
def test_a_selected_memory_is_that_of_the_chosen_sentences(name):
    context = context_of(name)
    rows, query = torch.tensor([2, 0]), torch.randn(2, 1, 8)
    state = DecoderState((torch.zeros(3, 1, 8),), context.remember(ANNOTATIONS, REAL))
    chosen = context.read(query, state.select(rows).memory)
    anew = context.read(query, context.remember(ANNOTATIONS[rows], REAL[rows]))
    torch.testing.assert_close(chosen, anew)


@pytest.mark.parametrize("heads", [1, 2])
def test_keys_are_projected_once_for_a_sentence(heads, monkeypatch):
    context = context_of("additive", heads)
    calls, prepare = [], type(context.attention.score).prepare_key

    def counted(self, *arguments):
        calls.append(1)
        return prepare(self, *arguments)

    monkeypatch.setattr(type(context.attention.score), "prepare_key", counted)
    assert isinstance(context.attention.score, Score)
    memory = context.remember(ANNOTATIONS, REAL)
    for _ in range(4):
        context.read(torch.randn(3, 2, 8), memory)
    assert len(calls) == 1


LENGTHS = torch.tensor([3, 7, 1, 5])


def packed_twin(encoder, unit, layers):
    """torch's own bidirectional layer with the same weights."""
    twin = {"gru": nn.GRU, "lstm": nn.LSTM}[unit](5, 7, layers, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for layer in range(layers):
            for side, ending in ((encoder.forward_layers, ""), (encoder.backward_layers, "_reverse")):
                for name, parameter in side[layer].named_parameters():
                    getattr(twin, f"{name.removesuffix('_l0')}_l{layer}{ending}").copy_(parameter)
    return twin


def real_states(states, lengths):
    return torch.cat([row[:length] for row, length in zip(states, lengths.tolist(), strict=True)])


@pytest.mark.parametrize("unit", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_states_and_gradients_are_those_of_packed_sequences(unit, layers):
    encoder = Encoder(Architecture(embedding=5, hidden=7, layers=layers, unit=unit, state_dropout=0.0)).double()
    twin = packed_twin(encoder, unit, layers)
    words = torch.randn(4, 7, 5, dtype=torch.float64, requires_grad=True)
    again = words.detach().clone().requires_grad_()
    found = real_states(encoder(words, LENGTHS), LENGTHS)
    packed = pack_padded_sequence(again, LENGTHS, batch_first=True, enforce_sorted=False)
    wanted = real_states(pad_packed_sequence(twin(packed)[0], batch_first=True)[0], LENGTHS)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weighted = torch.randn_like(found)
    (found * weighted).sum().backward()
    (wanted * weighted).sum().backward()
    torch.testing.assert_close(words.grad, again.grad, rtol=0, atol=1e-12)
    for layer in range(layers):
        for side, ending in ((encoder.forward_layers, ""), (encoder.backward_layers, "_reverse")):
            for name, parameter in side[layer].named_parameters():
                same = getattr(twin, f"{name.removesuffix('_l0')}_l{layer}{ending}")
                torch.testing.assert_close(parameter.grad, same.grad, rtol=0, atol=1e-12)


def test_states_of_real_words_do_not_know_what_stands_in_the_padding():
    encoder = Encoder(Architecture(embedding=5, hidden=7, state_dropout=0.0))
    words = torch.randn(4, 7, 5)
    other = words.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = 100.0
    assert torch.equal(real_states(encoder(words, LENGTHS), LENGTHS), real_states(encoder(other, LENGTHS), LENGTHS))


def test_a_sentence_is_read_backwards_up_to_its_own_end():
    assert reverse_order(torch.tensor([3, 1, 4]), 4).tolist() == [[2, 1, 0, 3], [0, 1, 2, 3], [3, 2, 1, 0]]


VARIANTS = [
    *({"attention": name} for name in SCORES),
    {"unit": "lstm"},
    {"cell": "conditional"},
    {"cell": "conditional", "unit": "lstm", "attention": "scaled_dot"},
    {"hidden": 8, "heads": 4},
    {"hidden": 8, "heads": 4, "attention": "dot", "cell": "conditional"},
    {"layers": 2},
]


def name_of(choices):
    return "-".join(map(str, choices.values()))


@pytest.mark.parametrize("choices", VARIANTS, ids=name_of)
def test_the_steps_of_a_search_are_those_of_the_training(choices):
    model = make_model(**choices)
    source, lengths, previous, _ = make_batch()
    wanted = torch.log_softmax(model(source, lengths, previous), -1)
    state = model.start(source, lengths)
    for step in range(previous.shape[1]):
        stepped = model.step(previous[:, step : step + 1], state)
        state = stepped.state
        # `step` gives float32, which is what a search adds up
        torch.testing.assert_close(stepped.log_probabilities[:, 0].double(), wanted[:, step], rtol=0, atol=2e-6)


@pytest.mark.parametrize("choices", [{}, {"cell": "conditional"}, {"layers": 2}, {"attention_dim": 3}], ids=name_of)
def test_all_at_once_is_the_loop_with_all_its_gradients(choices):
    fast, slow = make_model(**choices), make_model(**choices)
    assert fast.decoder.can_unroll
    slow.decoder.can_unroll = False
    source, lengths, previous, target = make_batch((4, 1, 6, 5), (3, 5, 2, 1))
    results = []
    for model in (fast, slow):
        logits = model(source, lengths, previous)
        weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5), dtype=logits.dtype)
        (logits * weights * (target != 0)[..., None]).sum().backward()
        results.append((logits, {name: parameter.grad for name, parameter in model.named_parameters()}))
    (found, gradients), (wanted, wanted_gradients) = results
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for name, gradient in wanted_gradients.items():
        assert gradient.any(), name
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize(
    "choices", [{"attention": "none"}, {"unit": "lstm"}, {"attention": "dot"}, {"hidden": 8, "heads": 2}], ids=name_of
)
def test_what_is_not_the_default_is_the_loop(choices):
    assert not make_model(**choices).decoder.can_unroll


def test_beams_share_a_sentence_and_are_reordered():
    model = make_model()
    source, lengths, _, _ = make_batch()
    start = model.start(source, lengths)
    two = start.reorder(torch.zeros(3, 2, dtype=torch.int64))
    words = torch.tensor([[5, 6], [7, 8], [9, 10]])
    both = model.step(words, two)
    for beam in range(2):
        one = model.step(words[:, beam : beam + 1], start)
        torch.testing.assert_close(both.log_probabilities[:, beam], one.log_probabilities[:, 0])
    turned = both.state.reorder(torch.tensor([[1, 0], [0, 0], [1, 1]]))
    assert torch.equal(turned.hidden[0], both.state.hidden[0].flip(0))
    assert torch.equal(turned.hidden[2, 0], both.state.hidden[2, 1])


def test_kept_sentences_go_on_as_if_they_were_alone():
    model = make_model(unit="lstm")
    source, lengths, previous, _ = make_batch()
    state = model.step(previous[:, :1], model.start(source, lengths)).state
    rows = torch.tensor([2, 0])
    kept = model.step(previous[rows, 1:2], state.select(rows))
    whole = model.step(previous[:, 1:2], state)
    torch.testing.assert_close(kept.log_probabilities, whole.log_probabilities[rows])
    torch.testing.assert_close(kept.weights, whole.weights[rows])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(gates, state, weight, bias):
    """The gated unit; gates: the input's share."""
    (r_in, z_in, n_in), (r_h, z_h, n_h) = np.split(gates, 3), np.split(weight @ state + bias, 3)
    update = sigmoid(z_in + z_h)
    return (1 - update) * np.tanh(n_in + sigmoid(r_in + r_h) * n_h) + update * state


def by_hand(w, source, previous, conditional=False):
    """The logits of one sentence, from the weights by their names; source and previous are lists of ids."""

    def read(words, prefix):
        state, states = np.zeros(w[f"{prefix}.weight_hh_l0"].shape[1]), []
        for word in words:
            gates = w[f"{prefix}.weight_ih_l0"] @ word + w[f"{prefix}.bias_ih_l0"]
            state = gru(gates, state, w[f"{prefix}.weight_hh_l0"], w[f"{prefix}.bias_hh_l0"])
            states.append(state)
        return states

    words = w["source_embedding.weight"][source]
    onward, backward = read(words, "encoder.forward_layers.0"), read(words[::-1], "encoder.backward_layers.0")[::-1]
    annotations = np.stack([np.concatenate(both) for both in zip(onward, backward, strict=True)])
    state = np.tanh(w["decoder.init_state.weight"] @ annotations.mean(0) + w["decoder.init_state.bias"])
    score = "decoder.context.attention.score"
    recurrent = w["decoder.cell.weight_hh"], w["decoder.cell.bias_hh"]
    logits = []
    for word in w["target_embedding.weight"][previous]:
        if conditional:
            gates = w["decoder.cell.weight_ih"] @ word + w["decoder.cell.bias_ih"]
            state = gru(gates, state, *recurrent)
        asked = w[f"{score}.query_weight"] @ state + annotations @ w[f"{score}.key_weight"].T
        scores = np.tanh(asked) @ w[f"{score}.weight"]  # eq. 12
        alpha = np.exp(scores - scores.max())
        alpha /= alpha.sum()
        context = alpha @ annotations  # eq. 13
        if conditional:
            gates = w["decoder.second_cell.weight_ih"] @ context + w["decoder.second_cell.bias_ih"]
            state = gru(gates, state, w["decoder.second_cell.weight_hh"], w["decoder.second_cell.bias_hh"])
        else:
            gates = w["decoder.cell.weight_ih"] @ np.concatenate((word, context)) + w["decoder.cell.bias_ih"]
            state = gru(gates, state, *recurrent)
        hidden = np.tanh(w["readout.weight"] @ np.concatenate((state, word, context)) + w["readout.bias"])
        logits.append(w["output.weight"] @ hidden + w["output.bias"])
    return np.stack(logits)


@pytest.mark.parametrize("cell", ["bahdanau", "conditional"])
def test_the_equations_written_out(cell):
    model = make_model(cell=cell)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    source, lengths, previous, target = make_batch()
    found = model(source, lengths, previous).detach().numpy()
    for row, (read, written) in enumerate(zip(lengths.tolist(), (target != PAD).sum(1).tolist(), strict=True)):
        wanted = by_hand(weights, source[row, :read].numpy(), previous[row, :written].numpy(), cell == "conditional")
        np.testing.assert_allclose(found[row, :written], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("choices", [*({"attention": name} for name in SCORES), {"unit": "lstm", "layers": 2}])
def test_padding_and_batch_mates_change_nothing(choices):
    model = make_model(**choices)
    source, lengths, previous, target = make_batch((3, 9, 1), (4, 2, 7))
    together = model(source, lengths, previous)
    for row, (read, written) in enumerate(zip(lengths.tolist(), (target != PAD).sum(1).tolist(), strict=True)):
        alone = model(source[row : row + 1, :read], lengths[row : row + 1], previous[row : row + 1, :written])
        torch.testing.assert_close(together[row, :written], alone[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "choices",
    [
        *({"attention": name} for name in SCORES),
        *({"attention": name, "heads": 4, "hidden": 8} for name in ("additive", "bilinear", "dot", "gaussian")),
        {"unit": "lstm"},
        {"cell": "conditional"},
        {"joint": True, "tied": True},
    ],
    ids=lambda choices: "-".join(map(str, choices.values())),
)
def test_every_choice_learns(choices):
    model = make_model(torch.float32, **choices)
    source, lengths, previous, target = make_batch()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(source, lengths, previous).flatten(0, 1), target.flatten())
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_joint_and_tied_weights_are_one_tensor():
    model = make_model(joint=True, tied=True)
    assert model.source_embedding.weight is model.target_embedding.weight is model.output.weight
    apart = make_model()
    assert apart.source_embedding.weight is not apart.target_embedding.weight
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count < sum(parameter.numel() for parameter in apart.parameters())


def test_a_joint_model_has_one_vocabulary():
    with refuses("joint", "of 5", "and 6"):
        EncoderDecoder(Architecture(embedding=3, hidden=4, joint=True), 5, 6)


def test_the_vector_of_padding_is_nothing_and_stays_it():
    model = make_model()
    source, lengths, previous, _ = make_batch()
    model(source, lengths, previous).sum().backward()
    for table in (model.source_embedding, model.target_embedding):
        assert not table.weight[PAD].any()
        assert not table.weight.grad[PAD].any()


def test_word_dropout_drops_whole_words_and_only_while_training():
    model = make_model(word_dropout=0.5)
    tokens = torch.arange(4, 13).expand(50, -1)
    dropped = model._embed(model.source_embedding, tokens)
    whole = (dropped == 0).all(-1)
    assert 0.3 < whole.double().mean() < 0.7
    assert torch.equal(dropped.eq(0).any(-1), whole)
    assert torch.equal(model.eval()._embed(model.source_embedding, tokens), model.source_embedding(tokens))


def test_without_attention_there_is_no_alignment():
    model = make_model(attention="none")
    source, lengths, previous, _ = make_batch()
    assert model.step(previous[:, :1], model.start(source, lengths)).weights is None
