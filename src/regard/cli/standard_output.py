"""Standard output that cannot be written: refused in one line, as every other mistake is."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from regard.errors import RegardError


@contextmanager
def arriving() -> Iterator[None]:
    """Refuse what is printed within it and does not arrive: a full disk, or a standard output that is closed.

    A reader that has gone stays a BrokenPipeError.
    """
    was = sys.stdout
    # Python prints to a closed one without a word. A file that cannot be written says so, and keeps the first file that
    # is opened from becoming the standard output of the libraries below.
    stream = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8") if was is None else was
    refusing = _Refusing(stream)
    sys.stdout = cast(TextIO, refusing)
    try:
        yield
        refusing.flush()
    finally:
        with suppress(RegardError, BrokenPipeError):  # what else went wrong is told instead
            refusing.flush()
        sys.stdout = was
        if was is None:
            stream.close()


class _Refusing:
    """A stream whose failures to write are refusals."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._explained():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._explained():
            self._stream.flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as refusal:
            # Python flushes standard output when it ends, and would complain once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise RegardError(
                "output",
                got=f"standard output ({refusal.strerror})",
                needed="a place that can be written",
                repair="Send it to a file, or make room.",
            ) from None
