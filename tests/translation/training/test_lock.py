"""One training at a time in a folder."""

import pytest

from regard.errors import RegardError
from regard.translation.training.lock import only_here


def test_a_second_one_is_refused_until_the_first_has_left(tmp_path):
    folder = tmp_path / "model" / "training"
    with only_here(folder):
        said = "where another process is training; needed a folder of its own"
        with pytest.raises(RegardError, match=said), only_here(folder):
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


def test_where_no_folder_can_be_it_is_said(tmp_path):
    (tmp_path / "file").touch()
    said = r"out: got .*file/training/lock \(Not a directory\); needed a folder"
    with pytest.raises(RegardError, match=said), only_here(tmp_path / "file" / "training"):
        pass
