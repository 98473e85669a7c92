"""What a station of the tour leaves for the page: words, numbers, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.tour.charts import Bars, Curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tell = Callable[[float, str], None]
"""Hears how much of a work is done, from 0 to 1, and a few words on where it stands."""


class Table(NamedTuple):
    """Numbers as a CSV file has them; None is an empty cell. name: of the file."""

    name: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Station:
    """One content of the tour.

    slug: its name in addresses and files. title: its heading.
    facts: numbers in words, for the places that its page names.
    data: what the page's script draws, as JSON has it.
    charts: drawn into the page at the places that name them. tables: the numbers behind it.
    figures: by the name of their files.
    beats: states of its controls that a lecture steps through, such as "width=-1.5".
    """

    slug: str
    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    charts: Mapping[str, Curves | Bars] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    beats: tuple[str, ...] = ("",)
