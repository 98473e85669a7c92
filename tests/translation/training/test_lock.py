"""One training at a time in a folder."""

import fcntl

import pytest
from tests.refuses import refuses

from regard.errors import RegardError
from regard.translation.training.lock import NAME, only_here


def test_a_second_one_is_refused_until_the_first_has_left(tmp_path):
    folder = tmp_path / "model" / "training"
    with only_here(folder):
        with refuses("out", "where another process is training"), only_here(folder):
            pass
        with only_here(folder, wanted=False):  # shares the training of the one that holds it
            pass
    with only_here(folder):
        pass


def test_an_error_inside_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), only_here(tmp_path):
        raise ZeroDivisionError
    with only_here(tmp_path):
        pass


REFUSAL = RegardError("most_tokens", got="2", needed="more", repair="Raise it.")


def test_a_refusal_inside_leaves_nothing_of_a_folder_that_was_not_there(tmp_path):
    folder = tmp_path / "new" / "model" / "training"
    with refuses("most_tokens"), only_here(folder):
        raise REFUSAL
    assert list(tmp_path.iterdir()) == []
    with only_here(folder):
        pass


def write_and_refuse(folder):
    (folder / "log").touch()
    raise REFUSAL


def test_a_refusal_inside_leaves_what_was_there_or_was_written(tmp_path):
    folder = tmp_path / "model" / "training"
    with refuses("most_tokens"), only_here(folder):
        write_and_refuse(folder)
    with refuses("most_tokens"), only_here(folder):
        raise REFUSAL
    assert {path.name for path in folder.iterdir()} == {"lock", "log"}
    (tmp_path / "empty").mkdir()
    with refuses("most_tokens"), only_here(tmp_path / "empty" / "training"):
        raise REFUSAL
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_lock_that_was_removed_after_it_was_opened_is_not_ours(tmp_path, monkeypatch):
    flock = fcntl.flock

    def too_late(file, how):
        (tmp_path / NAME).unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with refuses("out", "where another process is training"), only_here(tmp_path):
        pass


def test_where_no_folder_can_be_it_is_said(tmp_path):
    (tmp_path / "file").touch()
    with refuses("out", "file/training/lock (Not a directory)"), only_here(tmp_path / "file" / "training"):
        pass
