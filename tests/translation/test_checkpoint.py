"""Checkpoints, the files that a training writes, the lock of its folder, and its fingerprint."""

import errno
import fcntl
import hashlib
import io
import os
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.refuses import refuses
from tests.translation.examples import make_model

from regard.errors import RegardError
from regard.translation import checkpoint
from regard.translation.checkpoint import LOCK_NAME, Best, check_same_run, folder_lock, run_fingerprint, writing_file
from regard.translation.dataset import Corpus, Pair
from regard.translation.model_folder import TrainedModel
from regard.translation.recipe import Recipe


def state(number):
    return {"place": [number, 0, number], "model": {"weight": torch.full((3,), float(number))}}


def number_in(folder):
    loaded = checkpoint.load(folder)
    assert loaded is not None
    assert loaded["model"]["weight"].tolist() == [float(loaded["place"][0])] * 3
    return loaded["place"][0]


def test_there_and_back(tmp_path):
    assert checkpoint.load(tmp_path / "new") is None
    for number in (1, 2, 3):
        checkpoint.save(tmp_path / "new", state(number))
        assert number_in(tmp_path / "new") == number
    assert {path.name for path in (tmp_path / "new").iterdir()} == {checkpoint.NAME, checkpoint.PREVIOUS}


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (Path, "open"), (Path, "replace")], ids=str)
def test_a_full_disk_is_said_and_the_last_checkpoint_survives(tmp_path, monkeypatch, owner, name):
    checkpoint.save(tmp_path, state(1))
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, full)
        with refuses("out", f"{tmp_path} (No space left on device)", "goes on from the checkpoint before"):
            checkpoint.save(tmp_path, state(2))
    assert number_in(tmp_path) == 1
    assert not list(tmp_path.glob("*incoming*"))
    checkpoint.save(tmp_path, state(3))
    assert number_in(tmp_path) == 3


def test_killed_between_the_two_renames_the_one_before_is_the_last(tmp_path):
    for number in (1, 2):
        checkpoint.save(tmp_path, state(number))
    (tmp_path / checkpoint.NAME).replace(tmp_path / checkpoint.PREVIOUS)
    assert number_in(tmp_path) == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_one_is_refused_and_the_previous_one_named(tmp_path, damage):
    for number in (1, 2):
        checkpoint.save(tmp_path, state(number))
    path = tmp_path / checkpoint.NAME
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes({"truncated": content[: len(content) // 3], "flipped": content, "emptied": b""}[damage])
    with refuses("out", f"a damaged checkpoint, {path}", "Rename checkpoint.previous.pt to checkpoint.pt"):
        checkpoint.load(tmp_path)
    (tmp_path / checkpoint.PREVIOUS).replace(path)
    assert number_in(tmp_path) == 1


@pytest.mark.parametrize("name", [checkpoint.NAME, checkpoint.PREVIOUS])
def test_one_that_cannot_be_read_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with refuses("out", f"{tmp_path / name} (Is a directory)"):
        checkpoint.load(tmp_path)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("pack", [torch.save, partial(pickle.dump, protocol=2)], ids=["torch", "pickle"])
def test_nothing_in_it_is_executed(tmp_path, monkeypatch, pack):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    pack({"place": Bomb()}, buffer)
    payload = buffer.getvalue()
    (tmp_path / checkpoint.NAME).write_bytes(hashlib.sha256(payload).digest() + payload)
    with refuses("out", "checkpoint", "damaged", "Start"):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_the_folder_is_made(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    with writing_file(path):
        path.write_text("text")
    assert path.read_text() == "text"


def test_what_the_system_says_is_said_with_the_file(tmp_path):
    with refuses("out", "device", "folder", "space"):
        fail(tmp_path / "file")


def fail(path):
    with writing_file(path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_second_one_is_refused_until_the_first_has_left(tmp_path):
    folder = tmp_path / "model" / "training"
    with folder_lock(folder):
        with refuses("out", "where another process is training"), folder_lock(folder):
            pass
        with folder_lock(folder, wanted=False):  # shares the training of the one that holds it
            pass
    with folder_lock(folder):
        pass


def test_an_error_inside_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), folder_lock(tmp_path):
        raise ZeroDivisionError
    with folder_lock(tmp_path):
        pass


REFUSAL = RegardError("most_tokens", got="2", needed="more", repair="Raise it.")


def test_a_refusal_inside_leaves_nothing_of_a_folder_that_was_not_there(tmp_path):
    folder = tmp_path / "new" / "model" / "training"
    with refuses("most_tokens"), folder_lock(folder):
        raise REFUSAL
    assert list(tmp_path.iterdir()) == []
    with folder_lock(folder):
        pass


def write_and_refuse(folder):
    (folder / "log").touch()
    raise REFUSAL


def test_a_refusal_inside_leaves_what_was_there_or_was_written(tmp_path):
    folder = tmp_path / "model" / "training"
    with refuses("most_tokens"), folder_lock(folder):
        write_and_refuse(folder)
    with refuses("most_tokens"), folder_lock(folder):
        raise REFUSAL
    assert {path.name for path in folder.iterdir()} == {"lock", "log"}
    (tmp_path / "empty").mkdir()
    with refuses("most_tokens"), folder_lock(tmp_path / "empty" / "training"):
        raise REFUSAL
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_lock_that_was_removed_after_it_was_opened_is_not_ours(tmp_path, monkeypatch):
    flock = fcntl.flock

    def too_late(file, how):
        (tmp_path / LOCK_NAME).unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with refuses("out", "where another process is training"), folder_lock(tmp_path):
        pass


def test_where_no_folder_can_be_it_is_said(tmp_path):
    (tmp_path / "file").touch()
    with refuses("out", "file/training/lock (Not a directory)"), folder_lock(tmp_path / "file" / "training"):
        pass


CORPUS = Corpus("toy", (Pair("a", "b"),), (Pair("c", "d"),))
OTHER = Corpus("toy", (Pair("a", "b"),), (Pair("c", "e"),))


def beginning(seed):
    return TrainedModel(make_model(seed=seed), None, None, {})


IDENTITY = run_fingerprint(Recipe(), CORPUS, beginning(0), 1)


def test_the_same_training_goes_on():
    check_same_run(
        IDENTITY, run_fingerprint(Recipe(), Corpus("renamed", CORPUS.train, CORPUS.valid), beginning(0), 1), Path()
    )


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("recipe", lambda: run_fingerprint(Recipe().with_flags({"epochs": 7}), CORPUS, beginning(0), 1)),
        ("corpus", lambda: run_fingerprint(Recipe(), OTHER, beginning(0), 1)),
        ("init", lambda: run_fingerprint(Recipe(), CORPUS, beginning(1), 1)),
        ("init", lambda: run_fingerprint(Recipe(), CORPUS, None, 1)),
        ("processes", lambda: run_fingerprint(Recipe(), CORPUS, beginning(0), 2)),
    ],
)
def test_another_one_is_refused_by_what_differs(key, wanted):
    with refuses("out", f"another {key}"):
        check_same_run(IDENTITY, wanted(), Path("model"))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Best(1, 30.0, 1.0, 9.0), Best(2, 29.0, 5.0, 1.0)),
        (Best(1, 30.0, 2.0, 9.0), Best(2, 30.0, 1.0, 1.0)),
        (Best(1, 30.0, 2.0, 1.0), Best(2, 30.0, 2.0, 9.0)),
        (Best(1, 0.0, 0.0, 50.0), Best()),
    ],
)
def test_bleu_counts_first_then_exactness_then_the_loss(better, worse):
    assert better.beats(worse)
    assert not worse.beats(better)
    assert not better.beats(better)
