"""Station 6: a state of fixed size cannot hold a long list; attention does not have to (points 13 and 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from regard import plots
from regard.experiments.comparison import Comparison, Standing
from regard.plots.look import COLOURS
from regard.tour.budget import Budget
from regard.tour.charts import Curves, Series
from regard.tour.results.laboratory import compared
from regard.tour.shares import Share
from regard.tour.station import Station, Table, Tell
from regard.tour.trainings.watched import train
from regard.translation.corpora import built_in_corpus
from regard.translation.dataset import Corpus, Pair
from regard.translation.recipe import preset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 3  # lists of each length
WAYS = {"none": "a fixed state", "additive": "attention"}
AXES: dict[str, Any] = {
    "x": (1, 12),
    "y": (0, 1),
    "x_label": "numbers in the list",
    "y_label": "read without a mistake",
    "ticks": (1, 3, 6, 9, 12),
    "places": tuple(range(1, 13)),
}
COMMON = 64  # the state of the laboratory's models that name none


class Read(NamedTuple):
    """What one model made of the test lists. said: in the order of the test lists. parameters: how many it has."""

    said: tuple[str, ...]
    parameters: int


def work(attention: str, budget: Budget, tell: Tell) -> Read:
    """Train one model on lists and let it read those that it has not seen; attention: a score, or "none"."""
    examples = corpus(budget)
    recipe = preset("lists").with_flags({"attention": attention, "epochs": budget.lists_epochs})
    translator = train(recipe, examples, tell, lambda *_: None, lambda _: set())
    said = translator.translate([one.source for one in examples.test], beams=1)
    count = sum(parameter.numel() for parameter in translator.models[0].model.parameters())
    return Read(tuple(one.text for one in said), count)


def corpus(budget: Budget) -> Corpus:
    """Lists of 1 to 12 numbers; the same ones for both models."""
    return built_in_corpus("lists", train=budget.lists, valid=12, test=budget.judged_lists)


def present(budget: Budget, fixed: Read, attending: Read) -> Station:
    """Both models on the same lists, and the laboratory's sizes of the state."""
    tests = corpus(budget).test
    by_way = {"none": fixed, "additive": attending}
    exact = {way: by_length(tests, read.said) for way, read in by_way.items()}
    total = {way: _pooled(list(groups.values())) for way, groups in exact.items()}
    sizes = compared("lab-state-size")
    return Station(
        "bottleneck",
        "What a fixed state forgets",
        facts={
            "none": total["none"].text(),
            "additive": total["additive"].text(),
            "none.parameters": f"{fixed.parameters:,}",
            "additive.parameters": f"{attending.parameters:,}",
            "each": str(next(iter(exact["none"].values())).count),
            "pairs": f"{budget.lists:,}",
            "seeds": str(sizes.seeds),
            "kept": str(sizes.trials[0].by_length[0].count),
        },
        data={
            "lists": _shown(tests, by_way),
            "exact": {way: {length: share.row() for length, share in groups.items()} for way, groups in exact.items()},
        },
        charts={"ways": _ways(exact), "sizes": _sizes(sizes)},
        tables=(
            Table("lists", ("length", "list", *WAYS.values()), _rows(tests, by_way)),
            Table("lists-by-length", ("model", "length", "exact", "low", "high", "n"), _length_rows(exact)),
            Table("state-sizes", *sizes.table()),
        ),
        figures={"bottleneck": _draw(exact, sizes)},
        beats=("length=3", "length=6", "length=12"),
    )


def by_length(tests: Sequence[Pair], said: Sequence[str]) -> dict[str, Share]:
    """How many lists of each length were read without a mistake."""
    groups: dict[str, list[bool]] = {}
    for example, text in zip(tests, said, strict=True):
        groups.setdefault(example.label, []).append(text == example.target)
    return {length: Share(sum(groups[length]), len(groups[length])) for length in sorted(groups, key=int)}


def marked(reference: str, said: str) -> list[tuple[str, bool]]:
    """The words that were said, each with whether it stands where it should; a missing word is an empty one.

    >>> marked("42 7 13", "42 8")
    [('42', True), ('8', False), ('', False)]
    """
    expected, got = reference.split(), said.split()
    places = range(max(len(expected), len(got)))
    return [
        (got[place] if place < len(got) else "", got[place : place + 1] == expected[place : place + 1])
        for place in places
    ]


def _shown(tests: Sequence[Pair], by_way: dict[str, Read]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for place, example in enumerate(tests):
        group = found.setdefault(example.label, [])
        if len(group) < SHOWN:
            said = {way: marked(example.target, read.said[place]) for way, read in by_way.items()}
            given = {
                part: marked(text, text) for part, text in (("source", example.source), ("target", example.target))
            }
            group.append(given | said)
    return found


def _ways(exact: dict[str, dict[str, Share]]) -> Curves:
    series = []
    for way, kind in (("none", "c1"), ("additive", "c0")):
        points = [(int(length), share.share) for length, share in exact[way].items()]
        band = [(int(length), *share.interval) for length, share in exact[way].items()]
        series.append(Series(WAYS[way], points, kind, band, marks=True))
    return Curves(series, **AXES)


def _sizes(sizes: Comparison) -> Curves:
    series = []
    for one, kind in zip(sizes.standings, ("c5", "c2", "c3"), strict=False):
        rows = _by_length(one)
        band = [(length, low, high) for length, _, low, high in rows]
        series.append(Series(f"state of {_state(one)}", [row[:2] for row in rows], kind, band, marks=True))
    return Curves(series, **AXES)


def _pooled(shares: list[Share]) -> Share:
    return Share(sum(share.hits for share in shares), sum(share.count for share in shares))


def _state(one: Standing) -> int:
    return one.competitor.hidden or COMMON


def _by_length(one: Standing) -> list[list[float]]:
    return [[int(length), found.mean, found.lowest, found.highest] for length, found in one.by_length.items()]


def _rows(tests: Sequence[Pair], by_way: dict[str, Read]) -> list[tuple[object, ...]]:
    said = zip(*(by_way[way].said for way in WAYS), strict=True)
    return [(one.label, one.target, *texts) for one, texts in zip(tests, said, strict=True)]


def _length_rows(exact: dict[str, dict[str, Share]]) -> list[tuple[object, ...]]:
    return [(WAYS[way], length, *share.row()) for way, groups in exact.items() for length, share in groups.items()]


def _draw(exact: dict[str, dict[str, Share]], sizes: Comparison) -> Figure:
    figure, (left, right) = plots.canvas(7.2, 3.2, panels=2)
    with plots.house_style():
        for way, colour in (("none", COLOURS[1]), ("additive", COLOURS[0])):
            rows = [(int(length), share.share, *share.interval) for length, share in exact[way].items()]
            _line(left, rows, colour, WAYS[way])
        for one, colour in zip(sizes.standings, COLOURS[2:], strict=False):
            _line(right, _by_length(one), colour, f"state of {_state(one)}")
        for ax, name in ((left, "this run"), (right, f"without attention, {sizes.seeds} seeds")):
            ax.set(xlabel="numbers in the list", ylabel="read without a mistake", title=name, ylim=(-0.02, 1.02))
            ax.legend(loc="lower left")
    return figure


def _line(ax: Axes, rows: Sequence[Sequence[float]], colour: str, name: str) -> None:
    """rows: length, share, and the ends of its band."""
    lengths, shares, low, high = (list(column) for column in zip(*rows, strict=True))
    ax.plot(lengths, shares, "o-", markersize=3, color=colour, label=name)
    ax.fill_between(lengths, low, high, color=colour, alpha=0.18, linewidth=0)
