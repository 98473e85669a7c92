"""Quality over the length of the source (arXiv 1409.0473, figure 2), and where attention looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from regard import plots
from regard.plots.look import COLOURS, POINTS
from regard.translation.lab.comparison import Comparison, Standing, StateSizes
from regard.translation.lab.competitors import NONE, Competitor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX"
# One hue from light to dark: sizes are ordered.
SHADES = ("#C6DBEF", "#6BAED6", "#2171B5", "#08306B")


def draw_comparison(comparison: Comparison) -> Figure:
    """Left: exact share by length, the band from the worst to the best seed. Right: attention on the right span."""
    figure, (left, right) = plots.canvas(7.2, 3.2, panels=2)
    colours = colours_of([one.competitor for one in comparison.standings])
    with plots.house_style():
        for place, one in enumerate(comparison.standings):
            name, colour = str(one.competitor), colours[one.competitor]
            dashes = (0, (4, 2)) if one.competitor == NONE else "-"
            _line(left, one, colour, name, MARKERS[place % len(MARKERS)], dashes)
        _name_lengths(left, comparison)
        left.set_title("exact translations by length")
        _dots(right, [one for one in comparison.standings if one.on_span is not None], colours)
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=2.4
        )
    return figure


def draw_state_sizes(sizes: StateSizes) -> Figure:
    """Exact share by length without attention, darker for a larger state."""
    figure, (axes,) = plots.canvas(4.6, 2.9)
    shades = SHADES[-len(sizes.standings) :]
    with plots.house_style():
        for place, one in enumerate(sizes.standings):
            label = str(sizes.hidden(one.competitor))
            _line(axes, one, shades[place % len(shades)], label, MARKERS[place % len(MARKERS)], "-")
        _name_lengths(axes, sizes)
        axes.set_title("without attention")
        axes.legend(title="state", loc="upper right", title_fontsize=8)
    return figure


def colours_of(competitors: list[Competitor]) -> dict[Competitor, str]:
    """Grey without attention, a colour of the house for each other one, in their order."""
    attending = [competitor for competitor in competitors if competitor.attention != "none"]
    chosen = {one: COLOURS[place % len(COLOURS)] for place, one in enumerate(attending)}
    return {one: chosen.get(one, POINTS) for one in competitors}


def _line(axes: Axes, one: Standing, colour: str, label: str, marker: str, dashes: object) -> None:
    places = range(len(one.by_length))
    found = list(one.by_length.values())
    axes.plot(
        places,
        [100 * interval.mean for interval in found],
        color=colour,
        label=label,
        marker=marker,
        markersize=3.5,
        linewidth=1.3,
        linestyle=dashes,
        clip_on=False,
    )
    low, high = ([100 * getattr(interval, end) for interval in found] for end in ("lowest", "highest"))
    axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)


def _name_lengths(axes: Axes, comparison: Comparison) -> None:
    names = list(comparison.standings[0].by_length)
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", labelsize=6.5 if max(map(len, names)) > 2 else 8)
    axes.set(xlabel=f"length of the source, in {comparison.length_unit}", ylabel="exact, %", ylim=(0, 100))
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y", color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)


def _dots(axes: Axes, standings: list[Standing], colours: Mapping[Competitor, str]) -> None:
    """A row for each competitor with attention: the mass on the right span filled, sharpness hollow."""
    for height, one in enumerate(standings):
        colour = colours[one.competitor]
        # The ring is wider than the dot: both are seen where they meet.
        for interval, face, size in ((one.sharpness, "none", 8), (one.on_span, colour, 4.5)):
            if interval is not None:
                axes.plot([100 * interval.lowest, 100 * interval.highest], [height] * 2, color=colour, linewidth=1.0)
                dot = {"marker": "o", "markersize": size, "color": colour, "markerfacecolor": face, "clip_on": False}
                axes.plot(100 * interval.mean, height, **dot)
    axes.set_yticks(range(len(standings)), [str(one.competitor) for one in standings])
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.set(xlim=(0, 100), xlabel="● mass on the right span   ○ sharpness   (%)", title="where attention looks")
    axes.grid(axis="x", color="0.92", linewidth=0.5)
    axes.set_axisbelow(True)
