"""Where lines go: standard output or a file, always UTF-8."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regard.errors import RegardError


class ReaderLeftError(Exception):
    """Whoever read our standard output has gone, as `head` does; nothing is left to do."""


class Outlet:
    """Lines that can be read as soon as they are written.

    argument: the flag that named the file. path: of the file; None for standard output.
    """

    def __init__(self, argument: str, path: Path | None, file: BinaryIO) -> None:
        self._argument = argument
        self._path = path
        self._file = file

    def write(self, *lines: str) -> None:
        """Lines without their ends."""
        try:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()
        except OSError as refusal:
            if self._path is None and isinstance(refusal, BrokenPipeError):
                # Python flushes standard output when it ends, and would complain of the pipe once more.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
                raise ReaderLeftError from None
            raise unwritable(self._argument, self._path or "standard output", refusal) from None


@contextmanager
def outlet(argument: str, path: Path | None) -> Iterator[Outlet]:
    """A file, or standard output where there is none; argument: the flag that named it."""
    if path is None:
        if sys.stdout is None:
            raise RegardError(
                argument, got="a closed standard output", needed="a place to write to", repair="Name a file."
            )
        yield Outlet(argument, None, sys.stdout.buffer)
        return
    try:
        file = path.open("wb")
    except OSError as refusal:
        raise unwritable(argument, path, refusal) from None
    with file:
        yield Outlet(argument, path, file)


def unwritable(argument: str, path: Path | str, refusal: OSError) -> RegardError:
    """What the system said, as a sentence."""
    return RegardError(
        argument,
        got=f"{path} ({refusal.strerror})",
        needed="a file that can be written",
        repair="Choose another path, or make room.",
    )
