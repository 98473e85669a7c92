"""The log of a training: one JSON object a line, cut back to the checkpoint when a training goes on."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from regard.errors import RegardError
from regard.translation.checkpoint import open_in_place, open_new, writing_file
from regard.translation.text import read_regular
from regard.translation.training.events import EpochEnded

NAME = "log.jsonl"
MAX_BYTES = 2**26  # of a log that is read: some 200,000 epochs


class Log:
    """The epochs that have ended."""

    def __init__(self, folder: Path, epochs: int) -> None:
        """Go on after so many epochs; later lines, of a training that was killed before its checkpoint, go."""
        self.path = folder / NAME
        try:
            text = read_regular(self.path, MAX_BYTES).decode() if self.path.exists() else ""
            lines = text.splitlines()
            self.entries = [_entry(line) for line in lines[:epochs]]
        except (ValueError, TypeError, RecursionError):
            raise RegardError(
                "out",
                got=f"{self.path}, which is damaged",
                needed="the log that the training wrote, a JSON object a line",
                repair="Delete it: the training goes on without the figures of its first epochs.",
            ) from None
        except OSError as refusal:
            raise RegardError(
                "out",
                got=f"{self.path} ({refusal.strerror})",
                needed="a log that can be read",
                repair="Check the file and its permissions, or choose another folder.",
            ) from None
        self._cut("".join(f"{line}\n" for line in lines[:epochs]))

    def add(self, entry: EpochEnded) -> None:
        """Append a line and make it last."""
        self.entries.append(entry)
        with writing_file(self.path), open_in_place(self.path, "a") as file:
            _write(file, json.dumps(asdict(entry)) + "\n")

    def _cut(self, text: str) -> None:
        """Whole or not at all: a disk that is full, or a kill, must not cost the lines that were there."""
        new = self.path.with_name(f"{NAME}.incoming")
        with writing_file(self.path):
            try:
                with open_new(new) as file:
                    _write(file, text.encode())
                new.replace(self.path)
            except OSError:
                new.unlink(missing_ok=True)
                raise


def _entry(line: str) -> EpochEnded:
    entry = EpochEnded(**json.loads(line))
    if not all(value is None or isinstance(value, int | float) for value in asdict(entry).values()):
        raise TypeError
    return entry


def _write(file: IO[Any], content: str | bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
