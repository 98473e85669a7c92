"""The state of a training on disk: written whole or not at all, read back without executing anything."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
DIGEST = hashlib.sha256().digest_size


def save(folder: Path, state: dict[str, Any]) -> None:
    """Put a new checkpoint in the place of the last one, which becomes the previous one.

    At every moment there is a whole checkpoint under one of the two names: the new one is complete on the disk
    before it gets its name.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    new = folder / f"{NAME}.incoming"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
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
        content = path.read_bytes()
    except OSError as refusal:
        raise RegardError(
            "out",
            got=f"{path} ({refusal.strerror})",
            needed="a checkpoint that can be read",
            repair="Give yourself the right to read it, or choose another folder.",
        ) from None
    if len(content) > DIGEST and hashlib.sha256(content[DIGEST:]).digest() == content[:DIGEST]:
        try:
            return torch.load(io.BytesIO(content[DIGEST:]), map_location=device, weights_only=True)
        except Exception:  # whatever damaged bytes lead the reader of torch to
            pass
    previous = folder / PREVIOUS
    repair = f"Rename {previous.name} to {NAME} to go on from the one before." if previous.exists() else "Start anew."
    raise RegardError("out", got=f"a damaged checkpoint, {path}", needed="the file as it was written", repair=repair)


def _sync(folder: Path) -> None:
    """Make the renames themselves last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
