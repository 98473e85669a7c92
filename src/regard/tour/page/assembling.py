"""From stations to one HTML file: numbers into their places, style, script and data inside."""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from regard.errors import RegardError
from regard.tour.charts import Bars, Curves
from regard.tour.page.drawing import render
from regard.tour.page.formulas import FORMULAS
from regard.tour.station import Station

HERE = files(__name__.rpartition(".")[0])
# A place on the page: {{name}} for a number, {{math:name}} for a formula, {{chart:name what it shows}} for a chart,
# {{each:name}} for all charts whose names begin with "name.", each as a figure with its caption.
PLACE = re.compile(r"\{\{([\w.:-]+)(?: ([^{}]+))?\}\}")


def assemble(stations: Sequence[Station]) -> str:
    """The whole page."""
    sections = "\n".join(section(station, number) for number, station in enumerate(stations, start=1))
    links = "".join(
        f'<a href="#at={one.slug}" data-at="{one.slug}" title="{escape(one.title)}">{number}</a>'
        for number, one in enumerate(stations, start=1)
    )
    parts = {
        "style": _read("tour.css"),
        "script": _read("tour.js"),
        "data": as_json(stations),
        "sections": sections,
        "links": links,
    }
    return PLACE.sub(lambda found: parts[found[1]], _read("page.html"))


def section(station: Station, number: int) -> str:
    """One station: its heading, its fragment with the numbers filled in, and its foot."""
    downloads = "".join(
        f'<button type="button" data-csv="{escape(table.name)}">{escape(table.name)}.csv</button>'
        for table in station.tables
    )
    parts = {
        "slug": station.slug,
        "number": str(number),
        "title": escape(station.title),
        "beats": escape(json.dumps(station.beats)),
        "body": fill(_read(f"stations/{station.slug}.html"), station),
        "downloads": downloads,
    }
    return PLACE.sub(lambda found: parts[found[1]], _read("section.html"))


def fill(fragment: str, station: Station) -> str:
    """The fragment with its places filled: facts escaped, formulas and charts as they are.

    A place that nobody fills is refused.
    """

    def put(found: re.Match[str]) -> str:
        kind, _, name = found[1].rpartition(":")
        if kind == "each":
            return _figures([chart for one, chart in station.charts.items() if one.startswith(f"{name}.")])
        sources = {"": station.facts, "math": FORMULAS, "chart": station.charts}
        if kind not in sources or name not in sources[kind]:
            raise RegardError(
                "page",
                got=f"nothing for {found[0]} of the station {station.slug}",
                needed="a fact, a formula or a chart for every place",
                repair="Compute it, or mend the name.",
            )
        if kind == "chart":
            return render(station.charts[name], found[2] or station.title)
        return FORMULAS[name] if kind == "math" else escape(station.facts[name])

    return PLACE.sub(put, fragment)


def _figures(charts: Sequence[Curves | Bars]) -> str:
    return "\n".join(
        f'<figure class="still">{render(one, one.caption)}<figcaption>{escape(one.caption)}</figcaption></figure>'
        for one in charts
    )


def as_json(stations: Sequence[Station]) -> str:
    """What the script reads; no < can end the element that it stands in."""
    pages = {
        station.slug: {
            **station.data,
            "tables": {table.name: [table.header, *table.rows] for table in station.tables},
        }
        for station in stations
    }
    return json.dumps(pages, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return HERE.joinpath(name).read_text(encoding="utf-8")
