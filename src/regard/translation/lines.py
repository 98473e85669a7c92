"""The lines of a text file, plain or gzipped, in a stream."""

import gzip
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path

from regard.errors import RegardError

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
LOOKED_AT = 4096  # bytes at the beginning in which a file that is no text gives itself away
MOST_BYTES = 1 << 18  # of one line; what is beyond is passed over, so that memory does not grow with it


def read_lines(argument: str, path: str | PathLike[str]) -> Iterator[bytes]:
    """Each line without its end, in bytes, cut off after `MOST_BYTES`.

    argument: what an error of the file is about. Content decides whether the file is gzipped, not its name. Lines end
    with a line feed, with or without a carriage return before it; a byte order mark at the beginning is left out.
    """
    with _explained(argument, path), _opened(path) as file:
        first = True
        while line := file.readline(MOST_BYTES):
            rest = line
            while not rest.endswith(b"\n") and (rest := file.readline(MOST_BYTES)):
                pass
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            yield line.removeprefix(BOM) if first else line
            first = False


@contextmanager
def _opened(path: str | PathLike[str]) -> Generator[BufferedReader | gzip.GzipFile]:
    # Looked into, never turned back: a pipe can be read too.
    with Path(path).open("rb") as plain:
        packed = plain.peek(len(GZIP)).startswith(GZIP)
        with gzip.GzipFile(fileobj=plain) if packed else plain as file:
            if b"\0" in file.peek(LOOKED_AT)[:LOOKED_AT]:
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
