"""Training: loss, learning rate, optimiser, updates, validation, and the loop around them."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.refuses import refuses
from tests.translation.toy_trainings import make_corpus, make_pairs, make_recipe
from torch import nn

from regard.translation import accelerator, monitoring
from regard.translation.batching import BatchPlan, make_batch
from regard.translation.dataset import Corpus, Pair
from regard.translation.model import Architecture
from regard.translation.model_folder import TrainedModel
from regard.translation.monitoring import EpochEnded, Started, TrainingProgress, TrainingResult, TrainingWarning
from regard.translation.recipe import Data, Recipe, Training
from regard.translation.training import (
    BETAS,
    RunningTotals,
    Trainer,
    learning_rate,
    make_optimiser,
    moments,
    r_drop,
    restore_moments,
    set_learning_rate,
    smoothed_cross_entropy,
    train,
)
from regard.translation.vocabulary import PAD, UNKNOWN

LOSS_TARGETS = torch.tensor([[5, 3, PAD], [4, 6, 3]])


def log_softmax(logits):
    exact = logits.double().numpy()
    return (
        exact
        - np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - exact.max(-1, keepdims=True)
    )


def by_hand(logits, targets, smoothing):
    """objective and cross entropy."""
    log_p, objective, cross_entropy = log_softmax(logits), 0.0, 0.0
    for row, column in zip(*np.nonzero(targets.numpy()), strict=True):
        wanted = np.full(log_p.shape[-1], smoothing / log_p.shape[-1])
        wanted[targets[row, column]] += 1 - smoothing
        objective -= (wanted * log_p[row, column]).sum()
        cross_entropy -= log_p[row, column, targets[row, column]]
    return objective, cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_cross_entropy(smoothing):
    logits = 3 * torch.randn(2, 3, 7)
    found = smoothed_cross_entropy(logits, LOSS_TARGETS, smoothing)
    assert (found.objective.item(), found.cross_entropy.item()) == pytest.approx(
        by_hand(logits, LOSS_TARGETS, smoothing), rel=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_its_gradient_is_the_gradient(smoothing):
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: smoothed_cross_entropy(x, LOSS_TARGETS, smoothing).objective, (logits,))


def test_r_drop_is_the_symmetric_divergence():
    logits = torch.randn(4, 3, 7)
    first, second = logits.chunk(2)
    log_p, log_q = log_softmax(first), log_softmax(second)
    real = (LOSS_TARGETS != PAD).numpy()[..., None]
    there, back = ((real * np.exp(a) * (a - b)).sum() for a, b in ((log_p, log_q), (log_q, log_p)))
    entropies = [by_hand(half, LOSS_TARGETS, 0.1) for half in (first, second)]
    found = r_drop(logits, LOSS_TARGETS, 0.1, weight=5.0)
    wanted = (entropies[0][0] + entropies[1][0]) / 2 + 5 * (there + back) / 2
    assert found.objective.item() == pytest.approx(wanted, rel=1e-6)
    assert found.cross_entropy.item() == pytest.approx((entropies[0][1] + entropies[1][1]) / 2, rel=1e-6)


def test_two_equal_passes_do_not_disagree():
    logits = torch.randn(2, 3, 7)
    once = smoothed_cross_entropy(logits, LOSS_TARGETS, 0.1)
    twice = r_drop(torch.cat((logits, logits)), LOSS_TARGETS, 0.1, weight=5.0)
    torch.testing.assert_close(twice, once)


def test_what_stands_at_padding_adds_nothing():
    logits = torch.randn(2, 3, 7, requires_grad=True)
    smoothed_cross_entropy(logits, LOSS_TARGETS, 0.1).objective.backward()
    assert not logits.grad[0, 2].any()
    assert logits.grad[0, :2].any()
    empty = smoothed_cross_entropy(torch.randn(2, 3, 7), torch.full((2, 3), PAD), 0.1)
    assert empty.objective.item() == 0


def test_two_passes_in_float64_have_a_loss_in_float64():
    logits = torch.randn(4, 3, 7, dtype=torch.float64)
    found = r_drop(logits, LOSS_TARGETS, 0.1, 1.0)
    assert found.objective.dtype == found.cross_entropy.dtype == torch.float64
    means = [sum(by_hand(half, LOSS_TARGETS, 0.0)) / 2 for half in logits.chunk(2)]
    assert found.cross_entropy.item() == pytest.approx(sum(means) / 2, rel=1e-12)


def rates(decay, updates=100, warmup=10):
    return [learning_rate(i, highest=2.0, warmup=warmup, decay=decay, updates=updates) for i in range(updates)]


@pytest.mark.parametrize("decay", ["none", "linear", "cosine", "inverse_sqrt"])
def test_it_rises_to_the_highest_and_never_again(decay):
    found = rates(decay)
    assert found[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(found) == pytest.approx(2.0)
    assert all(later <= earlier for earlier, later in pairwise(found[10:]))


def test_each_decay_has_its_middle_and_its_end():
    assert rates("none")[-1] == 2.0
    assert (rates("linear")[55], rates("linear")[-1]) == pytest.approx((1.0, 2 / 90))
    assert rates("cosine")[55] == pytest.approx(1.0)
    assert 0 < rates("cosine")[-1] < 0.001
    assert rates("inverse_sqrt")[39] == pytest.approx(1.0)


def test_it_stays_at_nothing_after_the_last_update_and_needs_no_warm_up():
    assert learning_rate(150, highest=2.0, warmup=10, decay="cosine", updates=100) == 0
    assert rates("linear", warmup=0)[0] == 2.0
    assert rates("inverse_sqrt", warmup=0)[3] == 1.0


def test_it_is_adamw_with_the_rate_that_is_set():
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = make_optimiser(models[0], Training(weight_decay=0.1))
    theirs = torch.optim.AdamW(models[1].parameters(), lr=0.25, betas=BETAS, weight_decay=0.1)
    set_learning_rate(ours, 0.25)
    for _ in range(3):
        for model, optimiser in zip(models, (ours, theirs), strict=True):
            optimiser.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(models[0].weight, models[1].weight)


def test_moments_come_back_and_options_stay_those_of_the_device():
    model = nn.Linear(3, 2)
    optimiser = make_optimiser(model, Training())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    again = make_optimiser(model, Training(learning_rate=0.125))
    restore_moments(again, moments(optimiser))
    (group,) = again.param_groups
    assert (group["capturable"], group["lr"], group["fused"]) == (False, 0.125, True)
    assert again.state[model.weight]["step"] == 1


SOURCES, TARGETS = [[4, 5, 6], [7]], [[5], [6, 7]]
NO_DROPOUT = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}


def make_trainer(**flags):
    """A trainer whose optimizer is plain gradient descent."""
    trainer = Trainer(make_recipe(**flags), make_corpus())
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    return trainer


def batch():
    return make_batch(BatchPlan((0, 1), 2, 4, 3, 5), SOURCES, TARGETS)


def test_the_step_is_minus_the_gradient_of_the_mean():
    trainer = make_trainer(**NO_DROPOUT, clip=1e9, label_smoothing=0.0)
    model = trainer.model
    before = [parameter.detach().clone() for parameter in model.parameters()]
    logits = model(*batch()[:3])
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch().target.flatten(), ignore_index=0)
    gradients = torch.autograd.grad(mean, list(model.parameters()))
    trainer.update(batch())
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - gradient)
    loss, tokens, norm = trainer._totals.read()
    assert (loss / tokens, tokens) == pytest.approx((mean.item(), 5), rel=1e-6)
    assert norm == pytest.approx(torch.cat([gradient.flatten() for gradient in gradients]).norm().item(), rel=1e-5)
    assert trainer._totals.read() == (0, 0, 0)


def test_a_long_gradient_is_shortened():
    trainer = make_trainer(**NO_DROPOUT, clip=0.001)
    before = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    trainer.update(batch())
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.001, rel=1e-2)


def test_two_passes_draw_different_dropout():
    loss = make_trainer(r_drop=5.0, label_smoothing=0.0)._loss(*batch()[:4])
    assert loss.objective > loss.cross_entropy + 1e-3  # the disagreement of the two
    assert loss.objective.requires_grad
    assert not loss.cross_entropy.requires_grad
    alike = make_trainer(r_drop=5.0, label_smoothing=0.0, **NO_DROPOUT)._loss(*batch()[:4])
    assert alike.objective.item() == pytest.approx(alike.cross_entropy.item(), rel=1e-6)


def test_totals_begin_with_nothing():
    assert RunningTotals.zeros(torch.device("cpu")).read() == (0, 0, 0)


def filled(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def test_a_snapshot_has_the_mean_of_the_last_weights_and_the_trainer_goes_on():
    trainer = make_trainer(average=3, average_from=2)
    parameters = list(trainer.model.parameters())
    for value in (50.0, 100.0, 1.0, 2.0, 6.0):
        filled(trainer.model, value)
        trainer._end_epoch()
    filled(trainer.model, 7.0)
    averaged, present = trainer.snapshot(), trainer.snapshot(averaged=False)
    assert not averaged.model.training
    assert all(bool((parameter == 3.0).all()) for parameter in averaged.model.parameters())
    assert all(bool((parameter == 7.0).all()) for parameter in present.model.parameters())
    assert trainer.model.training
    # the very tensors: optimizers and graphs hold them
    assert [id(parameter) for parameter in trainer.model.parameters()] == [id(parameter) for parameter in parameters]
    assert all(bool((parameter == 7.0).all()) for parameter in parameters)


def test_before_the_first_epoch_ends_a_snapshot_has_the_present_weights():
    trainer = make_trainer()
    found = trainer.snapshot()
    for own, copied in zip(trainer.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(own, copied)
        assert own is not copied
    assert found.metadata["target_per_source"] == trainer.batches.length_ratio


def test_a_snapshot_of_a_tied_model_is_tied():
    recipe = make_recipe(joint=True, tied=True, average=2)
    trainer = Trainer(recipe, make_corpus())
    trainer._end_epoch()
    model = trainer.snapshot().model
    assert model.output.weight is model.target_embedding.weight is model.source_embedding.weight


CORPUS = Corpus("toy", (Pair("a b", "x y z"),), (Pair("b", "z"),))
RECIPE = Recipe(Architecture(embedding=3, hidden=5), Data("words", "words"), Training(average=2))


def begin(seed=1):
    return Trainer(RECIPE.with_flags({"seed": seed}), CORPUS)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_the_seed_draws_the_model():
    assert same(begin(), begin())
    assert not same(begin(), begin(seed=2))
    assert (len(begin().source_vocabulary), len(begin().target_vocabulary)) == (6, 7)


def test_a_trained_model_is_a_beginning_and_is_not_changed():
    trained = begin(seed=2).snapshot()
    before = [parameter.clone() for parameter in trained.model.parameters()]
    with Trainer(RECIPE, Corpus("other", (Pair("q", "r"),), (Pair("q", "r"),)), init=trained) as tuned:
        assert same(tuned, trained)
        assert tuned.source_vocabulary is trained.source_vocabulary
        assert list(tuned.updates()) == [1]
    assert not same(tuned, trained)
    assert all(map(torch.equal, before, trained.model.parameters()))


def test_a_trainer_goes_on_from_its_state_with_the_same_bits():
    recipe, corpus = make_recipe(average=2, r_drop=1.0), make_corpus()
    with Trainer(recipe, corpus) as whole, Trainer(recipe, corpus) as other:
        updates = whole.updates()
        for _ in range(3):
            next(updates)
        whole.mean_loss()
        state = io.BytesIO()
        torch.save(whole.state_dict(), state)
        rest = list(updates)
        assert rest[0] == 4
        assert list(whole.updates())[-1] == whole.update_count == whole.total_updates
        figures = whole.last_epoch
        torch.manual_seed(99)
        state.seek(0)
        other.load_state_dict(torch.load(state, weights_only=True))
        assert list(other.updates()) == rest
        list(other.updates())
        assert same(other, whole)
        assert same(other.snapshot(), whole.snapshot())
        assert other.last_epoch == figures
        assert (other.epoch, other.batch) == (2, 0)


def test_an_epoch_that_is_left_early_goes_on_with_the_next_batch():
    with Trainer(make_recipe(), make_corpus()) as whole, Trainer(make_recipe(), make_corpus()) as parts:
        torch.manual_seed(3)
        wanted = list(whole.updates())
        torch.manual_seed(3)
        found = [next(parts.updates()), next(parts.updates()), *parts.updates()]
        assert found == wanted
        assert same(whole, parts)
        assert parts.last_epoch == whole.last_epoch


def test_losses_are_means_over_the_updates_since_the_last_call():
    with Trainer(make_recipe(), make_corpus()) as trainer:
        losses = [trainer.mean_loss() for _ in trainer.updates()]
        assert len(losses) == trainer.batches.per_epoch
        assert min(losses) < trainer.last_epoch.loss < max(losses)


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The pictures that would have been drawn: their own tests draw them, and here they would cost most of the time."""
    paths = []
    monkeypatch.setattr(monitoring, "save_curve", lambda entries, path: paths.append(path))
    monkeypatch.setattr(monitoring, "save_sample_alignment", lambda shown, epoch, folder: paths.append(epoch))
    return paths


def weights(out):
    return (out / "model.safetensors").read_bytes()


def log(out):
    """The log without what a clock decides."""
    lines = (out / "training" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


class Interruption(Exception):  # noqa: N818
    """What a user does with Ctrl-C."""


def interrupting(when):
    def listen(event):
        if when(event):
            raise Interruption

    return listen


def test_it_learns_and_tells_of_it(tmp_path, drawn):
    told = []
    no_dropout = {"embedding_dropout": 0.0, "state_dropout": 0.0, "readout_dropout": 0.0}
    recipe = make_recipe(epochs=12, embedding=16, hidden=24, learning_rate=0.02, **no_dropout)
    ended = train(recipe, make_corpus(120, 20), tmp_path / "model", on_event=told.append)
    assert isinstance(told[0], Started)
    assert (told[0].pairs, told[0].skipped, told[0].resumed_epoch, told[0].done) == (120, 0, None, 0)
    epochs = [event for event in told if isinstance(event, EpochEnded)]
    assert [event.epoch for event in epochs] == list(range(1, 13))
    assert epochs[-1].update == told[0].updates
    assert epochs[-1].loss < epochs[0].loss / 2
    assert told[-1] == ended
    assert isinstance(ended, TrainingResult)
    assert ended.bleu == max(event.bleu for event in epochs) > 30
    assert ended.history == tuple(epochs)
    loaded = TrainedModel.load(tmp_path / "model")
    best = epochs[ended.best_epoch - 1]
    assert (ended.bleu, ended.exact) == (best.bleu, best.exact)
    assert loaded.metadata["validation"] == {
        "epoch": best.epoch,
        "bleu": best.bleu,
        "exact": best.exact,
        "loss": best.valid_loss,
    }
    assert loaded.metadata["target_per_source"] > 0
    assert loaded.metadata["recipe"] == recipe.to_dict()
    assert loaded.metadata["length_penalty"] == ended.length_penalty
    assert [epoch for epoch in drawn if isinstance(epoch, int)] == [1, 2, 4, 8, ended.best_epoch]
    assert set(drawn[::2]) == {tmp_path / "model" / "training" / "curve.svg"}


def test_seeds_decide(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(make_recipe(epochs=1, seed=seed), make_corpus(), tmp_path / name)
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"save_every": 1, "average": 2, "r_drop": 1.0, "word_dropout": 0.1},
        {"source_unit": "bpe", "bpe_dropout": 0.3, "vocabulary_size": 24, "unit": "lstm"},
        {"save_seconds": 1e9, "save_every": 3, "attention": "none"},
    ],
    ids=["plain", "everything drawn", "subwords", "seldom saved"],
)
def test_an_interrupted_training_ends_as_the_uninterrupted_one(tmp_path, flags, monkeypatch):
    monkeypatch.setattr("regard.translation.training.REPORT_SECONDS", 0.0)
    recipe, corpus = make_recipe(epochs=3, **flags), make_corpus()
    train(recipe, corpus, tmp_path / "whole")
    stops = (
        lambda event: isinstance(event, TrainingProgress) and event.update == 4,
        lambda event: isinstance(event, EpochEnded) and event.epoch == 1,
        lambda event: isinstance(event, TrainingProgress) and event.epoch == 3,
        lambda event: isinstance(event, TrainingResult),
    )
    for stop in stops:
        with pytest.raises(Interruption):
            train(recipe, corpus, tmp_path / "parts", on_event=interrupting(stop))
        torch.manual_seed(99)  # whatever else has drawn meanwhile
    told = []
    train(recipe, corpus, tmp_path / "parts", on_event=told.append)
    assert told[0].resumed_epoch == 4  # nothing is left to do
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert log(tmp_path / "parts") == log(tmp_path / "whole")


def test_killed_at_any_moment_it_ends_bit_identical(tmp_path):
    command = [sys.executable, "-m", "tests.translation.killed", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4  # it went on from so many different places
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert log(tmp_path / "killed") == log(tmp_path / "whole")


def test_another_machine_warns_and_goes_on(tmp_path, monkeypatch):
    recipe, corpus = make_recipe(epochs=1), make_corpus()
    train(recipe, corpus, tmp_path)
    now = accelerator.environment(torch.device("cpu"))
    monkeypatch.setattr(accelerator, "environment", lambda device: {**now, "threads": "64"})
    told = []
    train(recipe, corpus, tmp_path, on_event=told.append)
    (warning,) = [event.text for event in told if isinstance(event, TrainingWarning)]
    assert warning == (
        f"The result will not be bit-identical to an uninterrupted training: threads was {now['threads']}, is 64."
    )


@pytest.mark.parametrize(
    ("what", "recipe", "corpus"),
    [("recipe", make_recipe(epochs=2), make_corpus()), ("corpus", make_recipe(epochs=1), make_corpus(seed=3))],
)
def test_another_recipe_or_other_data_are_refused(tmp_path, what, recipe, corpus):
    train(make_recipe(epochs=1), make_corpus(), tmp_path)
    before = weights(tmp_path)
    with refuses("out", f"another {what}"):
        train(recipe, corpus, tmp_path)
    assert weights(tmp_path) == before


@pytest.mark.parametrize(("name", "value", "unit"), [("most_tokens", 2, "characters"), ("vocabulary_size", 8, "bpe")])
def test_a_refused_training_leaves_no_folder(tmp_path, name, value, unit):
    with refuses(name, str(value)):
        train(make_recipe(source_unit=unit, **{name: value}), make_corpus(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_it_stops_when_nothing_gets_better_and_keeps_the_best(tmp_path):
    recipe = make_recipe(epochs=50, patience=3, learning_rate=1e-12)
    ended = train(recipe, make_corpus(), tmp_path)
    assert (ended.epochs, ended.best_epoch) == (4, 1)
    assert [entry["is_best"] for entry in log(tmp_path)] == [True, False, False, False]
    assert TrainedModel.load(tmp_path).metadata["validation"]["epoch"] == 1


@pytest.mark.parametrize(("flags", "pairs"), [({}, "training"), ({"batch_tokens": 100_000}, "validation")])
def test_a_training_that_diverges_says_so(tmp_path, flags, pairs):
    with refuses("learning_rate", f"on the {pairs} pairs: the training has diverged"):
        train(make_recipe(learning_rate=1e30, **flags), make_corpus(), tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_training_too_short_for_its_validations_is_validated_at_its_end(tmp_path):
    ended = train(make_recipe(epochs=2, validate_from=9), make_corpus(), tmp_path)
    assert ended.best_epoch == 2


def test_vocabularies_are_of_training_data_only(tmp_path):
    corpus = make_corpus()
    odd = replace(corpus, valid=(*corpus.valid, replace_words(corpus.valid[0])))
    train(make_recipe(epochs=1), odd, tmp_path)
    assert TrainedModel.load(tmp_path).source_vocabulary.encode("nineteen") == [UNKNOWN]


def replace_words(pair):
    return pair._replace(source="nineteen", target="19")


def test_fine_tuning_keeps_vocabularies_and_begins_from_the_weights(tmp_path):
    first = make_recipe(epochs=1)
    train(first, make_corpus(), tmp_path / "first")
    begun = TrainedModel.load(tmp_path / "first")
    other = Corpus("other", make_pairs(20, seed=9, longest=2), make_pairs(4, seed=8))
    recipe = make_recipe(epochs=1, learning_rate=1e-12)
    train(recipe, other, tmp_path / "second", init=TrainedModel.load(tmp_path / "first"))
    tuned = TrainedModel.load(tmp_path / "second")
    assert tuned.source_vocabulary.to_bytes() == begun.source_vocabulary.to_bytes()
    assert tuned.target_vocabulary.to_bytes() == begun.target_vocabulary.to_bytes()
    for old, new in zip(begun.model.parameters(), tuned.model.parameters(), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=1e-6)
    with torch.no_grad():
        tuned.model.readout.weight.add_(1.0)
    with refuses("out", "training", "another", "begun"):
        train(recipe, other, tmp_path / "second", init=tuned)


def test_attention_that_never_chooses_is_warned_of(tmp_path):
    told = []
    train(make_recipe(epochs=3, learning_rate=1e-12), make_corpus(), tmp_path, on_event=told.append)
    (warning,) = [event.text for event in told if isinstance(event, TrainingWarning)]
    assert warning.startswith("After 3 epochs attention is still uniform (")


def test_without_matplotlib_it_says_so_once_and_trains(tmp_path, monkeypatch, drawn):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = []
    train(make_recipe(), make_corpus(), tmp_path, on_event=told.append)
    warnings = [event.text for event in told if isinstance(event, TrainingWarning)]
    assert warnings == [
        'No pictures of the training are drawn: matplotlib is missing. Install it with pip install "regard[plots]".'
    ]
    assert drawn == []
    assert (tmp_path / "model.json").exists()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    recipe, corpus = make_recipe(), make_corpus()
    train(recipe, corpus, tmp_path / "whole")
    with pytest.raises(Interruption):
        train(recipe, corpus, tmp_path / "full", on_event=interrupting(lambda event: isinstance(event, EpochEnded)))

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with refuses("out", "device", "space", "left"):
            train(recipe, corpus, tmp_path / "full")
    train(recipe, corpus, tmp_path / "full")
    assert weights(tmp_path / "full") == weights(tmp_path / "whole")
