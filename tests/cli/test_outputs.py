"""Files to be written: what could only fail after the work is refused before it."""

import os

from tests.refuses import refuses

from regard.cli.outputs import check_can_write, check_not_read


def test_what_can_be_written_passes(tmp_path):
    (tmp_path / "there.json").touch()
    check_can_write(out=tmp_path / "new.json", figure=tmp_path / "there.json", predictions=None)


def test_a_device_is_left_to_writing():
    from pathlib import Path

    check_can_write(out=Path(os.devnull))


def test_a_missing_folder_is_named_with_its_repair(tmp_path):
    path = tmp_path / "no" / "x.json"
    with refuses("out", f"{path} (there is no folder {path.parent})", f"mkdir -p {path.parent}"):
        check_can_write(out=path)


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path):
    with refuses("figure", "folder"):
        check_can_write(figure=tmp_path)
    (tmp_path / "file").touch()
    with refuses("out", "folder", "file"):
        check_can_write(out=tmp_path / "file" / "x")


def test_a_closed_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with refuses("out", f"no right to write to {tmp_path}"):
        check_can_write(out=tmp_path / "x")


def test_what_is_read_is_not_written(tmp_path):
    data = tmp_path / "data.csv"
    data.touch()
    with refuses("predictions", "data.csv"):
        check_can_write((None, data), out=None, predictions=tmp_path / "." / "data.csv")


def test_a_folder_that_is_read_is_not_written_into(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "same").symlink_to(model)
    for path in (model / "new", tmp_path / "same" / "new", model / "training" / "log"):
        with refuses("out", f"{path} in the folder {model}, which is read"):
            check_not_read((None, model), out=path, figure=None)
    with refuses("out", f"{model}, which is read", "another file"):
        check_not_read((model,), out=model)
    check_not_read((model,), out=tmp_path / "model.json", figure=tmp_path / "modelling" / "x")


def test_a_link_to_what_is_read_is_not_written(tmp_path):
    """A link to a file of the folder, and a file that the folder only links to."""
    model, kept = tmp_path / "model", tmp_path / "kept.json"
    model.mkdir()
    kept.touch()
    (model / "model.json").symlink_to(kept)
    (tmp_path / "link").symlink_to(model / "model.json")
    for path in (kept, tmp_path / "link", model / "model.json"):
        with refuses("out", f"{path}, which is read", "another file"):
            check_can_write((model,), out=path)
