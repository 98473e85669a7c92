"""Tokens as the names of rows and columns: short, upright, and never on top of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from math import ceil
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.plots.fonts import families_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

BLANK = "␣"
# Control characters and halves of pairs have no shape, and no place in an SVG file.
SHAPELESS = (*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
SIGNS = {**dict.fromkeys(SHAPELESS, "\ufffd"), ord("\n"): "↵", ord("\r"): "↵", ord("\t"): "⇥"}
LONGEST = 24
# Inches between two names on one level, and the most levels on which the names of columns stand below each other.
GAP, LEVELS = 0.08, 3
# Inches that a line of type takes.
LINE = 0.16


def as_labels(tokens: Sequence[object]) -> list[str]:
    """Tokens in print: blanks and line ends as signs, and one endless token does not fill the page.

    >>> as_labels(["the", " ", "a" * 30])
    ['the', '␣', 'aaaaaaaaaaaaaaaaaaaaaaa…']
    """
    texts = [str(token) for token in tokens]
    return [_short(text.translate(SIGNS)) if text.strip(" ") else BLANK for text in texts]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def check_tokens(argument: str, tokens: Sequence[object] | None, needed: int) -> None:
    """Refuse labels that are not one for each token."""
    if tokens is not None and not isinstance(tokens, Sized):
        raise RegardError(
            argument, got=repr(tokens), needed=f"{needed} labels", repair="Leave it out: rows and columns are numbered."
        )
    if tokens is not None and len(tokens) != needed:
        raise RegardError(
            argument,
            got=f"{len(tokens)} labels",
            needed=f"{needed}, as many as weights has {argument}",
            repair="Pass one label per token, padding included, or cut the weights to the tokens.",
        )


def type_of(*columns: Sequence[str] | None, size: float | None = None) -> dict[str, Any]:
    """How words are set: in fonts that have all their characters, and without taking dollar signs for formulas."""
    words = [word for labels in columns if labels is not None for word in labels]
    style: dict[str, Any] = {"fontfamily": families_for(words), "parse_math": False}
    return style if size is None else {**style, "fontsize": size}


def set_as_words(*texts: Text) -> None:
    """Texts that hold a user's words: the same for what stands there already, in legends, titles and axes."""
    for text in texts:
        text.set(**type_of([text.get_text()]))


def text_widths(ax: Axes, labels: Sequence[str], style: Mapping[str, Any]) -> list[float]:
    """How many inches each label takes."""
    from matplotlib import rcParams

    text = ax.text(0, 0, "", **{"fontsize": rcParams["xtick.labelsize"], **style})
    widths: dict[str, float] = {}
    for label in labels:
        if label not in widths:
            text.set_text(label)
            widths[label] = text.get_window_extent().width / ax.figure.dpi
    text.remove()
    return [widths[label] for label in labels]


def staggered(widths: Sequence[float], cell: float) -> tuple[list[int], int]:
    """Which columns are named, and on how many levels, so that names stand upright and apart; cell: inches a column.

    >>> staggered([0.3, 0.3, 0.3, 0.3], cell=0.25)
    ([0, 1, 2, 3], 2)
    """
    for step in range(1, len(widths) + 1):
        named = range(0, len(widths), step)
        for levels in range(1, LEVELS + 1):
            if cell_needed([widths[place] for place in named], levels) <= step * cell:
                return list(named), levels
    return [0], 1


def cell_needed(widths: Sequence[float], levels: int) -> float:
    """Inches a column must have so that names on so many levels stay apart."""
    pairs = zip(widths, widths[levels:], strict=False)
    return max(((one + other) / 2 + GAP for one, other in pairs), default=0.0) / levels


def name_columns(ax: Axes, labels: Sequence[str], cell: float, style: Mapping[str, Any]) -> None:
    """Put names under the columns, on as many levels as they need; the axis says if only some are named.

    cell: inches a column. style: as `type_of` gives it.
    """
    named, levels = staggered(text_widths(ax, labels, style), cell)
    texts = ["\n" * (order % levels) + labels[place] for order, place in enumerate(named)]
    ax.set_xticks(named, texts, **style)
    ax.set_xlabel(with_step(ax.get_xlabel(), named))


def name_rows(ax: Axes, labels: Sequence[str], cell: float, style: Mapping[str, Any]) -> None:
    """Put names beside the rows, all of them or every second, third, … where rows are low; cell: inches a row."""
    named = range(0, len(labels), max(1, ceil(LINE / cell)))
    ax.set_yticks(list(named), [labels[place] for place in named], **style)
    ax.set_ylabel(with_step(ax.get_ylabel(), named))


def with_step(name: str, named: Sequence[float]) -> str:
    """The name of an axis, which says if only some of its tokens are named; named: their numbers.

    >>> with_step("key", [0, 3, 6])
    'key (one in 3 is named)'
    """
    step = named[1] - named[0] if len(named) > 1 else 1
    return name if step == 1 or not name else f"{name} (one in {int(step)} is named)"
