"""Station 9: how additive attention is fast: two identities, and what they gained on machines that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from regard import plots
from regard.plots.look import COLOURS
from regard.tour import results
from regard.tour.charts import Bar, Bars, Curves, Series
from regard.tour.station import Station, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANGES = (2, 4, 6, 8)
RANKS, GRID, COUNT, LEAST = 40, 128, len(COLOURS), 1e-8
MEASURED = ("additive", "additive-cuda", "memory")


def present() -> Station:
    """The error of a short sum of products, and the kept times and memories."""
    files = {name: results.read(name) for name in MEASURED}
    errors = {reach: lift_errors(reach) for reach in RANGES}
    times, memory = timed(files), remembered(files)
    charts = {
        "rank": _rank_chart(errors, by_rank(files)),
        "time": _time_chart(times),
        "memory": _length_chart(memory, "bytes"),
    }
    return Station(
        "speed",
        "How it is fast",
        facts={
            "machines": "; ".join(dict.fromkeys(_machine(page) for page in files.values())),
            "identity": f"{identity_error():.0e}",
            "time.caption": _caption(charts["time"], times),
            **{f"rank.{reach}": str(next(r for r, e in enumerate(errors[reach]) if e < 1e-3)) for reach in RANGES},
        },
        charts=charts,
        tables=(
            Table(
                "rank", ("range", "rank", "largest error"), [(r, k, e) for r in RANGES for k, e in enumerate(errors[r])]
            ),
            Table("time", ("series", "tokens", "seconds"), [(s["name"], *at) for s in times for at in s["points"]]),
            Table("memory", ("series", "tokens", "bytes"), [(s["name"], *at) for s in memory for at in s["points"]]),
        ),
        figures={"speed": _draw(charts)},
    )


def lift_errors(reach: float) -> list[float]:
    """The largest |tanh(a + b) - sum of R products| on |a|, |b| <= reach, for R = 0, 1, 2 and so on.

    Of the best sum in the mean square, on a grid of Chebyshev points, by the singular values of the table.
    """
    points = reach * torch.cos(torch.pi * (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID)
    table = torch.tanh(points[:, None] + points)
    left, values, right = torch.linalg.svd(table)
    errors, rest = [], table
    for rank in range(RANKS):
        errors.append(float(rest.abs().max()))
        rest = rest - values[rank] * torch.outer(left[:, rank], right[rank])
    return errors


def identity_error() -> float:
    """The largest difference between tanh(a + b) and (uv - 1) / (uv + 1) in float64, for |a|, |b| <= 8."""
    points = torch.linspace(-8, 8, 401, dtype=torch.float64)
    product = torch.exp(2 * points)[:, None] * torch.exp(2 * points)
    return float((torch.tanh(points[:, None] + points) - (product - 1) / (product + 1)).abs().max())


def timed(files: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Seconds against tokens, a series for each device, direction, batch, width and competitor that was kept."""
    found: dict[str, list[tuple[float, float]]] = {}
    for page in files.values():
        for row in page["rows"]:
            if "tokens" not in row or not isinstance(row.get("seconds"), dict):
                continue
            direction = "forward + backward" if row.get("backward") else "forward"
            where = "GPU" if page["device"] == "cuda" else "CPU"
            for name, times in row["seconds"].items():
                label = f"{where}, {direction}, {row.get('batch', 1)} × hidden {row['hidden']}: {name}"
                found.setdefault(label, []).append((row["tokens"], times["median"]))
    return [_series(name, points) for name, points in found.items()]


def remembered(files: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Peak bytes against tokens, for every row that tells them."""
    found: dict[str, list[tuple[float, float]]] = {}
    names = {"peak_bytes": "regard.attend", "textbook_bytes_at_least": "textbook, at least"}
    for page in files.values():
        where = "GPU" if page["device"] == "cuda" else "CPU"
        for row in page["rows"]:
            peaks = {names[key]: row[key] for key in names if isinstance(row.get(key), int | float)}
            told = row.get("bytes")
            peaks |= told if isinstance(told, dict) else {}
            for name, size in peaks.items():
                if "tokens" in row and isinstance(size, int | float):
                    found.setdefault(f"{where}, hidden {row.get('hidden')}: {name}", []).append((row["tokens"], size))
    return [_series(name, points) for name, points in found.items()]


def by_rank(files: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Error against rank, promised and observed, for every row that tells a rank."""
    found: dict[str, list[tuple[float, float]]] = {}
    for page in files.values():
        for row in page["rows"]:
            for kind in ("promised", "observed"):
                if "rank" in row and isinstance(row.get(kind), int | float):
                    found.setdefault(kind, []).append((row["rank"], row[kind]))
    return [_series(name, points) for name, points in found.items()]


def _rank_chart(errors: dict[int, list[float]], observed: list[dict[str, Any]]) -> Curves:
    series = [
        Series(
            f"|a|, |b| ≤ {reach}",
            [(rank, error) for rank, error in enumerate(found) if rank and error >= LEAST],
            f"c{place}",
        )
        for place, (reach, found) in enumerate(errors.items())
    ]
    series += [Series(one["name"], one["points"], "truth", marks=True) for one in observed]
    return Curves(series, (0, RANKS), (LEAST, 1), "products", "largest error", log_y=True)


def _time_chart(times: list[dict[str, Any]]) -> Curves | Bars:
    """Curves where several lengths were measured, else bars relative to the textbook form of the same setting."""
    if any(len(one["points"]) > 1 for one in times):
        return _length_chart(times, "seconds")
    groups: dict[str, dict[str, float]] = {}
    for one in times:
        where, _, name = one["name"].partition(": ")
        groups.setdefault(where, {})[name] = one["points"][0][1]
    found = []
    for where, seconds in groups.items():
        first = next(iter(seconds.values()))
        title = ", ".join(where.split(", ")[:2]).replace("forward + backward", "both ways")
        for name, number in seconds.items():
            found.append(Bar(title, number / first, 0, 0, f"{1000 * number:.3g} ms", _look(name)))
            title = ""
    keys = list(dict.fromkeys((name, _look(name)) for seconds in groups.values() for name in seconds))
    return Bars(found, max(bar.value for bar in found), keys)


def _caption(chart: Curves | Bars, times: list[dict[str, Any]]) -> str:
    """What the chart of times is drawn from."""
    if isinstance(chart, Curves):
        return "Kept results: seconds of one call against the number of tokens."
    tokens = sorted({place for one in times for place, _ in one["points"]})
    lengths = " and ".join(f"{place:,}" for place in tokens)
    return f"Kept results: one call at {lengths} tokens; bars are relative to the first form on the same machine."


def _look(name: str) -> str:
    """One colour for each competitor."""
    return "c0" if name.startswith("regard") else "c4" if name == "textbook" else "c3"


def _length_chart(series: list[dict[str, Any]], label: str) -> Curves:
    places = [place for one in series for place, _ in one["points"]]
    numbers = [number for one in series for _, number in one["points"]]
    drawn = [
        Series(one["name"], one["points"], f"c{at % COUNT}{' dashed' * (at >= COUNT)}", marks=True)
        for at, one in enumerate(series)
    ]
    ticks = sorted(set(places))
    ends = (10 ** math.floor(math.log10(min(numbers))), 10 ** math.ceil(math.log10(max(numbers))))
    return Curves(
        drawn, (min(places) / 1.1, max(places) * 1.1), ends, "tokens", label, log_x=True, log_y=True, ticks=ticks
    )


def _series(name: str, points: list[tuple[float, float]]) -> dict[str, Any]:
    return {"name": name, "points": sorted(points)}


def _machine(page: dict[str, Any]) -> str:
    facts = page["machine"]
    return f"{facts['processor']}, torch {facts['torch']}"


def _draw(charts: Mapping[str, Curves | Bars]) -> Figure:
    figure, panels = plots.canvas(7.2, 3.4, panels=len(charts))
    with plots.house_style():
        for ax, (name, chart) in zip(panels, charts.items(), strict=True):
            if isinstance(chart, Curves):
                _draw_curves(ax, chart)
            else:
                _draw_bars(ax, chart)
            ax.set_title({"rank": "largest error", "time": "time ÷ textbook", "memory": "bytes"}[name])
    return figure


def _draw_curves(ax: Axes, chart: Curves) -> None:
    for place, one in enumerate(chart.series):
        across, up = zip(*one.points, strict=True)
        look = {"color": COLOURS[place % COUNT], "linestyle": "--" if "dashed" in one.kind else "-"}
        ax.plot(across, up, marker="o" if one.marks else "", markersize=4, label=one.name, **look)
    ax.set(xscale="log" if chart.log_x else "linear", yscale="log" if chart.log_y else "linear")
    ax.set(xlim=chart.x, ylim=chart.y, xlabel=chart.x_label)
    if chart.ticks:
        ax.set_xticks(chart.ticks, [f"{tick:g}" for tick in chart.ticks])
        ax.minorticks_off()
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7)


def _draw_bars(ax: Axes, chart: Bars) -> None:
    places = range(len(chart.bars))
    drawn = ax.barh(places, [bar.value for bar in chart.bars], color=[COLOURS[int(bar.kind[1])] for bar in chart.bars])
    ax.bar_label(drawn, [bar.text for bar in chart.bars], padding=2, fontsize=6)
    ax.set_yticks(places, [bar.name for bar in chart.bars], fontsize=7)
    ax.set_xlim(0, 1.4 * chart.most)
    ax.invert_yaxis()
    first = {bar.kind: patch for bar, patch in zip(chart.bars, drawn, strict=True)}
    handles = [first[kind] for _, kind in chart.keys]
    ax.legend(handles, [name for name, _ in chart.keys], loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7)
