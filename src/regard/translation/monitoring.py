"""What a training reports while it runs: events, the log of its epochs, and pictures of its curve and alignments."""

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
    """Emitted before the first update.

    Attributes:
        updates: The expected number of updates of the whole training.
        done: The number of updates that earlier runs have made.
        parameters: The number of parameters.
        pairs: The number of training pairs.
        skipped: The number of pairs that are too long to be used.
        source_size: The size of the source vocabulary.
        target_size: The size of the target vocabulary.
        resumed_epoch: The epoch, from 1, in which the training resumes; None if it starts from the beginning.
        seconds: The time that earlier runs have taken.
    """

    updates: int
    done: int
    parameters: int
    pairs: int
    skipped: int
    source_size: int
    target_size: int
    resumed_epoch: int | None
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingProgress:
    """Emitted about twice a second.

    Attributes:
        epoch: The present epoch, from 1.
        update: The number of updates so far.
        updates: The expected number of updates of the whole training.
        loss: The cross entropy per target token since the last report, in nats.
        speed: Target tokens per second since the last report.
        learning_rate: The learning rate of the last update.
    """

    epoch: int
    update: int
    updates: int
    loss: float
    speed: float
    learning_rate: float


@dataclass(frozen=True)
class EpochEnded:
    """Emitted after an epoch; also a line of the log.

    Attributes:
        epoch: The epoch, from 1.
        update: The number of updates so far.
        loss: The cross entropy per target token over the epoch, in nats.
        gradient_norm: The mean norm of the gradients before clipping.
        learning_rate: The learning rate of the last update.
        tokens: The number of target tokens of the epoch.
        seconds: The time of the whole training so far.
        bleu: BLEU of greedy translations of the validation pairs; None if the epoch was not validated.
        exact: The percentage of exact greedy translations; None likewise.
        valid_loss: The cross entropy per target token of the validation pairs, in nats; None likewise.
        flatness: The normalized entropy of the attention weights on validation; None likewise or without attention.
        is_best: Whether the model folder now holds the model of this epoch.
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
class TrainingWarning:
    """Something that the user should know."""

    text: str


@dataclass(frozen=True)
class Stopped:
    """Emitted after SIGINT or SIGTERM, when the checkpoint of this update has been written."""

    update: int


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training, emitted at its end.

    Attributes:
        epochs: The number of epochs.
        best_epoch: The epoch, from 1, whose model was kept.
        bleu: Its BLEU on validation.
        exact: Its percentage of exact translations on validation.
        length_penalty: The strength of the length penalty that gave the highest BLEU on validation.
        seconds: The time of the whole training.
        history: All epochs.
    """

    epochs: int
    best_epoch: int
    bleu: float
    exact: float
    length_penalty: float
    seconds: float
    history: tuple[EpochEnded, ...] = field(default=(), repr=False)


Event = Started | TrainingProgress | EpochEnded | TrainingWarning | Stopped | TrainingResult
Listener = Callable[[Event], None]


LOG_NAME = "log.jsonl"
MAX_BYTES = 2**26  # of a log that is read: about 200,000 epochs


class EpochLog:
    """The log of a training: one JSON object per epoch and line.

    Lines after the given number of epochs are removed: they belong to epochs that a killed training had finished after
    its last checkpoint, and that the resumed training repeats.

    Args:
        folder: Where `log.jsonl` is.
        epochs: The number of epochs that the checkpoint knows.

    Attributes:
        entries: The epochs that have ended.

    Raises:
        RegardError: If the log is damaged or cannot be read or written.
    """

    def __init__(self, folder: Path, epochs: int) -> None:
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
        """Append a line and wait until it is on the disk."""
        self.entries.append(entry)
        with writing_file(self.path), open_in_place(self.path, "a") as file:
            _write(file, json.dumps(asdict(entry)) + "\n")

    def _cut(self, text: str) -> None:
        """Replace the file in one step, so that a full disk or a kill loses no lines."""
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
REDRAW_SECONDS = 30.0  # seconds between two drawings of the curve
MAX_MARKED_EPOCHS = 40  # up to this number each epoch gets a marker
NOT_DRAWN = 'No pictures of the training are drawn: matplotlib is missing. Install it with pip install "regard[plots]".'


class TrainingPlots:
    """Draws the curve and an alignment while a training runs, seldom enough not to slow it down.

    Args:
        folder: Where the pictures go.
        on_event: Called with a warning if matplotlib is missing.
    """

    def __init__(self, folder: Path, on_event: Listener) -> None:
        self._folder, self._can_draw = folder, can_draw()
        self._drawn_at = float("-inf")
        if not self._can_draw:
            on_event(TrainingWarning(NOT_DRAWN))

    def update(self, entries: Sequence[EpochEnded], sample: Translation) -> None:
        """Draw after a validation: the alignment at milestones, the curve then and every half minute."""
        epoch = entries[-1].epoch
        if is_milestone(epoch):
            self.finish(entries, sample, epoch)
        elif self._can_draw and time.perf_counter() - self._drawn_at > REDRAW_SECONDS:
            self._draw_curve(entries)

    def finish(self, entries: Sequence[EpochEnded], sample: Translation, epoch: int) -> None:
        """Draw the curve of all epochs, and the alignment of the model of `epoch`."""
        if self._can_draw:
            self._draw_curve(entries)
            save_sample_alignment(sample, epoch, self._folder)

    def _draw_curve(self, entries: Sequence[EpochEnded]) -> None:
        save_curve(entries, self._folder / CURVE)
        self._drawn_at = time.perf_counter()


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        return find_spec("matplotlib") is not None
    except ValueError:  # sys.modules["matplotlib"] is None
        return False


def is_milestone(epoch: int) -> bool:
    """Whether the alignment after this epoch is drawn: after epochs 1, 2, 4, 8, since it changes most early.

    >>> [epoch for epoch in range(1, 100) if is_milestone(epoch)]
    [1, 2, 4, 8, 16, 32, 64]
    """
    return epoch & (epoch - 1) == 0


def save_curve(entries: Sequence[EpochEnded], path: Path) -> None:
    """Write a figure of the loss and of the quality on validation over the epochs; the best epoch is marked."""
    with writing_file(path):
        save_as(draw_curve(entries), path)


def draw_curve(entries: Sequence[EpochEnded]) -> Figure:
    """Draw the figure of `save_curve`."""
    figure, (loss, quality) = canvas(7.2, 2.7, panels=2)
    validated = [entry for entry in entries if entry.bleu is not None]
    at = [entry.epoch for entry in validated]
    with house_style():
        curves([entry.epoch for entry in entries], {"training": [entry.loss for entry in entries]}, ax=loss)
        if validated:
            loss.plot(at, [_or_nan(entry.valid_loss) for entry in validated], color=COLOURS[1], label="validation")
            found = {"BLEU": [_or_nan(e.bleu) for e in validated], "exact, %": [_or_nan(e.exact) for e in validated]}
            curves(at, found, ax=quality)
        for axes, name in ((loss, "cross entropy of a token, nats"), (quality, "validation, greedy search")):
            _format_axes(axes, name, len(entries))
        _mark_best(quality, validated)
    return figure


def save_sample_alignment(sample: Translation, epoch: int, folder: Path) -> None:
    """Write the alignment of a translation to `alignment-0001.svg` for epoch 1, and so on.

    The alignment is between words, or between characters if one side is encoded as characters. Nothing is written for a
    model without attention.
    """
    units = sample.source.vocabulary.unit, sample.target.vocabulary.unit
    found = sample.alignment_of_tokens if "characters" in units else sample.alignment
    if found is None or not found.source_words or not found.target_words:
        return
    path = folder / f"alignment-{epoch:04d}.svg"
    with writing_file(path):
        save_alignment(found, path)


def _format_axes(axes: Axes, name: str, epochs: int) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(name)
    axes.set_xlim(0, epochs + 0.5)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="x", integer=True)
    if axes.lines:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
    if epochs <= MAX_MARKED_EPOCHS:
        for line in axes.lines:
            line.set(marker="o", markersize=3)


def _mark_best(axes: Axes, validated: Sequence[EpochEnded]) -> None:
    kept = [entry for entry in validated if entry.is_best]
    if kept:
        axes.axvline(kept[-1].epoch, color="0.6", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
        axes.set_title(f"kept: {kept[-1].bleu:.1f}", loc="right", fontsize=8, color="0.35")


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
