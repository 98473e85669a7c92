"""The whole model against eq. 13 written out by hand, and what must never change a result."""

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.translation.model.examples import make_batch, make_model

from regard.translation.model import Architecture, EncoderDecoder
from regard.translation.model.architecture import SCORES
from regard.translation.vocabulary import PAD


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

    words = w["source_words.weight"][source]
    onward, backward = read(words, "encoder.onward.0"), read(words[::-1], "encoder.backward_.0")[::-1]
    annotations = np.stack([np.concatenate(both) for both in zip(onward, backward, strict=True)])
    state = np.tanh(w["decoder.first.weight"] @ annotations.mean(0) + w["decoder.first.bias"])
    score = "decoder.context.attention.score"
    recurrent = w["decoder.unit.recurrent.weight"], w["decoder.unit.recurrent.bias"]
    logits = []
    for word in w["target_words.weight"][previous]:
        if conditional:
            gates = w["decoder.word_gates.weight"] @ word + w["decoder.word_gates.bias"]
            state = gru(gates, state, *recurrent)
        asked = w[f"{score}.query_weight"] @ state + annotations @ w[f"{score}.key_weight"].T
        scores = np.tanh(asked) @ w[f"{score}.weight"]  # eq. 12
        alpha = np.exp(scores - scores.max())
        alpha /= alpha.sum()
        context = alpha @ annotations  # eq. 13
        if conditional:
            gates = w["decoder.context_gates.weight"] @ context + w["decoder.context_gates.bias"]
            state = gru(
                gates, state, w["decoder.second_unit.recurrent.weight"], w["decoder.second_unit.recurrent.bias"]
            )
        else:
            gates = w["decoder.gates.weight"] @ np.concatenate((word, context)) + w["decoder.gates.bias"]
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
    assert model.source_words.weight is model.target_words.weight is model.output.weight
    apart = make_model()
    assert apart.source_words.weight is not apart.target_words.weight
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count < sum(parameter.numel() for parameter in apart.parameters())


def test_a_joint_model_has_one_vocabulary():
    with refuses("joint", "of 5", "and 6"):
        EncoderDecoder(Architecture(embedding=3, hidden=4, joint=True), 5, 6)


def test_the_vector_of_padding_is_nothing_and_stays_it():
    model = make_model()
    source, lengths, previous, _ = make_batch()
    model(source, lengths, previous).sum().backward()
    for table in (model.source_words, model.target_words):
        assert not table.weight[PAD].any()
        assert not table.weight.grad[PAD].any()


def test_word_dropout_drops_whole_words_and_only_while_training():
    model = make_model(word_dropout=0.5)
    tokens = torch.arange(4, 13).expand(50, -1)
    dropped = model._embed(model.source_words, tokens)
    whole = (dropped == 0).all(-1)
    assert 0.3 < whole.double().mean() < 0.7
    assert torch.equal(dropped.eq(0).any(-1), whole)
    assert torch.equal(model.eval()._embed(model.source_words, tokens), model.source_words(tokens))


def test_without_attention_there_is_no_alignment():
    model = make_model(attention="none")
    source, lengths, previous, _ = make_batch()
    assert model.step(previous[:, :1], model.start(source, lengths)).weights is None
