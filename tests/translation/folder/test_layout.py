"""The names of files."""

from pathlib import Path

from regard.translation.folder.layout import incoming, vocabulary_files


def test_a_joint_vocabulary_is_one_file():
    assert vocabulary_files(True) == ("joint.vocabulary",)
    assert vocabulary_files(False) == ("source.vocabulary", "target.vocabulary")


def test_a_file_waits_beside_the_one_it_replaces():
    assert incoming(Path("model") / "model.json") == Path("model") / "model.json.incoming"
