"""Checkpoints: whole or not at all, and read without executing anything."""

import errno
import hashlib
import io
import os
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.refuses import refuses

from regard.translation.training import checkpoint


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
