"""A training resumes from its own checkpoint, and from nothing else."""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from tests.refuses import refuses
from tests.translation.toy_trainings import make_corpus, make_recipe

from regard.translation import monitoring
from regard.translation.checkpoint import StopSignals
from regard.translation.dataset import Corpus
from regard.translation.model_folder import TrainedModel
from regard.translation.monitoring import Started, Stopped
from regard.translation.training import train

NEVER = {"save_seconds": 1e9}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures take most of the time of a small training."""
    for name in ("save_curve", "save_sample_alignment"):
        monkeypatch.setattr(monitoring, name, lambda *_: None)


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
    train(recipe, corpus, tmp_path / "whole", init=TrainedModel.load(first), on_event=told.append)
    assert told[0].updates == 8  # of two epochs
    init = during_update(update, TrainedModel.load(first), lambda: signal.raise_signal(number))
    with pytest.raises(error):
        train(recipe, corpus, tmp_path / "parts", init=init, on_event=told.append, signals=StopSignals())
    assert told[-1] == Stopped(update)
    assert not (tmp_path / "parts" / "model.json").exists()
    train(recipe, corpus, tmp_path / "parts", init=TrainedModel.load(first), on_event=told.append)
    (*_, resumed) = [event for event in told if isinstance(event, Started)]
    assert (resumed.done, resumed.resumed_epoch) == (update, 1)
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_a_second_signal_acts_at_once(first, tmp_path):
    def twice():
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    init = during_update(3, TrainedModel.load(first), twice)
    with pytest.raises(KeyboardInterrupt):
        train(make_recipe(**NEVER), make_corpus(), tmp_path, init=init, signals=StopSignals())
    assert not (tmp_path / "training" / "checkpoint.pt").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_checkpoints_are_written_by_time_inside_an_epoch(first, tmp_path):
    def fail():
        raise ZeroDivisionError

    recipe, corpus = make_recipe(save_seconds=0.0), make_corpus()
    with pytest.raises(ZeroDivisionError):
        train(recipe, corpus, tmp_path, init=during_update(4, TrainedModel.load(first), fail))
    told = []
    train(recipe, corpus, tmp_path, init=TrainedModel.load(first), on_event=told.append)
    assert told[0].done == 3


def test_a_pair_moved_from_training_to_validation_is_other_data(tmp_path):
    corpus = make_corpus()
    train(make_recipe(epochs=1), corpus, tmp_path)
    moved = Corpus("toy", corpus.train[:-1], (corpus.train[-1], *corpus.valid))
    with refuses("out", "training", "another", "corpus"):
        train(make_recipe(epochs=1), moved, tmp_path)


@pytest.fixture
def trained(first, tmp_path):
    """A copy of the first training, which is resumed by the same recipe and data."""
    return shutil.copytree(first, tmp_path / "model")


def resume(out):
    return train(make_recipe(epochs=1), make_corpus(), out)


def forge_checkpoint(out, change):
    """Replace the state of a checkpoint by what `change` makes of it; the digest agrees."""
    path = out / "training" / "checkpoint.pt"
    state = torch.load(io.BytesIO(path.read_bytes()[32:]), weights_only=True)
    buffer = io.BytesIO()
    torch.save(change(state), buffer)
    path.write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())


def with_value(value, *keys):
    """A change of a state: another value at a place in it; `...` deletes the place."""

    def change(state):
        place = state
        for key in keys[:-1]:
            place = place[key]
        if value is ...:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
        return state

    return change


FORGED = [
    *(with_value(wrong, key) for key in ("trainer", "best", "seconds") for wrong in (..., [], {}, 7, "x")),
    *(with_value(wrong, "trainer", key) for key in ("sums", "random") for wrong in (..., [], {}, 7, "x")),
    *(with_value(wrong, "environment") for wrong in (..., [], {"torch": 2}, 7, "x")),
    *(with_value(wrong, "trainer", key) for key in ("model", "moments", "average") for wrong in (..., 7, "x", [[1]])),
    *(with_value(wrong, "trainer", "epoch") for wrong in (-5, 1.0, True, "1", 2)),
    *(with_value(wrong, "trainer", key) for key in ("batch", "update") for wrong in (-1, 10**30, None)),
    with_value(float("nan"), "seconds"),
    with_value({"epoch": 1}, "best"),
    with_value(torch.zeros(3), "trainer", "model", "output.bias"),
    with_value(torch.zeros(3), "trainer", "moments", 0, "exp_avg"),
    with_value({}, "trainer", "moments", -1),
    with_value([[torch.zeros(2)]], "trainer", "average"),
    with_value([{"cpu": torch.zeros(4, dtype=torch.uint8)}], "trainer", "random"),
    with_value([(1.0, 2.0)], "trainer", "sums"),
    *(with_value(wrong, "fingerprint") for wrong in (..., 7, [], {"recipe": torch.ones(2)})),
]


@pytest.mark.parametrize("change", FORGED, ids=range(len(FORGED)))
def test_a_checkpoint_of_another_structure_is_refused(trained, change):
    forge_checkpoint(trained, change)
    before = files(trained)
    with refuses("out", "checkpoint", "another", "damaged"):
        resume(trained)
    assert files(trained) == before


@pytest.mark.parametrize("change", [lambda _: {}, with_value(..., "format"), with_value(1, "format")])
def test_a_checkpoint_of_another_version_is_refused(trained, change):
    forge_checkpoint(trained, change)
    with refuses("out", "checkpoint", "another", "version"):
        resume(trained)


@pytest.mark.parametrize("state", [[], "state", 7], ids=repr)
def test_a_checkpoint_without_a_dictionary_is_damaged(trained, state):
    forge_checkpoint(trained, lambda _: state)
    with refuses("out", "checkpoint", "damaged"):
        resume(trained)


def test_a_model_of_another_training_in_the_folder_is_refused(trained):
    page = TrainedModel.load(trained)
    replace(page, metadata={"validation": 3}).save(trained)
    with refuses("out", "training", "model", "write"):
        resume(trained)


@pytest.mark.parametrize("name", ["lock", "recipe.toml", "log.jsonl", "checkpoint.pt.incoming", "log.jsonl.incoming"])
def test_a_training_does_not_write_through_a_link_in_its_folder(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("kept\n")
    state = tmp_path / "model" / "training"
    state.mkdir(parents=True)
    (state / name).symlink_to(precious)
    is_temporary = name.endswith("incoming")  # these are removed before they are written
    with nullcontext() if is_temporary else refuses("out", f"{state / name}, which is a symbolic link"):
        resume(tmp_path / "model")
    assert precious.read_text() == "kept\n"


def test_a_picture_is_not_drawn_through_a_link(trained, tmp_path, monkeypatch):
    monkeypatch.undo()  # draw the pictures
    pytest.importorskip("matplotlib")
    precious = tmp_path / "precious"
    precious.write_text("kept\n")
    (trained / "training" / "curve.svg").unlink(missing_ok=True)
    (trained / "training" / "curve.svg").symlink_to(precious)
    with refuses("out", "curve.svg"):
        resume(trained)
    assert precious.read_text() == "kept\n"


@pytest.mark.parametrize("name", ["model.safetensors.incoming", "model.json.incoming", "source.vocabulary.incoming"])
def test_a_model_is_not_written_through_a_link(tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("kept\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).symlink_to(precious)
    resume(tmp_path / "model")
    assert precious.read_text() == "kept\n"
    assert not (tmp_path / "model" / name).is_symlink()


@pytest.mark.parametrize("name", ["checkpoint.pt", "log.jsonl", "lock"])
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_pipes_and_devices_in_the_folder_are_refused_at_once(trained, name, kind):
    path = trained / "training" / name
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with refuses("out", "device", "pipe"):
        resume(trained)


def test_without_file_locks_training_is_refused_and_everything_else_works(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with refuses("out", "cannot", "folder", "locked"):
        resume(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    code = "import sys; sys.modules['fcntl'] = None; import regard.cli.train, regard.translation.training"
    subprocess.run([sys.executable, "-c", code], check=True)
