"""The files of a model folder, by name."""

from pathlib import Path

PAGE = "model.json"
WEIGHTS = "model.safetensors"
SOURCE = "source.vocabulary"
TARGET = "target.vocabulary"
JOINT = "joint.vocabulary"
INCOMING = ".incoming"

# A page of facts is a few kilobytes; what is longer is not one, and is not read.
MOST_PAGE_BYTES = 2**24


def vocabulary_files(joint: bool) -> tuple[str, ...]:
    """One file for both languages, or one for each."""
    return (JOINT,) if joint else (SOURCE, TARGET)


def incoming(path: Path) -> Path:
    """Where a file waits until the page that names it has been written (see `saving`)."""
    return path.with_name(path.name + INCOMING)
