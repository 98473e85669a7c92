"""The state of a training on disk: written whole or not at all, read back without executing anything."""

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.translation.text import open_regular
from regard.translation.training.writing import open_new

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
DIGEST = hashlib.sha256().digest_size
MAX_BYTES = 2**36  # of a checkpoint that is read


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the last checkpoint, which becomes the previous one.

    At every moment there is a whole checkpoint under one of the two names: the new one is complete on the disk
    before it gets its name.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    new = folder / f"{NAME}.incoming"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_new(new) as file:
            file.write(hashlib.sha256(payload).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        if (folder / NAME).exists():
            (folder / NAME).replace(folder / PREVIOUS)
        new.replace(folder / NAME)
        _sync(folder)
    except OSError as refusal:
        new.unlink(missing_ok=True)
        then = "goes on from the checkpoint before" if exists(folder) else "begins anew, as there is no checkpoint yet"
        raise RegardError(
            "out",
            got=f"{folder} ({refusal.strerror})",
            needed="a folder that can be written, with room for a checkpoint",
            repair=f"Make room and start the same command again: it {then}.",
        ) from None


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    return any((folder / name).exists() for name in (NAME, PREVIOUS))


def load(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The last checkpoint, or None where there is none; a damaged one is refused, and the previous one named."""
    path = folder / NAME
    try:
        if not exists(folder):
            return None
        if not path.exists():
            path = folder / PREVIOUS  # killed between two renames
        with open_regular(path, MAX_BYTES) as file:
            digest = file.read(DIGEST)
            is_whole = hashlib.file_digest(file, "sha256").digest() == digest  # in constant memory
            file.seek(DIGEST)
            payload = io.BytesIO(file.read() if is_whole else b"")
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a checkpoint that can be read",
            repair="Check the file and its permissions, or choose another folder.",
        ) from None
    if is_whole:
        with suppress(Exception):  # damaged bytes lead torch's reader to errors of many types
            state = torch.load(payload, map_location=device, weights_only=True)
            if isinstance(state, dict):
                return state
    previous = folder / PREVIOUS
    repair = f"Rename {previous.name} to {NAME} to go on from the one before." if previous.exists() else "Start anew."
    raise RegardError("out", got=f"a damaged checkpoint, {path}", needed="the file as it was written", repair=repair)


def _sync(folder: Path) -> None:
    """Make the renames themselves last, where the system can (Windows opens no folders)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
