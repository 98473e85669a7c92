"""Curves of a training: a panel for each quantity, over updates or epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import RegardError
from regard.plots.look import POINTS, figure_of, line_style, new_panels
from regard.plots.tokens import set_as_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# So many measurements are marked one by one.
FEW = 40


def training(
    history: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    at: Sequence[float] | None = None,
    kept: float | None = None,
    axis: str = "epoch",
) -> list[Axes]:
    """Draw what a training measured, a panel for each quantity, a line for each part of the data; return the axes.

    Args:
        history: quantity to name to values, for example {"cross entropy, nats": {"training": [...], "validation":
            [...]}}; None or NaN where it was not measured.
        at: where the values were measured; 1, 2, 3, … by default.
        kept: where the model that is kept was, marked by a line.
        axis: what `at` counts.
    """
    if not history or not all(history.values()):
        raise RegardError(
            "history", got="no values", needed="at least one line for each quantity", repair="Leave out empty ones."
        )
    if not all(isinstance(parts, Mapping) for parts in history.values()):
        needed = 'for each quantity a line for each part of the data, such as {"loss": {"training": [3.0, 2.0]}}'
        raise RegardError("history", got="values without a name", needed=needed, repair="Name each line.")
    lines = {what: {name: _values(values) for name, values in parts.items()} for what, parts in history.items()}
    count = max(len(values) for parts in lines.values() for values in parts.values())
    places = np.arange(1, count + 1, dtype=np.float64) if at is None else np.asarray(at, dtype=np.float64)
    for parts in lines.values():
        for name, values in parts.items():
            _check(name, values, places)
    with new_panels(len(lines)) as panels:
        figure_of(panels[0]).set_size_inches(3.6 * len(lines), 2.7)
        for panel, (what, parts) in zip(panels, lines.items(), strict=True):
            _panel(panel, what, parts, places, axis)
            if kept is not None:
                panel.axvline(kept, color=POINTS, linewidth=0.8, linestyle=(0, (4, 2)), zorder=0, label="kept")
            legend = panel.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0)
            set_as_words(panel.xaxis.label, panel.yaxis.label, *legend.get_texts())
    return panels


def _panel(ax: Axes, what: str, parts: Mapping[str, np.ndarray], places: np.ndarray, axis: str) -> None:
    for index, (name, values) in enumerate(parts.items()):
        measured = np.isfinite(values)
        mark = "o" if measured.sum() <= FEW else None
        ax.plot(places[measured], values[measured], **line_style(index), marker=mark, markersize=3, label=name)
    ax.set(xlabel=axis, ylabel=what)
    ax.locator_params(axis="x", integer=True)
    if all(np.nanmin(values, initial=0.0) >= 0 for values in parts.values()):
        ax.set_ylim(bottom=0)


def _values(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def _check(name: str, values: np.ndarray, places: np.ndarray) -> None:
    if len(values) != len(places):
        raise RegardError(
            f"history[…][{name!r}]",
            got=f"{len(values)} values for {len(places)} places",
            needed="one value for each place",
            repair="Write None where nothing was measured.",
        )
