"""Charts as SVG in the page's own style: text stays text, colours are those of light or dark."""

import math
from collections.abc import Callable, Sequence
from html import escape

from regard.tour.charts import Bar, Bars, Curves, Series

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 28, 40
BAR_HEIGHT, NAMES, NUMBERS = 24, 128, 96
CHARACTER = 6.4  # what one of a name takes, in the widest of names
MOST_TICKS = 6
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def render(chart: Curves | Bars, label: str) -> str:
    """The SVG, and a legend below it where there are several curves; label: what it shows, for who cannot see it."""
    if isinstance(chart, Bars):
        rows = "".join(_bar(chart, place) for place in range(len(chart.bars)))
        return _svg(len(chart.bars) * BAR_HEIGHT + 4, label, rows) + legend(chart.keys)
    return _svg(HEIGHT, label, _curves(chart)) + legend([(one.name, one.kind) for one in chart.series])


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """A key for every name and its look."""
    shown = "".join(f'<span class="key {kind}">{escape(name)}</span>' for name, kind in keys if name)
    return f'<p class="legend">{shown}</p>' if shown else ""


def ticks(low: float, high: float, log: bool) -> list[float]:
    """A few round numbers from low to high.

    >>> ticks(0, 4, False), ticks(0.001, 10, True)
    ([0, 1, 2, 3, 4], [0.001, 0.01, 0.1, 1.0, 10.0])
    """
    if log:
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        return [10.0**power for power in powers[:: math.ceil(len(powers) / MOST_TICKS) or 1]]
    power = 10 ** math.floor(math.log10((high - low) / 4))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def words(number: float) -> str:
    """A tick: far from 1 as a power of ten.

    >>> words(1e-6), words(0.25), words(1000000.0), words(-2.0)
    ('10⁻⁶', '0.25', '10⁶', '−2')
    """
    if number > 0 and not 1e-3 <= number < 1e5:
        return "10" + str(round(math.log10(number))).translate(SUPERSCRIPTS)
    return f"{number:g}".replace("-", "−")


def _svg(height: float, label: str, inside: str) -> str:
    return f'<svg class="still" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{inside}</svg>'


def _scale(ends: tuple[float, float], log: bool, start: float, stop: float) -> Callable[[float], float]:
    low, high = (math.log(end) if log else end for end in ends)

    def place(value: float) -> float:
        inside = min(max(value, ends[0]), ends[1])
        return round(start + (stop - start) * ((math.log(inside) if log else inside) - low) / (high - low), 2)

    return place


def _curves(chart: Curves) -> str:
    across = _scale(chart.x, chart.log_x, LEFT, WIDTH - RIGHT)
    up = _scale(chart.y, chart.log_y, HEIGHT - BOTTOM, TOP)
    parts = []
    for value in ticks(*chart.y, chart.log_y):
        at = up(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" class="grid"/>')
        parts.append(_text(LEFT - 7, at + 4, "tick end", words(value)))
    for value in chart.ticks or ticks(*chart.x, chart.log_x):
        parts.append(_text(across(value), HEIGHT - BOTTOM + 17, "tick middle", words(value)))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 6, "label end", chart.x_label))
    parts.append(_text(4, 13, "label", chart.y_label))
    if chart.places:
        places = " ".join(str(across(place)) for place in chart.places)
        first = across(chart.places[0])
        line = f'x1="{first}" x2="{first}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
        parts.append(f'<line {line} class="rule marker" data-places="{places}"/>')
    for one in chart.series:
        parts += _one(one, across, up)
    return "".join(parts)


def _one(one: Series, across: Callable[[float], float], up: Callable[[float], float]) -> list[str]:
    parts = []
    if one.band:
        low = [f"{across(x)},{up(y)}" for x, y, _ in one.band]
        high = [f"{across(x)},{up(y)}" for x, _, y in reversed(one.band)]
        parts.append(f'<path d="M{"L".join([*low, *high])}Z" class="band {one.kind}"/>')
    path = "L".join(f"{across(x)},{up(y)}" for x, y in one.points)
    parts.append(f'<path d="M{path}" class="curve {one.kind}"/>')
    if one.marks:
        parts += [f'<circle cx="{across(x)}" cy="{up(y)}" r="3" class="dot {one.kind}"/>' for x, y in one.points]
    return parts


def _bar(chart: Bars, place: int) -> str:
    one: Bar = chart.bars[place]
    middle = place * BAR_HEIGHT + BAR_HEIGHT / 2 + 2
    names = max(NAMES, 8 + CHARACTER * max(len(bar.name) for bar in chart.bars))
    along = _scale((0.0, chart.most), False, names, WIDTH - NUMBERS)
    parts = [_text(names - 8, middle + 4, "label end", one.name)]
    long = max(1.0, along(one.value) - names)
    parts.append(f'<rect x="{names:g}" y="{middle - 6}" width="{long:.2f}" height="12" class="bar {one.kind}"/>')
    if one.high > one.low:
        ends = f'x1="{along(one.low)}" x2="{along(one.high)}" y1="{middle}" y2="{middle}"'
        parts.append(f'<line {ends} class="whisker"/>')
    parts.append(_text(WIDTH - 2, middle + 4, "value end", one.text))
    return "".join(parts)


def _text(x: float, y: float, kind: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'
