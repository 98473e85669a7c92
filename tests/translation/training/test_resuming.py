"""A training resumes from its own checkpoint, and from nothing else."""

import json
import signal

import pytest
from tests.translation.training.toys import make_corpus, make_recipe

from regard.errors import RegardError
from regard.translation import folder
from regard.translation.training import Corpus, pictures, train
from regard.translation.training.events import Started, Stopped

NEVER = {"save_seconds": 1e9}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures take most of the time of a small training."""
    for name in ("curve", "alignment"):
        monkeypatch.setattr(pictures, name, lambda *_: None)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A trained model. Trainings that begin with it give tests access to their model."""
    out = tmp_path_factory.mktemp("first")
    train(make_recipe(epochs=1), make_corpus(), out)
    return out


def files(out):
    """The model, and the log without what a clock decides."""
    lines = (out / "training" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    log = [{**json.loads(line), "seconds": None} for line in lines]
    return (out / "model.safetensors").read_bytes(), (out / "model.json").read_bytes(), log


def during_update(number, loaded, action):
    """Call `action` in the forward pass of update `number`, counted from 1, of a training that begins with `loaded`."""
    calls = []

    def hook(model, _):
        if model.training:  # and not a validation
            calls.append(1)
            if len(calls) == number:
                action()

    loaded.model.register_forward_pre_hook(hook)
    return loaded


class Terminated(BaseException):
    """What the handler of SIGTERM in these tests raises."""


@pytest.fixture
def handler_of_sigterm():
    def handler(*_):
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    yield handler
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
@pytest.mark.parametrize("update", [1, 2, 4], ids=["first", "middle", "last of an epoch"])
def test_a_signal_waits_for_a_checkpoint_and_the_training_ends_in_the_same_bytes(
    first, tmp_path, handler_of_sigterm, number, error, update
):
    recipe, corpus = make_recipe(**NEVER), make_corpus()
    told = []
    train(recipe, corpus, tmp_path / "whole", init=folder.load(first), listen=told.append)
    assert told[0].updates == 8  # of two epochs
    init = during_update(update, folder.load(first), lambda: signal.raise_signal(number))
    with pytest.raises(error):
        train(recipe, corpus, tmp_path / "parts", init=init, listen=told.append)
    assert told[-1] == Stopped(update)
    assert not (tmp_path / "parts" / "model.json").exists()
    train(recipe, corpus, tmp_path / "parts", init=folder.load(first), listen=told.append)
    (*_, resumed) = [event for event in told if isinstance(event, Started)]
    assert (resumed.done, resumed.resumed_epoch) == (update, 1)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_second_signal_acts_at_once(first, tmp_path):
    def twice():
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    init = during_update(3, folder.load(first), twice)
    with pytest.raises(KeyboardInterrupt):
        train(make_recipe(**NEVER), make_corpus(), tmp_path, init=init)
    assert not (tmp_path / "training" / "checkpoint.pt").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_checkpoints_are_written_by_time_inside_an_epoch(first, tmp_path):
    def fail():
        raise ZeroDivisionError

    recipe, corpus = make_recipe(save_seconds=0.0), make_corpus()
    with pytest.raises(ZeroDivisionError):
        train(recipe, corpus, tmp_path, init=during_update(4, folder.load(first), fail))
    told = []
    train(recipe, corpus, tmp_path, init=folder.load(first), listen=told.append)
    assert told[0].done == 3


def test_a_pair_moved_from_training_to_validation_is_other_data(tmp_path):
    corpus = make_corpus()
    train(make_recipe(epochs=1), corpus, tmp_path)
    moved = Corpus("toy", corpus.train[:-1], (corpus.train[-1], *corpus.valid))
    with pytest.raises(RegardError, match="where a training with another corpus was begun"):
        train(make_recipe(epochs=1), moved, tmp_path)
