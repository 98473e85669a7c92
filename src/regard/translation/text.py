"""Text in and out: one normalised form for every sentence, and the lines of plain or gzipped files."""

import errno
import gzip
import os
import re
import stat
import unicodedata
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path

from regard.errors import RegardError

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
BINARY_CHECK_BYTES = 4096
"""Bytes at the beginning of a file that are searched for NUL to detect binary files."""
MAX_LINE_BYTES = 1 << 18
"""The rest of a longer line is not kept, so that memory does not grow with it."""

# The escapes of Moses' tokeniser, for characters that have a meaning to its decoder.
_ESCAPES = {
    "&apos;": "'",
    "&quot;": '"',
    "&lt;": "<",
    "&gt;": ">",
    "&#91;": "[",
    "&#93;": "]",
    "&#124;": "|",
    "&amp;": "&",
}
_ESCAPED = re.compile("|".join(map(re.escape, _ESCAPES)))


class Normalised(str):
    """A text that `normalise` has returned; normalising it again changes nothing."""

    __slots__ = ()


def normalise(text: str) -> Normalised:
    r"""Undo Moses' escapes, compose characters (NFC), and write white space as single blanks, stripped.

    Each escape is undone once: text that was escaped twice stays escaped once, however often the result is normalised.

    Raises:
        RegardError: if the text contains a lone surrogate.

    >>> normalise(" it &apos;s\t a  cafe\u0301\n"), normalise(normalise("&amp;apos;"))
    ("it 's a café", '&apos;')
    """
    if isinstance(text, Normalised):
        return text
    if "&" in text:
        text = _ESCAPED.sub(lambda escape: _ESCAPES[escape[0]], text)
    if not text.isascii():
        _check_unicode(text)
        text = unicodedata.normalize("NFC", text)
    return Normalised(" ".join(text.split()))


def _check_unicode(text: str) -> None:
    """Raise for a lone surrogate: Python decodes bytes of the command line to them that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as refusal:
        raise RegardError(
            "text",
            got=f"{text[refusal.start : refusal.end]!a} at character {refusal.start}, half of a character",
            needed="Unicode text",
            repair="Pass the sentence in UTF-8.",
        ) from None


# --- Files ------------------------------------------------------------------------------------------------------------


def read_lines(argument: str, path: str | PathLike[str]) -> Iterator[bytes]:
    """Yield each line without its end, in bytes, cut off after `MAX_LINE_BYTES`.

    Lines end with a line feed, with or without a carriage return before it. A byte order mark is left out.

    Args:
        argument: name of the argument for error messages.
        path: a text file, plain or gzipped; the content decides which, not the name.

    Raises:
        RegardError: if the file cannot be read, is damaged, or is no text.
    """
    with _explained(argument, path), _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            rest = line
            while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE_BYTES)):
                pass
            line = strip_newline(argument, path, number, line)
            yield line.removeprefix(BOM) if number == 1 else line


def strip_newline(argument: str, path: str | PathLike[str], number: int, line: bytes) -> bytes:
    """Return the line without its end.

    Args:
        argument: name of the argument for the error message.
        path: of the file, for the message.
        number: of the line; the first is 1.
        line: in bytes.

    Raises:
        RegardError: if the first line is the whole file, because its lines end with carriage returns alone.
    """
    text = line.removesuffix(b"\n").rstrip(b"\r")
    if number == 1 and not line.endswith(b"\n") and b"\r" in text:
        raise RegardError(
            argument,
            got=f"{path}, whose lines end with carriage returns alone",
            needed="lines that end with a line feed, or with a carriage return and a line feed",
            repair=r"Write it anew: tr '\r' '\n' < OLD > NEW",
        )
    return text


@contextmanager
def _opened(path: str | PathLike[str]) -> Generator[BufferedReader | gzip.GzipFile]:
    # `peek` instead of `seek`, so that a pipe can be read too.
    with Path(path).open("rb") as plain:
        packed = plain.peek(len(GZIP)).startswith(GZIP)
        with gzip.GzipFile(fileobj=plain) if packed else plain as file:
            if b"\0" in file.peek(BINARY_CHECK_BYTES)[:BINARY_CHECK_BYTES]:
                raise UnicodeError("bytes that are no text")
            yield file


@contextmanager
def _explained(argument: str, path: str | PathLike[str]) -> Generator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error):
        got, repair = f"{path}, a gzip file that is damaged or was cut off", "Copy or pack it again."
    except OSError as refusal:
        got, repair = f"{path} ({refusal.strerror})", "Check the path."
    except UnicodeError as refusal:
        got, repair = f"{path} ({refusal})", "Save it as UTF-8; UTF-16 and spreadsheets are not read."
    else:
        return
    raise RegardError(argument, got=got, needed="a text file in UTF-8, plain or gzipped", repair=repair)


@contextmanager
def open_regular(path: Path, max_bytes: int) -> Iterator[BufferedReader]:
    """Open a file for reading.

    Raises:
        OSError: if it cannot be read, is a pipe or a device, or is larger than `max_bytes`.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "a pipe or a device, not a regular file")
        if found.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, more than the {max_bytes:,} that are read")
        yield file


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file; raises what `open_regular` raises."""
    with open_regular(path, max_bytes) as file:
        return file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe that has no writer would block forever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
