"""The folder where trained models are kept: a model is there whole, or not at all."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.studio.models.looks import read_looks
from regard.studio.models.wanted import Wanted

LOOKS = "looks.json"
PART = ".part"


def cache_folder(chosen: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder chosen; else that of the user's caches, by the rule of desktops: $XDG_CACHE_HOME, or ~/.cache.

    >>> cache_folder(None, {"XDG_CACHE_HOME": "/var/fast"}).as_posix()
    '/var/fast/regard/studio'
    """
    if chosen is not None:
        return chosen
    told = environment.get("XDG_CACHE_HOME", "")
    base = Path(told) if Path(told).is_absolute() else Path.home() / ".cache"  # the rule ignores relative paths
    return base / "regard" / "studio"


class Cache:
    """Models by what was wanted.

    A training works in a folder of its own, `….part`, where it can be resumed; one rename makes it a model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Make the folder, and refuse one that cannot be written before a training is begun."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as refusal:
            raise RegardError(
                "cache",
                got=f"{self.folder} ({refusal.strerror})",
                needed="a folder that can be written",
                repair="Pass --cache with another folder.",
            ) from None

    def kept(self, wanted: Wanted) -> Path:
        """Where the model is, once it is there."""
        return self.folder / wanted.folder

    def part(self, wanted: Wanted) -> Path:
        """Where it is trained."""
        return self.folder / (wanted.folder + PART)

    def has(self, wanted: Wanted) -> bool:
        """Whether it is there."""
        return self.kept(wanted).is_dir()

    def keep(self, wanted: Wanted, looks: dict[str, Any]) -> None:
        """Put the looks beside the trained model, and give the folder its name."""
        part, kept = self.part(wanted), self.kept(wanted)
        try:
            (part / LOOKS).write_text(json.dumps(looks), encoding="utf-8")
            if not kept.exists():  # another studio may have been as fast
                part.rename(kept)
        except OSError as refusal:
            raise RegardError(
                "cache",
                got=f"{kept} ({refusal.strerror})",
                needed="a folder that can be written, with room in it",
                repair="Make room, or pass --cache with another folder.",
            ) from None

    def drop(self, wanted: Wanted) -> None:
        """Throw away a model that cannot be read; nothing outside the cache is touched."""
        shutil.rmtree(self.kept(wanted), ignore_errors=True)

    def looks(self, wanted: Wanted) -> dict[str, Any] | None:
        """The looks at its training; None if the file is missing or damaged, because the model may be damaged too."""
        return read_looks(self.kept(wanted) / LOOKS)


NO_LOOKS: dict[str, Any] = {"sentences": [], "frames": []}
