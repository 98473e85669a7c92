"""What `regard translate` was asked for, and the refusal of what does not go together."""

import os
from dataclasses import dataclass
from pathlib import Path

from regard.errors import RegardError
from regard.translation.options import SearchOptions

LINES = ("pharaoh", "json")
PICTURES = ("svg", "png")
ALIGNMENTS = (*LINES, *PICTURES)
UNITS = ("words", "tokens")


@dataclass(frozen=True)
class Wishes:
    """The flags of the command, by their names.

    models: the folder, and those of the ensemble.
    sentences: from the command line.
    input: a file of sentences; without sentences and file they come from standard input.
    output: a file for the translations; without it standard output.
    alignment: "pharaoh", "json", "svg" or "png".
    alignment_of: "words" or "tokens".
    alignment_out: where alignments go.
    """

    models: tuple[Path, ...]
    sentences: tuple[str, ...] = ()
    input: Path | None = None
    output: Path | None = None
    alignment: str | None = None
    alignment_of: str | None = None
    alignment_out: Path | None = None
    beams: int = 5
    nbest: int = 1
    length_penalty: float | None = None
    shortest: int = 0
    longest: int | None = None
    batch_size: int = 64
    device: str = "cpu"


def check(wishes: Wishes) -> None:
    """Refuse before a model is loaded what could only fail later."""
    if wishes.sentences and wishes.input is not None:
        raise _refusal("input", f"--input {wishes.input} and sentences", "one of them", "Leave one out.")
    SearchOptions(wishes.nbest, wishes.beams, wishes.length_penalty, wishes.shortest, wishes.longest, wishes.batch_size)
    for name in ("output", "alignment_out"):
        if wishes.input is not None and _is_same(getattr(wishes, name), wishes.input):
            raise _refusal(name, "the file of --input", "another file", "It would be emptied before it is read.")
    if wishes.alignment is None:
        for name in ("alignment_of", "alignment_out"):
            if getattr(wishes, name) is not None:
                needed = f"one of {', '.join(ALIGNMENTS)} beside it"
                raise _refusal(name, "no --alignment", needed, "Add for example --alignment pharaoh.")
        return
    _check_choice("alignment", wishes.alignment, ALIGNMENTS)
    if wishes.alignment_of is not None:
        _check_choice("alignment_of", wishes.alignment_of, UNITS)
    if wishes.alignment in PICTURES:
        _check_pictures(wishes.alignment, wishes.alignment_out)
    if wishes.output is not None and _is_same(wishes.alignment_out, wishes.output):
        raise _refusal("alignment_out", "the file of --output", "another file", "Leave it out to have both in one.")


def _check_pictures(kind: str, out: Path | None) -> None:
    if out is None:
        got, needed = "none for pictures", "a file, or a folder for one picture a sentence"
        raise _refusal("alignment_out", got, needed, f"Add for example --alignment-out alignment.{kind}.")
    ending = out.suffix.lower().removeprefix(".")
    if ending and ending != kind and not out.is_dir():
        repair = f"Write --alignment {ending}." if ending in PICTURES else "A new folder is named without a full stop."
        raise _refusal("alignment_out", f"{out}", f"a folder, or a file .{kind}", repair)


def _is_same(path: Path | None, other: Path) -> bool:
    return path is not None and os.path.realpath(path) == os.path.realpath(other)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _refusal(name, repr(value), "one of " + ", ".join(choices), f"Write {choices[0]}.")


def _refusal(argument: str, got: str, needed: str, repair: str) -> RegardError:
    return RegardError(argument, got=got, needed=needed, repair=repair)
