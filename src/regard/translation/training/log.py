"""The log of a training: one JSON object a line, cut back to the checkpoint when a training goes on."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from regard.errors import RegardError
from regard.translation.training.events import EpochEnded
from regard.translation.training.writing import writing

NAME = "log.jsonl"


class Log:
    """The epochs that have ended."""

    def __init__(self, folder: Path, epochs: int) -> None:
        """Go on after so many epochs; later lines, of a training that was killed before its checkpoint, go."""
        self.path = folder / NAME
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            self.entries = [EpochEnded(**json.loads(line)) for line in lines[:epochs]]
        except (ValueError, TypeError):
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
                repair="Give yourself the right to read it, or choose another folder.",
            ) from None
        self._cut("".join(f"{line}\n" for line in lines[:epochs]))

    def add(self, entry: EpochEnded) -> None:
        """Append a line and make it last."""
        self.entries.append(entry)
        with writing(self.path):
            _write(self.path, json.dumps(asdict(entry)) + "\n", "a")

    def _cut(self, text: str) -> None:
        """Whole or not at all: a disk that is full, or a kill, must not cost the lines that were there."""
        new = self.path.with_name(f"{NAME}.incoming")
        with writing(self.path):
            try:
                _write(new, text, "w")
                new.replace(self.path)
            except OSError:
                new.unlink(missing_ok=True)
                raise


def _write(path: Path, text: str, mode: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
