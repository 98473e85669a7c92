"""Lines out of plain and gzipped files, and what is no text at all."""

import gzip
import os
import threading

import pytest
from tests.refuses import refuses

from regard.translation import lines
from regard.translation.lines import read_lines

TEXT = "één\ntwo\r\n\nlast without an end".encode()
LINES = ["één".encode(), b"two", b"", b"last without an end"]


@pytest.mark.parametrize("name", ["plain.txt", "named.gz"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_content_decides_not_the_name(tmp_path, name, packed, mark):
    path = tmp_path / name
    path.write_bytes(gzip.compress(mark + TEXT) if packed else mark + TEXT)
    assert list(read_lines("pairs", path)) == LINES


def test_an_empty_file_has_no_lines(tmp_path):
    (tmp_path / "empty").touch()
    assert list(read_lines("pairs", tmp_path / "empty")) == []


def test_a_long_line_is_cut_off_and_the_next_one_found(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MOST_BYTES", 8)
    (tmp_path / "long").write_bytes(b"0123456789abcdefghi\n1234567\n12345678\nend")
    assert list(read_lines("pairs", tmp_path / "long")) == [b"01234567", b"1234567", b"12345678", b"end"]


def test_a_pipe_is_read_too(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[gzip.compress(TEXT)])
    writer.start()
    assert list(read_lines("pairs", pipe)) == LINES
    writer.join()


def check_refused(path, *words):
    with refuses("pairs", *words):
        list(read_lines("pairs", path))


def test_what_cannot_be_read_is_explained(tmp_path):
    check_refused(tmp_path / "missing", "No such file or directory")
    check_refused(tmp_path, "Is a directory")
    utf_16 = tmp_path / "utf-16"
    utf_16.write_bytes("two\n".encode("utf-16"))
    check_refused(utf_16, "no text", "Save it as UTF-8")


def test_lines_that_end_with_carriage_returns_alone_are_refused(tmp_path):
    path = tmp_path / "mac"
    path.write_bytes(b"one\teins\rtwo\tzwei\r")
    check_refused(path, f"{path}, whose lines end with carriage returns alone", r"tr '\r' '\n' < OLD > NEW")


def test_a_carriage_return_astray_is_part_of_its_line(tmp_path):
    (tmp_path / "astray").write_bytes(b"one\ttw\ro\nthr\ree")
    assert list(read_lines("pairs", tmp_path / "astray")) == [b"one\ttw\ro", b"thr\ree"]


def test_a_carriage_return_too_many_before_a_line_feed_is_no_text(tmp_path):
    (tmp_path / "twice").write_bytes(b"one\r\r\ntwo\r")
    assert list(read_lines("pairs", tmp_path / "twice")) == [b"one", b"two"]


def test_a_gzip_file_that_was_cut_off_or_damaged(tmp_path):
    whole = gzip.compress(bytes(range(32, 127)) * 400)
    for damaged in (whole[:-12], whole[:40] + b"\xff" * 20 + whole[60:], whole[:2]):
        (tmp_path / "cut.gz").write_bytes(damaged)
        check_refused(tmp_path / "cut.gz", "damaged or was cut off")
