"""Station 7: attention while it is learnt, from even weights to the right letters (eq. 12 and 13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from regard import plots
from regard.plots.look import COLOURS, WEIGHTS
from regard.tour.budget import Budget
from regard.tour.charts import Curves, Series
from regard.tour.shares import QUANTILE, Share
from regard.tour.station import Station, Table, Tell
from regard.tour.trainings.watched import train
from regard.translation.alignment import corpus_span_attention
from regard.translation.corpora import Span, dates
from regard.translation.corpora.dates import ISO_PLACES, date_patterns
from regard.translation.dataset import Corpus, Pair
from regard.translation.recipe import preset
from regard.translation.translator import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCALES = ("en", "de", "fr", "es", "it", "nl", "sv", "fi", "hu", "pl", "ro", "tr")
SHOWN = {"fi": "Finnish", "de": "German", "hu": "Hungarian", "en": "English", "pl": "Polish"}
DAY = date(1987, 9, 21)  # left out of the training data
LOOKS = (0.0, 0.02, 0.05, 0.08, 0.11, 0.14, 0.18, 0.23, 0.3, 0.4, 0.6, 1.0)  # of all updates
END = "∎"


class Judged(NamedTuple):
    """One language at one moment, over its test dates. mass: on the right letters, with half of its 95% interval."""

    mass: float
    half: float
    exact: Share


@dataclass(frozen=True)
class Look:
    """The model after some updates, by language.

    weights: of the shown date, (letters of the target, letters of the source and its end).
    """

    update: int
    judged: dict[str, Judged]
    weights: dict[str, list[list[float]]]


@dataclass(frozen=True)
class Learning:
    """All looks, the first before the first update."""

    looks: tuple[Look, ...]
    shown: dict[str, Pair]
    pairs: int
    tests: int


def work(budget: Budget, tell: Tell) -> Learning:
    """Train the dates model and look at it twelve times."""
    shown = {locale: shown_date(locale) for locale in SHOWN}
    tests = {locale: dates(locales=(locale,), train=1, valid=1, test=budget.judged_dates).test for locale in SHOWN}
    held_out = {DAY.isoformat(), *(one.target for part in tests.values() for one in part)}
    made = dates(locales=LOCALES, train=budget.dates, valid=1, test=1)
    kept = tuple(one for one in made.train if one.target not in held_out)
    looks: list[Look] = []

    def look(update: int, translator: Translator) -> None:
        judged = {locale: _judge(translator, examples) for locale, examples in tests.items()}
        looks.append(Look(update, judged, {locale: _weights(translator, one) for locale, one in shown.items()}))

    recipe = preset("dates").with_flags({"epochs": budget.dates_epochs})
    train(recipe, Corpus("dates", kept, made.valid), tell, look, lambda updates: {round(s * updates) for s in LOOKS})
    return Learning(tuple(looks), shown, len(kept), budget.judged_dates)


def shown_date(locale: str) -> Pair:
    """`DAY` in the long style of a language, with the places of its fields."""
    form = next(form for form in date_patterns((locale,)) if form.style == "long")
    text, places = form.write(DAY)
    spans = tuple(Span(target, (places[field],)) for field, target in ISO_PLACES.items())
    return Pair(text, DAY.isoformat(), spans, label=locale)


def present(learning: Learning) -> Station:
    """Maps, masses and exact shares of every look."""
    last = learning.looks[-1]
    facts = {f"{locale}.mass": f"{100 * one.mass:.0f}% ± {100 * one.half:.0f}" for locale, one in last.judged.items()}
    facts |= {f"{locale}.exact": one.exact.text() for locale, one in last.judged.items()}
    first, middle, end = 0, len(learning.looks) // 2, len(learning.looks) - 1
    return Station(
        "learning",
        "Attention while it is learnt",
        facts=facts
        | {
            "pairs": f"{learning.pairs:,}",
            "updates": f"{last.update:,}",
            "last": str(end),
            "tests": str(learning.tests),
            "languages": str(len(LOCALES)),
        },
        data={
            "updates": [look.update for look in learning.looks],
            "sources": {locale: [*one.source, END] for locale, one in learning.shown.items()},
            "target": list(DAY.isoformat()),
            "weights": {
                locale: [[[round(w, 4) for w in row] for row in look.weights[locale]] for look in learning.looks]
                for locale in SHOWN
            },
            "mass": {locale: [[*look.judged[locale][:2]] for look in learning.looks] for locale in SHOWN},
            "exact": {locale: [look.judged[locale].exact.row() for look in learning.looks] for locale in SHOWN},
        },
        charts={"mass": _chart(learning)},
        tables=(
            Table(
                "learning",
                ("update", "language", "mass", "half of 95% interval", "exact", "low", "high", "n"),
                _rows(learning),
            ),
            Table("alignments", ("update", "language", "target letter", "source letter", "weight"), _cells(learning)),
        ),
        figures={"learning": _draw(learning)},
        beats=(*tuple(f"language=fi&look={place}" for place in (first, middle, end)), f"language=hu&look={end}"),
    )


def _chart(learning: Learning) -> Curves:
    """The share on the right letters by language; the first look stands at update 1, since its place is a logarithm."""
    updates = [max(1, look.update) for look in learning.looks]
    series = []
    for place, (locale, name) in enumerate(SHOWN.items()):
        found = [look.judged[locale] for look in learning.looks]
        points = [(update, one.mass) for update, one in zip(updates, found, strict=True)]
        band = [(update, one.mass - one.half, one.mass + one.half) for update, one in zip(updates, found, strict=True)]
        series.append(Series(name, points, f"c{place}", band))
    return Curves(
        series, (1, updates[-1]), (0, 1), "updates", "attention on the right letters", log_x=True, places=updates
    )


def _judge(translator: Translator, examples: Sequence[Pair]) -> Judged:
    sources, targets = [one.source for one in examples], [one.target for one in examples]
    given = translator.force(sources, targets)
    shares = [corpus_span_attention([one], [example]) or 0.0 for one, example in zip(given, examples, strict=True)]
    said = translator.translate(sources, beams=1, longest=12)
    hits = sum(one.text == target for one, target in zip(said, targets, strict=True))
    return Judged(fmean(shares), QUANTILE * stdev(shares) / math.sqrt(len(shares)), Share(hits, len(targets)))


def _weights(translator: Translator, example: Pair) -> list[list[float]]:
    weights = translator.force([example.source], [example.target])[0].weights
    assert weights is not None
    return weights[: len(example.target)].tolist()


def _rows(learning: Learning) -> list[tuple[object, ...]]:
    return [
        (look.update, SHOWN[locale], one.mass, one.half, *one.exact.row())
        for look in learning.looks
        for locale, one in look.judged.items()
    ]


def _cells(learning: Learning) -> list[tuple[object, ...]]:
    """The weights of the first, a middle and the last look, letter by letter."""
    places = sorted({0, len(learning.looks) // 2, len(learning.looks) - 1})
    return [
        (learning.looks[place].update, SHOWN[locale], letter, source, round(weight, 6))
        for place in places
        for locale, table in learning.looks[place].weights.items()
        for letter, row in zip(DAY.isoformat(), table, strict=True)
        for source, weight in zip([*learning.shown[locale].source, END], row, strict=True)
    ]


def _draw(learning: Learning) -> Figure:
    """Above: Finnish; below: Hungarian; from the first look to the last."""
    places = [0, len(learning.looks) // 3, len(learning.looks) // 2, len(learning.looks) - 1]
    figure, panels = plots.canvas(7.2, 3.6, panels=len(places), rows=2)
    with plots.house_style():
        chosen = [(locale, place) for locale in ("fi", "hu") for place in places]
        for ax, (locale, place) in zip(panels, chosen, strict=True):
            look = learning.looks[place]
            image = ax.imshow(look.weights[locale], cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto", interpolation="none")
            ax.set_xticks(
                range(len(learning.shown[locale].source) + 1), [*learning.shown[locale].source, END], fontsize=5
            )
            ax.set_yticks(range(len(DAY.isoformat())), list(DAY.isoformat()), fontsize=6)
            ax.set_title(f"{SHOWN[locale]}, update {look.update}", fontsize=8, color=COLOURS[0])
        scale = figure.colorbar(image, ax=panels, label="weight", fraction=0.03, pad=0.01)
        scale.outline.set_visible(False)
    return figure
