"""Normalisation is idempotent, and lines come out of any text file or are refused."""

import gzip
import os
import pickle
import threading
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refuses import refuses

from regard.translation import text as module
from regard.translation.text import normalise, read_lines

MOSES = [("&", "&amp;"), ("|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ('"', "&quot;")]
MOSES += [("[", "&#91;"), ("]", "&#93;")]


def escape(text):
    """As Moses does it: the ampersand first."""
    for plain, escaped in MOSES:
        text = text.replace(plain, escaped)
    return text


@given(st.text("ab&;'\"<>[]|#91apos mlt", max_size=30))
def test_what_moses_escaped_comes_back(text):
    assert normalise(escape(text)) == " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("&amp;apos;", "&apos;"),
        ("&amp;amp;lt;", "&amp;lt;"),
        ("&unknown; & &amp", "&unknown; & &amp"),
        ("a\u00a0b\u202f\u3000c\u2028\r\n", "a b c"),
        ("cafe\u0301", "café"),
        ("\u1112\u1161\u11ab", "한"),
        ("  ", ""),
    ],
)
def test_by_hand(text, expected):
    assert normalise(text) == expected


@given(st.text())
def test_composed_and_with_single_blanks(text):
    clean = normalise(text)
    assert unicodedata.is_normalized("NFC", clean)
    assert clean.split() == [] or clean == " ".join(clean.split())
    assert not any(letter.isspace() and letter != " " for letter in clean)


@given(st.text().filter(lambda text: "&" not in text))
def test_once_is_enough_where_nothing_is_escaped_twice(text):
    assert normalise(normalise(text)) == normalise(text)


@given(st.lists(st.sampled_from(["&amp;", "lt;", "amp;", "a", " "])).map("".join))
def test_what_is_normalised_is_not_normalised_again(text):
    once = normalise(text)
    assert normalise(once) is once
    assert normalise(pickle.loads(pickle.dumps(once))) == once


def test_half_a_character_is_refused():
    with refuses("text", "'\\udcff'"):
        normalise("ab\udcff")


def test_characters_are_composed_but_not_replaced_by_similar_ones():
    """NFC, not NFKC, which would write a ligature as two letters and a superscript as a digit."""
    assert normalise("ﬁn x² e\u0301") == "ﬁn x² é"


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
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 8)
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
