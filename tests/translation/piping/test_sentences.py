"""Sentences from arguments, files and pipes: UTF-8 whatever the locale, a hint for a keyboard."""

import gzip
import sys
from pathlib import Path

import pytest
from tests.refuses import refuses
from tests.translation.piping.streams import standard_input

from regard.translation.piping.sentences import HINT, comes_from_keyboard, sentences_of
from regard.translation.piping.wishes import Wishes

MODEL = (Path("model"),)


def test_arguments_come_as_they_are():
    assert list(sentences_of(Wishes(MODEL, sentences=("é a", "", "日本")))) == ["é a", "", "日本"]


@pytest.mark.parametrize("code", [0xDCFF, 0xD800], ids=["a byte of the command line", "half a character"])
def test_an_argument_that_is_not_utf8_is_refused(code):
    with refuses("sentences", "byte 2"):
        list(sentences_of(Wishes(MODEL, sentences=("a", "b" + chr(code)))))


def test_a_file_may_be_gzipped_and_empty_lines_count(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(gzip.compress("é\r\n\nb".encode()))
    assert list(sentences_of(Wishes(MODEL, input=path))) == ["é", "", "b"]


def test_a_pipe_is_utf8_whatever_the_locale_says(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", standard_input("\ufeffé\n\nb\n".encode()))
    assert [line.strip() for line in sentences_of(Wishes(MODEL))] == ["é", "", "b"]
    assert capsys.readouterr().err == ""


def test_a_broken_line_of_a_pipe_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input(b"fine\nb\xffd\n"))
    with refuses("input", "byte 2"):
        list(sentences_of(Wishes(MODEL)))


def test_a_pipe_whose_lines_end_with_carriage_returns_alone_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input(b"two\rthree\r"))
    with refuses("input", "carriage", "standard", "returns"):
        list(sentences_of(Wishes(MODEL)))


def test_a_keyboard_gets_a_hint(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", standard_input(b"ab\n", keyboard=True))
    wishes = Wishes(MODEL)
    assert comes_from_keyboard(wishes)
    assert not comes_from_keyboard(Wishes(MODEL, sentences=("a",)))
    assert not comes_from_keyboard(Wishes(MODEL, input=Path("in")))
    assert list(sentences_of(wishes)) == ["ab"]
    assert capsys.readouterr().err == HINT + "\n"


def test_a_file_that_is_not_there_is_refused():
    with refuses("input", "directory", "nowhere", "file"):
        list(sentences_of(Wishes(MODEL, input=Path("nowhere"))))


def test_a_closed_standard_input_is_told_where_it_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with refuses("input", "standard", "closed", "input"):
        comes_from_keyboard(Wishes((Path("model"),)))
    assert not comes_from_keyboard(Wishes((Path("model"),), sentences=("one",)))
