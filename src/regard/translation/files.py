"""Files of a model folder or a training, opened so that reading ends: regular files up to a stated size."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path


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
    """The content of a file; raises what `open_regular` raises."""
    with open_regular(path, max_bytes) as file:
        return file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe that has no writer would block forever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
