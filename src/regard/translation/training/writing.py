"""What is said when a file of a training cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RegardError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file; a system that refuses to write it becomes an error that names it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a folder that can be written, with room in it",
            repair="Make room and start the same command again, or choose another folder.",
        ) from None
