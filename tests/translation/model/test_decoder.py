"""`Decoder`: all steps at once are the steps one by one, whatever the cell, the unit and the score."""

import pytest
import torch
from tests.translation.model.examples import make_batch, make_model

from regard.translation.model.architecture import SCORES

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
    assert fast.decoder.runs_at_once
    slow.decoder.runs_at_once = False
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
    assert not make_model(**choices).decoder.runs_at_once


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
    kept = model.step(previous[rows, 1:2], state.keep(rows))
    whole = model.step(previous[:, 1:2], state)
    torch.testing.assert_close(kept.log_probabilities, whole.log_probabilities[rows])
    torch.testing.assert_close(kept.weights, whole.weights[rows])
