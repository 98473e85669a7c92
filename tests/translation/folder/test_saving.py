"""Saving: whatever interrupts it, a whole model can be read, the old one or the new."""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.refuses import refuses
from tests.translation.models import random_model, save_model

from regard.translation.folder import load, save, saving
from regard.translation.vocabulary import learn


class PowerCutError(Exception):
    """The test's own end of the world."""


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def cut_after(monkeypatch, count, failure):
    """Let so many writes, renames and flushes succeed, then fail."""
    left = [count]

    def limited(act):
        def either(*arguments, **options):
            if left[0] == 0:
                raise failure
            left[0] -= 1
            return act(*arguments, **options)

        return either

    monkeypatch.setattr(Path, "replace", limited(Path.replace))
    monkeypatch.setattr(Path, "unlink", limited(Path.unlink))
    monkeypatch.setattr(saving, "_write", limited(saving._write))
    monkeypatch.setattr(os, "fsync", limited(lambda handle: None))
    return left


@pytest.mark.parametrize("joint", [False, True])
def test_a_cut_at_any_moment_leaves_a_whole_model(tmp_path, monkeypatch, joint):
    old, new, third = (random_model(seed, joint=joint) for seed in (1, 2, 3))
    new = type(new)(new.model, new.source_vocabulary, new.target_vocabulary, {"seed": 2})
    seen = set()
    for count in range(100):
        folder = save_model(tmp_path / str(count), old)
        with monkeypatch.context() as patch:
            left = cut_after(patch, count, PowerCutError())
            try:
                save_model(folder, new)
                complete = left[0] > 0
            except PowerCutError:
                complete = False
        found = load(folder)
        expected = new if found.facts else old
        assert same(weights(found.model), weights(expected.model))
        seen.add(bool(found.facts))
        save_model(folder, third)  # whatever was left behind is no obstacle
        assert same(weights(load(folder).model), weights(third.model))
        assert not list(folder.glob("*.incoming"))
        if complete:
            break
    assert complete
    assert seen == {False, True}


def test_two_cuts_in_a_row_leave_a_whole_model(tmp_path, monkeypatch):
    old, new, third = (random_model(seed) for seed in (1, 2, 3))
    for first in range(0, 20, 2):
        for second in range(0, 20, 4):
            folder = save_model(tmp_path / f"{first}-{second}", old)
            for count, model in ((first, new), (second, third)):
                with monkeypatch.context() as patch:
                    cut_after(patch, count, PowerCutError())
                    with suppress(PowerCutError):
                        save_model(folder, model)
            found = weights(load(folder).model)
            assert any(same(found, weights(one.model)) for one in (old, new, third))


def test_a_full_disk_is_a_clear_error_and_the_old_model_survives(tmp_path, monkeypatch):
    old = random_model(1)
    folder = save_model(tmp_path, old)
    with monkeypatch.context() as patch:
        cut_after(patch, 2, OSError(errno.ENOSPC, "No space left on device"))
        with refuses("folder", "device", "loaded", "space"):
            save_model(folder, random_model(2))
    assert same(weights(load(folder).model), weights(old.model))


def test_a_shared_tensor_is_stored_once(tmp_path):
    apart, tied = random_model(joint=False), random_model(joint=True, tied=True)
    sizes = [
        (save_model(tmp_path / name, one) / "model.safetensors").stat().st_size
        for name, one in (("apart", apart), ("tied", tied))
    ]
    count = sum(parameter.numel() for parameter in tied.model.parameters())
    assert 4 * count < sizes[1] < 4 * count + 4000 < sizes[0] + 4000


def test_other_files_of_the_folder_are_left_alone_and_old_vocabularies_go(tmp_path):
    save_model(tmp_path, random_model(joint=False))
    (tmp_path / "log.jsonl").write_text("kept")
    save_model(tmp_path, random_model(joint=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "joint.vocabulary",
        "log.jsonl",
        "model.json",
        "model.safetensors",
    ]


def test_the_same_model_is_the_same_folder(tmp_path):
    for name in ("one", "two"):
        save_model(tmp_path / name, random_model(5, facts={"corpus": "toy"}))
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert json.loads((tmp_path / "one" / "model.json").read_text())["facts"] == {"corpus": "toy"}


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    one, joint = random_model(), random_model(joint=True)
    words = learn("characters", ["abcdefgh"])
    model, source, target = one.model, one.source_vocabulary, one.target_vocabulary
    folder = tmp_path / "model"
    with refuses("source_vocabulary", f"{len(words)} ids", f"needed {len(source)}"):
        save(folder, model, words, target, {})
    with refuses("target_vocabulary", f"{len(words)} ids"):
        save(folder, model, source, words, {})
    other = learn("characters", ["vwxyz"])
    with refuses("target_vocabulary", "vocabulary", "another", "source"):
        save(folder, joint.model, joint.source_vocabulary, other, {})
    with refuses("facts", "something", "cannot", "JSON"):
        save(folder, model, source, target, {"loss": torch.ones(1)})
    with refuses("model", "torch.float64", "torch.float32"):
        save(folder, random_model().model.double(), source, target, {})
    assert not folder.exists()
    taken = tmp_path / "taken"
    taken.touch()
    with refuses("folder", "exists", "taken", "File"):
        save(taken, model, source, target, {})
