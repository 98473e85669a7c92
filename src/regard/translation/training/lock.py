"""One training at a time in a folder."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import RegardError
from regard.translation.training.writing import open_in_place, writing

NAME = "lock"


class HeldFolderError(RegardError):
    """Another process is training in this folder."""


@contextmanager
def only_here(folder: Path, wanted: bool = True) -> Iterator[None]:
    """Hold the folder; refuse if another process holds it. The system lets go when a process dies, however it dies.

    A training that is refused within it leaves nothing behind of a folder that was not there.
    wanted: False in processes that share the training of the one that holds it.
    """
    if not wanted:
        yield
        return
    new = [place for place in (folder, *folder.parents) if not os.access(place, os.F_OK)]
    _check_can_lock()
    with writing(folder / NAME):
        file = open_in_place(folder / NAME, "w")
    with file:
        if not _takes(file, folder / NAME):
            raise HeldFolderError(
                "out",
                got=f"{folder.parent}, where another process is training",
                needed="a folder of its own",
                repair="Choose another folder, or wait.",
            )
        try:
            yield
        except RegardError:
            if new and list(folder.iterdir()) == [folder / NAME]:
                _remove(folder / NAME, new)
            raise


def _check_can_lock() -> None:
    """Refuse a system without flock before anything is written."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise RegardError(
            "out",
            got=f"a training on {sys.platform}, where a folder cannot be locked",
            needed="Linux or macOS",
            repair="On Windows, train in the Windows Subsystem for Linux; trained models translate everywhere.",
        ) from None


def _takes(file: IO[Any], path: Path) -> bool:
    """Whether the lock is ours now: nobody holds it, and nobody has removed it since it was opened."""
    import fcntl  # not on Windows; `_check_can_lock` has refused there

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove(lock: Path, folders: Sequence[Path]) -> None:
    """Remove the lock and the folders around it, from the innermost out, as far as they are empty."""
    lock.unlink()
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
