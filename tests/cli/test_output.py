"""What a command writes arrives, or is refused in one line before it works for minutes."""

import errno
import io
import os
import sys
import warnings
from pathlib import Path

import pytest
from tests.refuses import refuses

from regard.cli.output import (
    LineWriter,
    check_can_write,
    check_not_read,
    checked_stdout,
    one_line_warnings,
    open_output,
    spinner,
)


def test_what_can_be_written_passes(tmp_path):
    (tmp_path / "there.json").touch()
    check_can_write(out=tmp_path / "new.json", figure=tmp_path / "there.json", predictions=None)


def test_a_device_is_left_to_writing():
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


def test_what_is_printed_arrives(capsys):
    stdout = sys.stdout
    with checked_stdout():
        print("é", flush=True)
        assert capsys.readouterr().out == "é\n"
    assert sys.stdout is stdout


@pytest.mark.parametrize("length", [1, 100_000], ids=["in the buffer", "beyond the buffer"])
def test_a_full_disk_is_refused_and_nobody_complains_when_it_is_closed(monkeypatch, length):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with refuses("output", "standard output (No space left on device)"), checked_stdout():
            print("x" * length)
        assert sys.stdout is full


def test_a_closed_one_is_refused_where_something_is_printed(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with checked_stdout():
        pass
    with refuses("output", "descriptor", "standard", "output"), checked_stdout():
        print("x")
    assert sys.stdout is None


def print_and_fail():
    print("x")
    raise ZeroDivisionError


def test_another_error_is_told_instead(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ZeroDivisionError), checked_stdout():
        print_and_fail()


def test_a_reader_that_has_gone_stays_a_broken_pipe(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    pipe = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", pipe)
    with pytest.raises(BrokenPipeError), checked_stdout():
        print("x")
    with pytest.raises(BrokenPipeError):
        pipe.close()


def test_each_warning_is_one_line_and_said_once(capsys):
    before = warnings.showwarning
    with warnings.catch_warnings(action="always"), one_line_warnings():
        for text in ("no font\n writes Thai", "no font writes Thai", "a gap"):
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err == "regard: no font writes Thai\nregard: a gap\n"
    assert warnings.showwarning is before


class Stream(io.StringIO):
    """A terminal, or not."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_sees_what_is_done_and_anything_else_nothing(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Stream(terminal))
    monkeypatch.setattr(sys, "stdout", Stream(False))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with spinner("fitting data.csv"):
        print("the result")
    assert sys.stdout.getvalue() == "the result\n"
    assert ("fitting data.csv" in sys.stderr.getvalue()) == terminal
    assert ("0:00:0" in sys.stderr.getvalue()) == terminal


def test_standard_output_is_utf8_whatever_the_locale_says(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with open_output("output", None) as lines:
        lines.write("é", "b")
        assert raw.getvalue() == "é\nb\n".encode()


def test_a_file_can_be_read_while_it_is_written(tmp_path):
    path = tmp_path / "out"
    with open_output("output", path) as lines:
        lines.write("日本")
        assert path.read_text(encoding="utf-8") == "日本\n"
        lines.write("b")
    assert path.read_text(encoding="utf-8") == "日本\nb\n"


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as file:
        with pytest.raises(BrokenPipeError):
            LineWriter("output", None, file).write("x")
        file.write(b"closing the file does not raise for what is left in its buffer")


def test_what_the_system_refuses_is_explained(tmp_path):
    with refuses("output", "nowhere/x (No such file or directory)"), open_output("output", tmp_path / "nowhere" / "x"):
        pass

    class Full(io.BytesIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    for path, name in ((tmp_path / "x", "x"), (None, "standard output")):
        with refuses("output", f"{name} (No space left on device)"):
            LineWriter("output", path, Full()).write("x")


def test_a_file_on_a_full_disk_is_explained():
    with refuses("output", "/dev/full (No space left on device)"), open_output("output", Path("/dev/full")) as lines:
        lines.write("x")
