"""`writing`: the folder is made, and a system that refuses is named."""

import errno

from tests.refuses import refuses

from regard.translation.training.writing import writing


def test_the_folder_is_made(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    with writing(path):
        path.write_text("text")
    assert path.read_text() == "text"


def test_what_the_system_says_is_said_with_the_file(tmp_path):
    with refuses("out", "device", "folder", "space"):
        fail(tmp_path / "file")


def fail(path):
    with writing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
