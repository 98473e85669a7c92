"""A training: it learns, it keeps its best, it stops, and it goes on after every interruption as if there were none."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.refuses import refuses
from tests.translation.training.toys import make_corpus, make_pairs, make_recipe

from regard.translation import accelerator, folder, monitoring
from regard.translation.dataset import Corpus
from regard.translation.monitoring import Advanced, Ended, EpochEnded, Started, Warned
from regard.translation.training import train
from regard.translation.vocabulary import UNKNOWN

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The pictures that would have been drawn: their own tests draw them, and here they would cost most of the time."""
    paths = []
    monkeypatch.setattr(monitoring, "curve", lambda entries, path: paths.append(path))
    monkeypatch.setattr(monitoring, "alignment", lambda shown, epoch, folder: paths.append(epoch))
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
    recipe = make_recipe(epochs=12, embedding_dropout=0.0, state_dropout=0.0, readout_dropout=0.0, learning_rate=0.03)
    ended = train(recipe, make_corpus(120, 20), tmp_path / "model", listen=told.append)
    assert isinstance(told[0], Started)
    assert (told[0].pairs, told[0].left_out, told[0].resumed_epoch, told[0].done) == (120, 0, None, 0)
    epochs = [event for event in told if isinstance(event, EpochEnded)]
    assert [event.epoch for event in epochs] == list(range(1, 13))
    assert epochs[-1].update == told[0].updates
    assert epochs[-1].loss < epochs[0].loss / 2
    assert told[-1] == ended
    assert isinstance(ended, Ended)
    assert ended.bleu == max(event.bleu for event in epochs) > 30
    assert ended.history == tuple(epochs)
    loaded = folder.load(tmp_path / "model")
    best = epochs[ended.best_epoch - 1]
    assert (ended.bleu, ended.exact) == (best.bleu, best.exact)
    assert loaded.facts["validation"] == {
        "epoch": best.epoch,
        "bleu": best.bleu,
        "exact": best.exact,
        "loss": best.valid_loss,
    }
    assert loaded.facts["target_per_source"] > 0
    assert loaded.facts["recipe"] == recipe.to_dict()
    assert loaded.facts["length_penalty"] == ended.length_penalty
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
    monkeypatch.setattr("regard.translation.training.loop.TELL_EVERY", 0.0)
    recipe, corpus = make_recipe(epochs=3, **flags), make_corpus()
    train(recipe, corpus, tmp_path / "whole")
    stops = (
        lambda event: isinstance(event, Advanced) and event.update == 4,
        lambda event: isinstance(event, EpochEnded) and event.epoch == 1,
        lambda event: isinstance(event, Advanced) and event.epoch == 3,
        lambda event: isinstance(event, Ended),
    )
    for stop in stops:
        with pytest.raises(Interruption):
            train(recipe, corpus, tmp_path / "parts", listen=interrupting(stop))
        torch.manual_seed(99)  # whatever else has drawn meanwhile
    told = []
    train(recipe, corpus, tmp_path / "parts", listen=told.append)
    assert told[0].resumed_epoch == 4  # nothing is left to do
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert log(tmp_path / "parts") == log(tmp_path / "whole")


def test_killed_at_any_moment_it_ends_bit_identical(tmp_path):
    command = [sys.executable, "-m", "tests.translation.training.killed", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4  # it went on from so many different places
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert log(tmp_path / "killed") == log(tmp_path / "whole")


def test_another_machine_warns_and_goes_on(tmp_path, monkeypatch):
    recipe, corpus = make_recipe(epochs=1), make_corpus()
    train(recipe, corpus, tmp_path)
    now = accelerator.environment(torch.device("cpu"))
    monkeypatch.setattr(accelerator, "facts", lambda device: {**now, "threads": "64"})
    told = []
    train(recipe, corpus, tmp_path, listen=told.append)
    (warning,) = [event.text for event in told if isinstance(event, Warned)]
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
    assert folder.load(tmp_path).facts["validation"]["epoch"] == 1


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
    assert folder.load(tmp_path).source_vocabulary.encode("nineteen") == [UNKNOWN]


def replace_words(pair):
    return pair._replace(source="nineteen", target="19")


def test_fine_tuning_keeps_vocabularies_and_begins_from_the_weights(tmp_path):
    first = make_recipe(epochs=1)
    train(first, make_corpus(), tmp_path / "first")
    begun = folder.load(tmp_path / "first")
    other = Corpus("other", make_pairs(20, seed=9, longest=2), make_pairs(4, seed=8))
    recipe = make_recipe(epochs=1, learning_rate=1e-12)
    train(recipe, other, tmp_path / "second", init=folder.load(tmp_path / "first"))
    tuned = folder.load(tmp_path / "second")
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
    train(make_recipe(epochs=3, learning_rate=1e-12), make_corpus(), tmp_path, listen=told.append)
    (warning,) = [event.text for event in told if isinstance(event, Warned)]
    assert warning.startswith("After 3 epochs attention is still uniform (")


def test_without_matplotlib_it_says_so_once_and_trains(tmp_path, monkeypatch, drawn):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = []
    train(make_recipe(), make_corpus(), tmp_path, listen=told.append)
    warnings = [event.text for event in told if isinstance(event, Warned)]
    assert warnings == [
        'No pictures of the training are drawn: matplotlib is missing. Install it with pip install "regard[plots]".'
    ]
    assert drawn == []
    assert (tmp_path / "model.json").exists()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    recipe, corpus = make_recipe(), make_corpus()
    train(recipe, corpus, tmp_path / "whole")
    with pytest.raises(Interruption):
        train(recipe, corpus, tmp_path / "full", listen=interrupting(lambda event: isinstance(event, EpochEnded)))

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with refuses("out", "device", "space", "left"):
            train(recipe, corpus, tmp_path / "full")
    train(recipe, corpus, tmp_path / "full")
    assert weights(tmp_path / "full") == weights(tmp_path / "whole")
