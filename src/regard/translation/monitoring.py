"""What a training reports while it runs: its events, the log of its epochs, and the pictures drawn from them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.plots import canvas, curves, house_style, save_as
from regard.plots.look import COLOURS
from regard.translation.alignment import save_alignment
from regard.translation.checkpoint import open_in_place, open_new, writing_file
from regard.translation.text import read_regular
from regard.translation.translator import Translation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Started:
    """Before the first update: sizes, and where it goes on if it was interrupted."""

    updates: int
    done: int
    parameters: int
    pairs: int
    left_out: int
    source_size: int
    target_size: int
    resumed_epoch: int | None
    seconds: float = 0.0


@dataclass(frozen=True)
class Advanced:
    """Some updates later.

    loss: the cross entropy of a target token, in nats, over these updates. speed: target tokens a second.
    """

    epoch: int
    update: int
    updates: int
    loss: float
    speed: float
    learning_rate: float


@dataclass(frozen=True)
class EpochEnded:
    """After an epoch: what is written to the log.

    bleu, exact: of greedy translations of the validation pairs, in percent; valid_loss: the cross entropy of a token
    of their targets, in nats; None where it was not validated.
    flatness: the entropy of attention on validation, as a share of the even one; None without attention.
    """

    epoch: int
    update: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    bleu: float | None = None
    exact: float | None = None
    valid_loss: float | None = None
    flatness: float | None = None
    is_best: bool = False


@dataclass(frozen=True)
class Warned:
    """Something that a user should know."""

    text: str


@dataclass(frozen=True)
class Stopped:
    """After SIGINT or SIGTERM: the training ends here, with a checkpoint of this update."""

    update: int


@dataclass(frozen=True)
class Ended:
    """The result."""

    epochs: int
    best_epoch: int
    bleu: float
    exact: float
    length_penalty: float
    seconds: float
    history: tuple[EpochEnded, ...] = field(default=(), repr=False)


Event = Started | Advanced | EpochEnded | Warned | Stopped | Ended
Listener = Callable[[Event], None]


def silence(event: Event) -> None:
    """Listen to nothing."""
    del event


LOG_NAME = "log.jsonl"
MAX_BYTES = 2**26  # of a log that is read: some 200,000 epochs


class Log:
    """The epochs that have ended."""

    def __init__(self, folder: Path, epochs: int) -> None:
        """Go on after so many epochs; later lines, of a training that was killed before its checkpoint, go."""
        self.path = folder / LOG_NAME
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
        new = self.path.with_name(f"{LOG_NAME}.incoming")
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


CURVE = "curve.svg"
SELDOM = 30.0  # seconds between two drawings of the curve
FEW = 40  # epochs: so many are marked one by one
NOT_DRAWN = 'No pictures of the training are drawn: matplotlib is missing. Install it with pip install "regard[plots]".'


class Album:
    """Draws while a training runs, and seldom enough not to slow it down.

    folder: where the pictures go. listen: is told once if there will be none, since matplotlib is missing.
    """

    def __init__(self, folder: Path, listen: Listener) -> None:
        self.folder, self.can_draw = folder, can_draw()
        self.drawn = float("-inf")
        if not self.can_draw:
            listen(Warned(NOT_DRAWN))

    def add(self, entries: Sequence[EpochEnded], shown: Translation) -> None:
        """After a validation: the alignment at milestones, the curve then and every half minute."""
        epoch = entries[-1].epoch
        if is_milestone(epoch):
            self.close(entries, shown, epoch)
        elif self.can_draw and time.perf_counter() - self.drawn > SELDOM:
            self._curve(entries)

    def close(self, entries: Sequence[EpochEnded], shown: Translation, epoch: int) -> None:
        """At the end: the whole curve, and the alignment of the model that is kept, which is that of `epoch`."""
        if self.can_draw:
            self._curve(entries)
            alignment(shown, epoch, self.folder)

    def _curve(self, entries: Sequence[EpochEnded]) -> None:
        curve(entries, self.folder / CURVE)
        self.drawn = time.perf_counter()


def can_draw() -> bool:
    """Whether matplotlib is there."""
    try:
        return find_spec("matplotlib") is not None
    except ValueError:  # sys.modules says that it is to be taken as missing
        return False


def is_milestone(epoch: int) -> bool:
    """Whether the alignment after this epoch is drawn: it changes most at the beginning.

    >>> [epoch for epoch in range(1, 100) if is_milestone(epoch)]
    [1, 2, 4, 8, 16, 32, 64]
    """
    return epoch & (epoch - 1) == 0


def curve(entries: Sequence[EpochEnded], path: Path) -> None:
    """Write loss, and BLEU and exact share on validation, over the epochs; the epoch that is kept is marked."""
    with writing_file(path):
        save_as(draw_curve(entries), path)


def draw_curve(entries: Sequence[EpochEnded]) -> Figure:
    """The figure of `curve`."""
    figure, (loss, quality) = canvas(7.2, 2.7, panels=2)
    validated = [entry for entry in entries if entry.bleu is not None]
    at = [entry.epoch for entry in validated]
    with house_style():
        curves([entry.epoch for entry in entries], {"training": [entry.loss for entry in entries]}, ax=loss)
        if validated:
            loss.plot(at, [_number(entry.valid_loss) for entry in validated], color=COLOURS[1], label="validation")
            found = {"BLEU": [_number(e.bleu) for e in validated], "exact, %": [_number(e.exact) for e in validated]}
            curves(at, found, ax=quality)
        for axes, name in ((loss, "cross entropy of a token, nats"), (quality, "validation, greedy search")):
            _finish(axes, name, len(entries))
        _mark_kept(quality, validated)
    return figure


def alignment(shown: Translation, epoch: int, folder: Path) -> None:
    """Write `alignment-0001.svg` of the first epoch, and so on; nothing where there is no alignment to be seen.

    Words are drawn; characters where one side is made of them.
    """
    units = shown.source.vocabulary.unit, shown.target.vocabulary.unit
    found = shown.alignment_of_tokens if "characters" in units else shown.alignment
    if found is None or not found.source_words or not found.target_words:
        return
    path = folder / f"alignment-{epoch:04d}.svg"
    with writing_file(path):
        save_alignment(found, path)


def _finish(axes: Axes, name: str, epochs: int) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(name)
    axes.set_xlim(0, epochs + 0.5)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)
    if axes.lines:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    if epochs <= FEW:
        for line in axes.lines:
            line.set(marker="o", markersize=3)


def _mark_kept(axes: Axes, validated: Sequence[EpochEnded]) -> None:
    kept = [entry for entry in validated if entry.is_best]
    if kept:
        axes.axvline(kept[-1].epoch, color="0.6", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
        axes.set_title(f"kept: {kept[-1].bleu:.1f}", loc="right", fontsize=8, color="0.35")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
