"""The progress of a training on standard error: a live bar in a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.translation.monitoring import (
    EpochEnded,
    Event,
    Listener,
    Started,
    Stopped,
    TrainingProgress,
    TrainingWarning,
)


@contextmanager
def training_progress() -> Iterator[Listener]:
    """Return a callback that shows the events of a training: a live bar in a terminal, plain lines elsewhere."""
    console = Console(highlight=False, markup=False, stderr=True)
    if not console.is_terminal:
        yield PlainProgress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        yield BarProgress(shown)


class PlainProgress:
    """Prints a line at the start, for each epoch and for each warning."""

    def __init__(self) -> None:
        self.seconds, self.updates = 0.0, 0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Started):
            self.seconds, self.updates = event.seconds, event.updates
            self._print(describe(event))
        elif isinstance(event, EpochEnded):
            self._print(self.line(event))
        elif isinstance(event, TrainingWarning):
            self._print(f"regard: {event.text}")
        elif isinstance(event, Stopped):
            self._print(f"regard: wrote a checkpoint after update {event.update:,}.")

    def line(self, entry: EpochEnded) -> str:
        """Return an epoch as a line: loss, speed, quality, time left."""
        lasted, self.seconds = entry.seconds - self.seconds, entry.seconds
        left = entry.seconds / max(entry.update, 1) * max(self.updates - entry.update, 0)
        speed = entry.tokens / lasted if lasted > 0 else 0.0
        parts = [f"epoch {entry.epoch}", f"loss {entry.loss:.3f}", f"{speed:,.0f} tokens/s"]
        if entry.bleu is not None:
            parts.append(quality(entry))
        parts.append(f"{timedelta(seconds=round(left))} left")
        return "  ".join(parts) + ("  best so far" if entry.is_best else "")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class BarProgress:
    """Prints the same lines, and moves a bar below them."""

    def __init__(self, shown: Progress) -> None:
        self.shown, self.lines = shown, PlainProgress()
        self.task: TaskID | None = None
        self.last = ""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self.lines(event)
        if isinstance(event, Started):
            self.task = self.shown.add_task("", total=event.updates, completed=event.done, facts="")
        elif self.task is None:
            return
        elif isinstance(event, TrainingProgress):
            facts = f"loss {event.loss:.3f}  {event.speed:,.0f} tokens/s{self.last}"
            self.shown.update(self.task, description=f"epoch {event.epoch}", completed=event.update, facts=facts)
        elif isinstance(event, EpochEnded):
            if event.bleu is not None:
                self.last = f"  {quality(event)}"
            self.shown.update(self.task, completed=event.update)


def describe(event: Started) -> str:
    """Return what is trained, and where it goes on."""
    left_out = f" ({event.skipped:,} longer ones left out)" if event.skipped else ""
    resumed = "" if event.resumed_epoch is None else f"; going on in epoch {event.resumed_epoch}"
    if event.resumed_epoch is not None and event.done >= event.updates:
        resumed = "; trained to the end already"
    return (
        f"{event.pairs:,} pairs{left_out}, vocabularies of {event.source_size:,} and {event.target_size:,}, "
        f"{event.parameters:,} parameters{resumed}"
    )


def quality(entry: EpochEnded) -> str:
    """Return the result of a validation."""
    return f"BLEU {entry.bleu:.1f}, exact {entry.exact:.1f}%"
