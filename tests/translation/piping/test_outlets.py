"""Lines out: UTF-8, at once, and quiet when the reader leaves."""

import errno
import io
import os
import sys

import pytest
from tests.refuses import refuses

from regard.translation.piping.outlets import Outlet, ReaderLeftError, outlet


def test_standard_output_is_utf8_whatever_the_locale_says(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with outlet("output", None) as lines:
        lines.write("é", "b")
        assert raw.getvalue() == "é\nb\n".encode()


def test_a_file_can_be_read_while_it_is_written(tmp_path):
    path = tmp_path / "out"
    with outlet("output", path) as lines:
        lines.write("日本")
        assert path.read_text(encoding="utf-8") == "日本\n"
        lines.write("b")
    assert path.read_text(encoding="utf-8") == "日本\nb\n"


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as file:
        with pytest.raises(ReaderLeftError):
            Outlet("output", None, file).write("x")
        file.write(b"what was left in the buffer goes nowhere, and nobody complains")


def test_what_the_system_refuses_is_explained(tmp_path):
    with refuses("output", "nowhere/x (No such file or directory)"), outlet("output", tmp_path / "nowhere" / "x"):
        pass

    class Full(io.BytesIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    for path, name in ((tmp_path / "x", "x"), (None, "standard output")):
        with refuses("output", f"{name} (No space left on device)"):
            Outlet("output", path, Full()).write("x")


def test_a_closed_standard_output_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with refuses("output", "standard", "closed", "output"), outlet("output", None):
        pass
