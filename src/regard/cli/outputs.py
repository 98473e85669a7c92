"""Files that a command will write, checked before it works for minutes."""

import os
from collections.abc import Iterable
from pathlib import Path

from regard.errors import RegardError


def check_can_write(read: Iterable[Path | None] = (), **paths: Path | None) -> None:
    """Refuse a file that could not be written: its folder is missing or closed, or it is a folder or read as well.

    read: the files and folders that the command reads. paths: the flag and its file; None where it was not given.
    """
    check_not_read(read, **paths)
    writing: dict[Path, str] = {}
    for flag, path in paths.items():
        if path is None:
            continue
        is_special = path.exists() and not path.is_file()  # a device takes any number of writers
        if (other := writing.setdefault(_real(path), flag)) != flag and not is_special:
            raise RegardError(
                flag,
                got=f"{path}, where {other} is written too",
                needed="another file",
                repair="One would overwrite the other.",
            )
        reason = _reason(path)
        if reason is not None:
            raise RegardError(
                flag,
                got=f"{path} ({reason})",
                needed="a file that can be written",
                repair="Name a file in it."
                if path.is_dir()
                else f"Choose another path, or make the folder first: mkdir -p {path.parent}",
            )


def check_not_read(read: Iterable[Path | None], **paths: Path | None) -> None:
    """Refuse a file or folder that is read, or that lies in a folder which is; links are followed."""
    writing = {flag: path for flag, path in paths.items() if path is not None}
    for there in (path for path in read if path is not None):
        inside = {_real(path) for path in there.iterdir()} if there.is_dir() else set()
        for flag, path in writing.items():
            target = _real(path)
            if target == _real(there) or target in inside:
                raise RegardError(
                    flag, got=f"{path}, which is read", needed="another file", repair="It would be overwritten."
                )
            if there.is_dir() and target.is_relative_to(_real(there)):
                raise RegardError(
                    flag,
                    got=f"{path} in the folder {there}, which is read",
                    needed="a place outside it",
                    repair="Choose another folder.",
                )


def _real(path: Path) -> Path:
    """Resolve symbolic links. Unlike `Path.resolve`, `os.path.realpath` accepts links that form a loop."""
    return Path(os.path.realpath(path))


def _reason(path: Path) -> str | None:
    if path.is_dir():
        return "that is a folder"
    if not path.parent.exists():
        return f"there is no folder {path.parent}"
    if not path.parent.is_dir():
        return f"{path.parent} is no folder"
    if path.exists() and not path.is_file():
        return None  # a device or a pipe: writing will tell
    target = path if path.exists() else path.parent
    return None if os.access(target, os.W_OK) else f"no right to write to {target}"
