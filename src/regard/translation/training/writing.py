"""Files that a training writes: what is refused, and what an error says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from regard.errors import RegardError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file that is written inside `with`; an OSError becomes an error that names the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_regular_file(path)
        yield
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a folder that can be written, with room in it",
            repair="Make room and start the same command again, or choose another folder.",
        ) from None


def open_in_place(path: Path, mode: str) -> IO[Any]:
    """Open a file of text for writing or appending, but never through a symbolic link."""
    return open(path, mode, encoding="utf-8", opener=_open_without_following)


def open_new(path: Path) -> IO[bytes]:
    """Create a file and open it for writing. An existing file or link of that name is removed, not followed."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def _open_without_following(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _check_regular_file(path: Path) -> None:
    """Refuse links, devices and pipes, which a folder that came from elsewhere can contain."""
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        raise RegardError(
            "out",
            got=f"{path}, which is {'a symbolic link' if path.is_symlink() else 'a pipe or a device'}",
            needed="a folder in which the training's files are regular files",
            repair="Delete it, or choose another folder.",
        )
