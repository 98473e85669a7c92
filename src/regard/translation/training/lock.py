"""One training at a time in a folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RegardError
from regard.translation.training.writing import writing

NAME = "lock"


class HeldFolderError(RegardError):
    """Another process is training in this folder."""


@contextmanager
def only_here(folder: Path, wanted: bool = True) -> Iterator[None]:
    """Hold the folder; refuse if another process holds it. The system lets go when a process dies, however it dies.

    wanted: False in processes that share the training of the one that holds it.
    """
    if not wanted:
        yield
        return
    with writing(folder / NAME):
        file = (folder / NAME).open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldFolderError(
                "out",
                got=f"{folder.parent}, where another process is training",
                needed="a folder of its own",
                repair="Choose another folder, or wait.",
            ) from None
        yield
