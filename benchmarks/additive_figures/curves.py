"""Figures of what was measured: time and memory against length, errors of the lift against its rank."""

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.additive_figures.files import kept, save
from regard.plots.look import COLOURS, TRUTH, canvas, house_style

# In the order of the legend: colour, line and marker of each form.
LOOKS = {
    "textbook": (COLOURS[1], "-", "s"),
    "textbook, torch.compile": (COLOURS[3], "-", "D"),
    "textbook as a product, torch.compile": (COLOURS[3], "--", "D"),
    "exact": (COLOURS[0], "-", "o"),
    "lifted": (COLOURS[2], "-", "^"),
}


def by_length(quantity: str) -> dict[str, list[tuple[int, float]]]:
    """form → (tokens, seconds or bytes) of forward and backward together; quantity: "seconds" or "peak_bytes"."""
    suite = kept("additive-cuda")
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in LOOKS}
    for row in suite["curve"]:
        for name, number in row[quantity].items():
            found[name].append((row["tokens"], _number(number)))
    # The compiled textbook forms are in the rows of the comparison, once beside each tolerance.
    batch = suite["curve"][0]["batch"]
    rows = [row for row in suite["rows"] if row["backward"] and row["batch"] == batch and not row["captured"]]
    for name in LOOKS:
        if name.endswith("torch.compile"):
            own = [row for row in rows if name in row[quantity]]
            found[name] = sorted({row["tokens"]: _number(row[quantity][name]) for row in own}.items())
    return {name: points for name, points in found.items() if points}


def _number(measured: dict | float) -> float:
    return measured["median"] if isinstance(measured, dict) else measured


def setting() -> str:
    """The machine and the sizes of these curves, in words."""
    suite = kept("additive-cuda")
    sizes = {(row["hidden"], row["value_dim"]) for row in suite["rows"]}
    ((hidden, value_dim),) = sizes
    machine, batch = suite["machine"], suite["curve"][0]["batch"]
    return f"{machine['processor']}, torch {machine['torch']}, batch {batch}, hidden {hidden}, values of {value_dim}"


def draw_time() -> None:
    """Milliseconds against tokens."""
    series = by_length("seconds")
    scaled = {name: [(tokens, 1e3 * seconds) for tokens, seconds in points] for name, points in series.items()}
    _draw_by_length("additive-time", series, scaled, "milliseconds, forward and backward")


def draw_memory() -> None:
    """Bytes against tokens."""
    series = by_length("peak_bytes")
    scaled = {name: [(tokens, size / 2**30) for tokens, size in points] for name, points in series.items()}
    _draw_by_length("additive-memory", series, scaled, "peak memory in GiB, forward and backward")


def _draw_by_length(name: str, numbers: dict, series: dict[str, list[tuple[int, float]]], label: str) -> None:
    with house_style(dark=False):
        figure, (ax,) = canvas(6.4, 3.8)
        for form, points in series.items():
            colour, line, marker = LOOKS[form]
            ax.loglog(*zip(*points, strict=True), color=colour, linestyle=line, marker=marker, markersize=5, label=form)
        lengths = sorted({tokens for points in series.values() for tokens, _ in points})
        ax.set_xticks(lengths, [f"{tokens:,}" for tokens in lengths])
        ax.minorticks_off()
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        ax.set(xlabel="queries and keys", ylabel=label)
        ax.set_title(setting(), fontsize=8)
        ax.grid(axis="y", linewidth=0.4, alpha=0.4)
        ax.legend(loc="upper left")
        save(figure, name, numbers)


def draw_lift_errors() -> None:
    """Two panels, values and slopes; a colour for each reach, a line for the promise, dots for what was seen."""
    suite = kept("lift-errors")
    with house_style(dark=False):
        figure, panels = canvas(7.2, 3.8, panels=2, same_scales=True)
        for ax, kind, title in zip(panels, ("value", "slope"), ("each tanh", "its slope"), strict=True):
            _draw_errors(ax, suite["rows"], kind)
            ax.set(xlabel="rank", title=f"error of {title}")
        panels[0].set_ylabel("largest error")
        panels[1].legend(handles=_legend(suite["rows"]), loc="upper right")
        save(figure, "additive-lift-errors", suite)


def _looks(rows: list[dict]) -> dict[float, tuple[str, str]]:
    """Colour and marker of each reach."""
    reaches = sorted({row["reach"] for row in rows})
    return dict(zip(reaches, zip(COLOURS, ("o", "s", "^"), strict=False), strict=True))


def _draw_errors(ax: Axes, rows: list[dict], kind: str) -> None:
    for reach, (colour, marker) in _looks(rows).items():
        chosen = [row for row in rows if row["reach"] == reach]
        ranks = [row["rank"] for row in chosen]
        ax.semilogy(ranks, [row[f"{kind}_promised"] for row in chosen], color=colour)
        observed = [row[f"{kind}_observed"] for row in chosen]
        ax.semilogy(ranks, observed, color=colour, linestyle="none", marker=marker, markersize=4)
    ax.grid(axis="y", linewidth=0.4, alpha=0.4)


def _legend(rows: list[dict]) -> list[Line2D]:
    ranges = [
        Line2D([], [], color=colour, marker=marker, markersize=4, label=f"|a|, |b| ≤ {reach:g}")
        for reach, (colour, marker) in _looks(rows).items()
    ]
    promised = Line2D([], [], color=TRUTH, label="promised")
    return [
        *ranges,
        promised,
        Line2D([], [], color=TRUTH, linestyle="none", marker="o", markersize=4, label="observed"),
    ]


FIGURES = {
    "additive-time": draw_time,
    "additive-memory": draw_memory,
    "additive-lift-errors": draw_lift_errors,
}
