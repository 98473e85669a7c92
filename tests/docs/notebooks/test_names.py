"""The three notebooks are named like the sections of the notes, and each has its file of tests here."""

from pathlib import Path

from tests.docs.pages import NOTEBOOKS


def test_they_are_named_like_the_sections_of_the_notes():
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["bahdanau", "multi-head", "pooling"]
    assert all((Path(__file__).parent / f"test_{name.replace('-', '_')}.py").exists() for name in names)
