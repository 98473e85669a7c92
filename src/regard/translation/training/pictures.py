"""Pictures that a training leaves behind: the curve of its quality, and an alignment as it sharpens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from regard.plots import canvas, curves, house_style, save_as
from regard.plots.look import COLOURS
from regard.translation.alignment import draw
from regard.translation.checkpoint import writing_file
from regard.translation.training.events import EpochEnded, Listener, Warned
from regard.translation.translated import Translation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        draw(found, path)


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
