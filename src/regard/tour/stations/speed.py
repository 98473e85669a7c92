"""Station 9: how additive attention is fast: two identities, and what they gained on machines that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import torch

from regard import plots
from regard.plots.look import COLOURS, TRUTH
from regard.tour import results
from regard.tour.charts import Bar, Bars, Curves, Series
from regard.tour.results.measured import Measured, Page, remembered, timed
from regard.tour.station import Station, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANGES = (2, 4, 6, 8)
RANKS, GRID, LEAST = 40, 128, 1e-8
MEASURED = ("additive", "additive-cuda", "memory")


def present() -> Station:
    """The error of a short sum of products, and the kept times and memories."""
    files = {name: results.read(name) for name in MEASURED}
    errors = {reach: lift_errors(reach) for reach in RANGES}
    times, memory = timed(files), remembered(files)
    kept = {f"kept.time, {place}": _time_chart(place, series) for place, series in times.items()}
    kept |= {f"kept.memory, {place}": _length_chart(series, "bytes", place) for place, series in memory.items()}
    curves_first = sorted(kept, key=lambda name: isinstance(kept[name], Bars))
    charts = {"rank": _rank_chart(errors), **{name: kept[name] for name in curves_first}}
    ranks = [(reach, rank, error) for reach in RANGES for rank, error in enumerate(errors[reach])]
    return Station(
        "speed",
        "How it is fast",
        facts={
            "machines": "; ".join(dict.fromkeys(_machine(page) for page in files.values())),
            "identity": f"{identity_error():.0e}",
            **{f"rank.{reach}": str(next(r for r, e in enumerate(errors[reach]) if e < 1e-3)) for reach in RANGES},
        },
        charts=charts,
        tables=(
            Table("rank", ("range", "rank", "largest error"), ranks),
            Table("time", ("where", "form", "tokens", "seconds"), _rows(times)),
            Table("memory", ("where", "form", "tokens", "bytes"), _rows(memory)),
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


def _rank_chart(errors: dict[int, list[float]]) -> Curves:
    series = [
        Series(f"|a|, |b| ≤ {reach}", [(r, e) for r, e in enumerate(found) if r and e >= LEAST], f"c{place}")
        for place, (reach, found) in enumerate(errors.items())
    ]
    return Curves(series, (0, RANKS), (LEAST, 1), "products", "largest error", log_y=True)


def _time_chart(place: str, series: list[Series]) -> Curves | Bars:
    """Curves where several lengths were measured, else a bar for each form."""
    if any(len(one.points) > 1 for one in series):
        return _length_chart(series, "seconds", place)
    bars = [Bar(one.name, at[1], 0, 0, _duration(at[1]), one.kind) for one in series for at in one.points]
    tokens = ", ".join(dict.fromkeys(f"{at[0]:,}" for one in series for at in one.points))
    return Bars(bars, max(bar.value for bar in bars), caption=f"Time of one call: {place}, {tokens} tokens.")


def _length_chart(series: list[Series], label: str, place: str) -> Curves:
    tokens = sorted({at[0] for one in series for at in one.points})
    numbers = [at[1] for one in series for at in one.points]
    ends = (10.0 ** math.floor(math.log10(min(numbers))), 10.0 ** math.ceil(math.log10(max(numbers))))
    caption = f"{'Time of one call' if label == 'seconds' else 'Peak memory'}: {place}."
    wide = (tokens[0] / 1.1, tokens[-1] * 1.1)
    return Curves(series, wide, ends, "tokens", label, log_x=True, log_y=True, ticks=tokens, caption=caption)


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _rows(measured: Measured) -> list[tuple[object, ...]]:
    return [(place, one.name, *at) for place, series in measured.items() for one in series for at in one.points]


def _machine(page: Page) -> str:
    facts = page["machine"]
    return f"{facts['processor']}, torch {facts['torch']}"


def _draw(charts: Mapping[str, Curves | Bars]) -> Figure:
    rows = math.ceil(len(charts) / 2)
    figure, panels = plots.canvas(8.4, 3.4 * rows, panels=2, rows=rows)
    with plots.house_style():
        for ax, chart in zip(panels, charts.values(), strict=False):
            if isinstance(chart, Curves):
                _draw_curves(ax, chart)
            else:
                _draw_bars(ax, chart)
            ax.set_title(fill(chart.caption.removesuffix(".") or "Largest error of the lift", 36), fontsize=8)
        for ax in panels[len(charts) :]:
            ax.axis("off")
    return figure


def _draw_curves(ax: Axes, chart: Curves) -> None:
    for one in chart.series:
        across, up = zip(*one.points, strict=True)
        line = "--" if one.kind.endswith("dashed") else "-"
        marker = "o" if one.marks else ""
        ax.plot(across, up, line, marker=marker, markersize=4, label=one.name, color=_colour(one.kind))
    ax.set(xscale="log" if chart.log_x else "linear", yscale="log" if chart.log_y else "linear")
    ax.set(xlim=chart.x, ylim=chart.y, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.ticks:
        ax.set_xticks(chart.ticks, [f"{tick:g}" for tick in chart.ticks])
        ax.minorticks_off()
    # Under the axes: so many names would lie over the curves.
    ax.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def _draw_bars(ax: Axes, chart: Bars) -> None:
    places = range(len(chart.bars))
    drawn = ax.barh(places, [bar.value for bar in chart.bars], color=[_colour(bar.kind) for bar in chart.bars])
    ax.bar_label(drawn, [bar.text for bar in chart.bars], padding=2, fontsize=7)
    ax.set_yticks(places, [fill(bar.name, 18) for bar in chart.bars], fontsize=7)
    ax.set(xlim=(0, 1.25 * chart.most), xlabel="seconds")
    ax.invert_yaxis()


def _colour(kind: str) -> str:
    return COLOURS[int(kind[1])] if kind.startswith("c") else TRUTH
